"""A replica of two numbers, of which every gradient is 1: for tests of what lies around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.training.lineage import Lineage
from minga.training.replica.gradient_sum import GradientSum
from minga.training.replica.interface import LoopReport, ReplicaInterface
from minga.training.state.snapshot import StateSnapshot


class OnesVector:
    """Memory for the two numbers."""

    layout = VectorLayout((2,), "float32")
    numel = parameters_numel = 2

    def new(self) -> torch.Tensor:
        return torch.zeros(2)


class OnesReplica(ReplicaInterface):
    """Adds ones to accumulators, unless `is_finite` is False, and calls `before_adding` first."""

    strategy, loop, moved = "synchronous", LoopReport(), ()

    def __init__(self) -> None:
        self.step, self.lineage = 0, Lineage()
        self.is_finite = True
        self.before_adding: Callable[[], None] = lambda: None
        self.applied: list[int] = []
        """The steps that were applied."""

    @property
    def vector(self) -> OnesVector:
        return OnesVector()

    def new_sum(self) -> GradientSum:
        return GradientSum(self)

    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        self.before_adding()
        if self.is_finite:
            vector.add_(weight)
        return self.is_finite

    def define_shared(self, shared: Callable[[], Mapping[str, torch.Tensor]], *, optimizer: bool) -> None:
        pass

    def hand_over(self, strategy: str, *, keeps_uncounted: bool) -> None:
        self.strategy = strategy

    def restore(self, snapshot: StateSnapshot) -> None:
        self.step, self.lineage = snapshot.step, snapshot.lineage

    def clip_own(self, mean: torch.Tensor) -> float:
        return 1.0

    def apply(self, mean: torch.Tensor, step: int) -> None:
        self.step = step
        self.applied.append(step)
