"""Sketches for tests: some elements of each round, and the means of neighbours."""

from __future__ import annotations

import torch

from minga.averaging.codecs.layout import Shape
from minga.averaging.sketches.interface import Sketch

ENTRIES = {
    "some_elements": "tests.worlds.sketches:SomeElements",
    "block_means": "tests.worlds.sketches:BlockMeans",
}


class SomeElements(Sketch):
    """A third of the elements, others in each round: which, follows from the step alone."""

    name = "some_elements"

    def shapes(self, step: int) -> tuple[int | Shape, ...]:
        return (-(-self.whole.total // 3),)

    def _chosen(self, step: int) -> torch.Tensor:
        order = torch.randperm(self.whole.total, generator=torch.Generator().manual_seed(step))
        return order[: self.layout(step).total]

    def project(self, vector: torch.Tensor, step: int) -> torch.Tensor:
        return vector[self._chosen(step)]

    def expand(self, values: torch.Tensor, step: int) -> torch.Tensor:
        whole = torch.zeros(self.whole.total)
        whole[self._chosen(step)] = values
        return whole


class BlockMeans(Sketch):
    """One number for each two neighbours; a different pairing in odd rounds, with a layout of its own."""

    name = "block_means"
    version = 2

    def shapes(self, step: int) -> tuple[int | Shape, ...]:
        return (self._groups(step),)

    def part(self, step: int) -> str:
        return f"pairing {step % 2}"

    def _groups(self, step: int) -> int:
        return (self.whole.total + step % 2 + 1) // 2

    def _group(self, step: int) -> torch.Tensor:
        return torch.arange(self.whole.total).add(step % 2).div(2, rounding_mode="floor")

    def _lengths(self, step: int) -> torch.Tensor:
        return torch.bincount(self._group(step), minlength=self._groups(step)).float().sqrt()

    def project(self, vector: torch.Tensor, step: int) -> torch.Tensor:
        return torch.zeros(self._groups(step)).index_add_(0, self._group(step), vector) / self._lengths(step)

    def expand(self, values: torch.Tensor, step: int) -> torch.Tensor:
        return (values / self._lengths(step))[self._group(step)]
