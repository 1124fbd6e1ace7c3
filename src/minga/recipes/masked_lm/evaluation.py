"""How well a model does on held-out text: the same samples and the same masks for everyone, every time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from minga.recipes.interface import Batch

EVALUATION_SEED = 20_210_618
EVALUATION_BATCH_SIZE = 32
MAX_EVALUATION_SAMPLES = 512


Samples = TypeVar("Samples")
Scores = Callable[[nn.Module, Batch], tuple[Tensor, Tensor | None]]
"""Scores of the vocabulary at the masked places, and of the order of segments where a model has a head for that."""


def heldout_batches(
    draw: Callable[[np.random.Generator], list[Samples]],
    make_batch: Callable[[Sequence[Samples], np.random.Generator], Batch],
) -> list[Batch]:
    """The batches that every evaluation uses: at most 512 samples, drawn and masked by a fixed seed."""
    random = np.random.default_rng(EVALUATION_SEED)
    samples = draw(random)
    if len(samples) > MAX_EVALUATION_SAMPLES:
        places = np.sort(random.choice(len(samples), MAX_EVALUATION_SAMPLES, replace=False))
        samples = [samples[place] for place in places]
    return [
        make_batch(samples[start : start + EVALUATION_BATCH_SIZE], random)
        for start in range(0, len(samples), EVALUATION_BATCH_SIZE)
    ]


def evaluate_model(model: nn.Module, batches: Sequence[Batch], scores: Scores) -> dict[str, float]:
    """`heldout_mlm_loss`: nats per masked token, all tokens alike; `heldout_mlm_accuracy`: share of them guessed right;
    `heldout_sop_accuracy`: share of pairs put right, where the model has a head for that.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    loss, tokens, guessed, right, pairs = 0.0, 0, 0, 0, 0
    try:
        with torch.no_grad():
            for cpu_batch in batches:
                batch = {name: tensor.to(device) for name, tensor in cpu_batch.items()}
                masked_logits, sop_logits = scores(model, batch)
                loss += functional.cross_entropy(masked_logits.float(), batch["labels"], reduction="sum").item()
                guessed += int((masked_logits.argmax(dim=1) == batch["labels"]).sum().item())
                tokens += batch["labels"].numel()
                if sop_logits is not None:
                    right += int((sop_logits.argmax(dim=1) == batch["sop_labels"]).sum().item())
                    pairs += batch["sop_labels"].numel()
    finally:
        model.train(was_training)
    figures = {"heldout_mlm_loss": loss / max(1, tokens), "heldout_mlm_accuracy": guessed / max(1, tokens)}
    return {**figures, "heldout_sop_accuracy": right / pairs} if pairs else figures


def commonest_share(batches: Sequence[Batch]) -> float:
    """The share of the masked tokens that are the commonest of them: what who always says it guesses right."""
    labels = torch.cat([batch["labels"] for batch in batches])
    return float(torch.bincount(labels).max()) / max(1, len(labels))
