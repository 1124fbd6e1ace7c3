"""One strategy at work on a model of a few numbers, for checks of what it promises."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import LambdaLR

from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.strategy_choice import StrategyFacts
from minga.core.spec.run_spec import RunSpec
from minga.testing.violation import Violation, require
from minga.training.replica.replica import Replica
from minga.training.strategy.interface import Strategy

NUMELS: Final = (2, 2, 1)
NUMEL: Final = sum(NUMELS)
UNIT: Final = 256
"""That of most checks: a run takes as many samples as its smallest round has, and a power of 2 keeps sums exact."""
SPEC: Final = RunSpec.from_mapping({"name": "suite"})
CLIPPED: Final = RunSpec.from_mapping({"name": "suite", "averaging": {"codec": "topk"}})


class Trainer:
    """One strategy at work on a model of a few numbers, all 8 at first, under plain gradient descent.

    `dtypes` are those of its tensors. With `is_scheduled` the learning rate of 0.5 is divided by 1, 2, 3 … With
    `has_buffer` it has a buffer of one number, to which each micro-batch adds 1. With `own_norm` the run's codec leaves
    something out, so that each peer clips its own gradient, to this norm.
    """

    def __init__(
        self,
        kind: type[Strategy],
        settings: Mapping[str, Any],
        unit: int = UNIT,
        *,
        dtypes: Sequence[torch.dtype] = (torch.float32,) * len(NUMELS),
        is_scheduled: bool = False,
        has_buffer: bool = False,
        own_norm: float | None = None,
    ) -> None:
        shapes = zip(NUMELS, dtypes, strict=True)
        tensors = [torch.nn.Parameter(torch.full((numel,), 8.0, dtype=dtype)) for numel, dtype in shapes]
        model = torch.nn.ParameterList(tensors)
        self.kind, self.tensors = kind, tensors
        self.buffer = torch.zeros(1) if has_buffer else None
        model.register_buffer("count", self.buffer)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        scheduler = LambdaLR(optimizer, lambda step: 1.0 / (1 + step)) if is_scheduled else None
        spec = SPEC if own_norm is None else CLIPPED
        self.replica = Replica(spec, optimizer, model=model, scheduler=scheduler, max_grad_norm=own_norm)
        self.strategy = kind(threading.Condition(), unit=unit, settings=kind.Settings(**settings))
        self.strategy.begin(self.replica)

    def feed(self, *micro_batches: tuple[float, int]) -> None:
        """Micro-batches by the value of their mean gradients and their samples."""
        for value, samples in micro_batches:
            for tensor in self.tensors:
                tensor.grad = torch.full_like(tensor, value)
            self._take(samples, abs(value))

    def _take(self, samples: int, loss: float) -> None:
        if self.buffer is not None:
            self.buffer.add_(1.0)
        self.strategy.note_loss(loss)
        if self.strategy.micro_batch(samples):
            self.strategy.count(samples)
        self.replica.zero_grad()

    def pull(self, *micro_batches: tuple[float, int]) -> None:
        """The same by the values to which they pull all numbers."""
        for target, samples in micro_batches:
            for tensor in self.tensors:
                tensor.grad = tensor.detach() - target
            self._take(samples, float((self.values() - target).abs().sum()))

    def values(self) -> torch.Tensor:
        """All numbers of the model, as float32."""
        return torch.cat([tensor.detach().float() for tensor in self.tensors])

    def shared_count(self) -> float:
        """What the buffer is in the state that peers share."""
        tensors = self.replica.capture().named_tensors()
        return next(float(tensor) for entry, tensor in tensors if entry.name == "model/count")

    def mean(self, value: float = 0.25) -> torch.Tensor:
        """A mean of the present round with this value everywhere."""
        return torch.full((self.replica.layout_of(self.replica.step).total,), value)

    def seal(self) -> tuple[torch.Tensor, int]:
        """Close the round; what is contributed. Raises `Violation` if that is nothing."""
        self.strategy.close()
        return self.contribution()

    def contribution(self) -> tuple[torch.Tensor, int]:
        """What is contributed to a round that was closed. Raises `Violation` if that is nothing."""
        vector, samples = self.strategy.contribution()
        if vector is None:
            raise Violation(f"{self.kind.__name__}: it contributed nothing")
        return vector, samples

    def contributes(self, value: float, samples: int, what: str) -> None:
        """Require that a mean gradient of `value` is contributed to a round that was closed."""
        mean, weight = self.contribution()
        good = weight == samples and torch.equal(mean[:NUMEL], torch.full((NUMEL,), value))
        require(good, self.kind, f"{what}: contributed {mean} of {weight} samples, not {value} of {samples}")

    def take_back(self) -> None:
        """The round came to nothing."""
        self.strategy.take_back()
        if self.strategy.has_leftover:
            self.strategy.merge()

    def absorb(self, mean: torch.Tensor, fate: ContributionFate = ContributionFate.COUNTED) -> None:
        """The round counted."""
        self.strategy.absorb(self.replica.step + 1, mean, fate)


def facts_for(kind: type[Strategy], settings: Mapping[str, Any]) -> StrategyFacts:
    """The facts of the strategy with these settings."""
    return kind.facts_for(kind.Settings(**settings))


def sends_gradients(facts: StrategyFacts) -> bool:
    """Whether means are those of gradients."""
    return facts.payload == "gradient"
