"""Sketches for tests: some elements of each round, the means of blocks, and one side of a low rank."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from minga.averaging.codecs.layout import Shape, VectorLayout
from minga.averaging.sketches.interface import Sketch

ENTRIES = {
    "some_elements": "tests.worlds.sketches:SomeElements",
    "block_means": "tests.worlds.sketches:BlockMeans",
    "low_rank": "tests.worlds.sketches:LowRank",
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

    def _sizes(self, step: int) -> torch.Tensor:
        first = torch.arange(self.whole.total).add(step % 2).div(2, rounding_mode="floor")
        return torch.bincount(first, minlength=self._groups(step))

    def project(self, vector: torch.Tensor, step: int) -> torch.Tensor:
        sizes = self._sizes(step)
        sums = torch.stack([part.sum() for part in vector.split(sizes.tolist())])
        return sums / sizes.float().sqrt()

    def expand(self, values: torch.Tensor, step: int) -> torch.Tensor:
        sizes = self._sizes(step)
        return (values / sizes.float().sqrt()).repeat_interleave(sizes)


class LowRank(Sketch):
    """Of each matrix that is large enough the image under an orthonormal basis of two columns; all else as it is.

    Rounds take turns: one averages the image of the rows and so finds the basis of the columns, and the reverse.
    """

    name = "low_rank"
    rank = 2

    def __init__(self, whole: VectorLayout) -> None:
        super().__init__(whole)
        chance = torch.Generator().manual_seed(1)
        self._bases = {
            f"{side}{number}": _orthonormal(torch.randn(shape[axis], self.rank, generator=chance))
            for number, shape in enumerate(whole.shapes)
            if self._is_low(shape)
            for axis, side in enumerate(("left", "right"))
        }

    def _is_low(self, shape: Shape) -> bool:
        return len(shape) == 2 and min(shape) > 2 * self.rank

    def shapes(self, step: int) -> tuple[int | Shape, ...]:
        return tuple((shape[step % 2], self.rank) if self._is_low(shape) else shape for shape in self.whole.shapes)

    def part(self, step: int) -> str:
        return ("rows", "columns")[step % 2]

    def basis(self) -> Mapping[str, torch.Tensor]:
        return self._bases

    def project(self, vector: torch.Tensor, step: int) -> torch.Tensor:
        found = []
        for number, piece in self._split(vector, self.whole):
            if self._is_low(shape := self.whole.shapes[number]):
                matrix = piece.view(shape)
                turned, side = (matrix, "right") if step % 2 == 0 else (matrix.T, "left")
                piece = (turned @ self._bases[f"{side}{number}"]).reshape(-1)
            found.append(piece)
        return torch.cat(found)

    def expand(self, values: torch.Tensor, step: int) -> torch.Tensor:
        found = []
        for number, piece in self._split(values, self.layout(step)):
            if self._is_low(shape := self.whole.shapes[number]):
                factor = piece.view(shape[step % 2], self.rank)
                side = "right" if step % 2 == 0 else "left"
                matrix = factor @ self._bases[f"{side}{number}"].T
                piece = (matrix if step % 2 == 0 else matrix.T).reshape(-1)
            found.append(piece)
        return torch.cat(found)

    def absorb(self, mean: torch.Tensor, step: int) -> None:
        for number, piece in self._split(mean, self.layout(step)):
            if self._is_low(shape := self.whole.shapes[number]):
                side = "left" if step % 2 == 0 else "right"
                self._bases[f"{side}{number}"].copy_(_orthonormal(piece.view(shape[step % 2], self.rank)))

    def _split(self, vector: torch.Tensor, layout: VectorLayout) -> list[tuple[int, torch.Tensor]]:
        return list(enumerate(vector.split(list(layout.numels))))


def _orthonormal(columns: torch.Tensor) -> torch.Tensor:
    """Gram and Schmidt in float64; a column that depends on those before it gives way to a fixed one."""
    found: list[torch.Tensor] = []
    spare = torch.Generator().manual_seed(2)
    for column in columns.double().T:
        rest = column / column.abs().max().clamp(min=1e-300)
        for _ in range(2):
            for other in found:
                rest = rest - other * (other @ rest)
        while not float(rest.norm()) > 1e-6:
            rest = torch.randn(len(rest), generator=spare, dtype=torch.float64)
            for other in found:
                rest = rest - other * (other @ rest)
        found.append(rest / rest.norm())
    return torch.stack(found, 1).float()
