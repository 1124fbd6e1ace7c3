"""One fine-tuning: epochs of AdamW until the loss on the validation examples falls no more.

The state with the least validation loss is kept. Nothing here knows what the task is: a task gives batches, and the
model returns its loss and logits, as those of transformers do.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batches = Callable[[str, int], Iterator[dict[str, Tensor]]]
"""The batches of a side, "training", "validation" or "test", in the order of a seed."""


@dataclass(frozen=True)
class FineTuning:
    """How to fine-tune. An epoch without `least_gain` less validation loss counts; after `patience` of them it ends."""

    learning_rates: tuple[float, ...] = (1e-5, 3e-5, 1e-4)
    batch_size: int = 128
    max_length: int = 128
    epochs: int = 20
    patience: int = 3
    least_gain: float = 0.01
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0


def fine_tune(model: nn.Module, batches: Batches, how: FineTuning, learning_rate: float, seed: int) -> float:
    """Fine-tune `model` in place; returns its loss on the validation examples."""
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=how.weight_decay)
    best, best_state, without_gain = math.inf, copy.deepcopy(model.state_dict()), 0
    for epoch in range(how.epochs):
        model.train()
        for batch in batches("training", seed * 1000 + epoch):
            loss = _output(model, batch).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), how.max_gradient_norm)
            optimizer.step()
        found = mean_loss(model, batches)
        without_gain = 0 if found < best - how.least_gain else without_gain + 1
        if found < best:
            best, best_state = found, copy.deepcopy(model.state_dict())
        if without_gain >= how.patience:
            break
    model.load_state_dict(best_state)
    return best


@torch.no_grad()
def mean_loss(model: nn.Module, batches: Batches) -> float:
    """The mean of the losses of the validation batches, by their examples."""
    model.eval()
    total = count = 0.0
    for batch in batches("validation", 0):
        size = len(batch["input_ids"])
        total += float(_output(model, batch).loss) * size
        count += size
    return total / count if count else math.inf


@torch.no_grad()
def predictions(model: nn.Module, batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Labels and predicted classes of the test batches, equally shaped."""
    model.eval()
    for batch in batches("test", 0):
        yield batch["labels"], _output(model, batch).logits.argmax(-1)


def chunks(examples: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """`examples` in pieces of `size`, the last one shorter."""
    for start in range(0, len(examples), size):
        yield examples[start : start + size]


def _output(model: nn.Module, batch: dict[str, Tensor]) -> Any:
    return model(**batch)
