"""What lossy uploads of one peer leave out, kept for its next round: error feedback, one for all codecs that need it.

Everything is counted as *mass*, values times samples. A peer with the mean gradient g of n samples and the residual e
contributes (n g + e) / n; what of that mass no mean takes up becomes the next e:

                                    ┌─ the round has a result ─▶ commit     e = n g + e - what was counted of it
    Residual ─ seal ─▶ Encoder ─────┤
                                    └─ it came to nothing ─────▶ take_back  e stays as it was

Between seal and commit e is only read, so a repair sends the same bytes again. Nothing is lost but by rounding:
what all rounds applied and what all residuals hold is what all peers contributed.

Source: error feedback (Seide et al. 2014, Karimireddy et al. 2019), with the mass form for weights that change.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final

import torch

from minga.averaging.codecs.interface import CONTRIBUTION_LIMIT
from minga.averaging.codecs.layout import Chunk
from minga.averaging.codecs.tensor_bytes import as_bytes

MOST_ROUNDS_KEPT: Final = 10
"""A residual that was last committed longer ago than so many rounds is forgotten: the model is elsewhere by now."""


class Fate(enum.Enum):
    """What became of one chunk of a contribution."""

    COUNTED = "counted"
    """Its encoded values are in the mean; also where nobody says whether they are."""
    WHOLE = "whole"
    """Its values are in the mean without having been encoded: this peer summed them up itself."""
    LEFT_OUT = "left out"
    """The mean was made without it."""


def rounds_between(since: int, step: int) -> int:
    """How many rounds there are from step `since` on, before `step`, if each step has one."""
    return step - since


class Residual:
    """The residual of one peer, for vectors of `numel` elements. Use it in one round at a time.

    `age` tells how many rounds there are for its vector from one step on until another one: where several vectors take
    turns, not each step has one.
    """

    def __init__(
        self, numel: int, *, device: torch.device | str = "cpu", age: Callable[[int, int], int] = rounds_between
    ) -> None:
        self.mass = torch.zeros(numel, dtype=torch.float32, device=device)
        self.step = 0
        """The step whose round was committed last."""
        self._age = age
        self._sealed: int | None = None  # the step of the contribution that is neither committed nor taken back

    def seal(self, vector: torch.Tensor, weight: int, step: int) -> Encoder:
        """The contribution of `step`: a mean over `weight` samples, neither to be changed before commit or take_back.

        Raises `RuntimeError` if the one before was neither committed nor taken back.
        """
        if self._sealed is not None:
            raise RuntimeError("the last contribution is neither committed nor taken back")
        if step < self.step or self._age(self.step, step) > MOST_ROUNDS_KEPT:
            self.mass.zero_()
        self._sealed = step
        return Encoder(vector, weight, self)

    def close(self, *, committed: bool) -> None:
        """The contribution was committed or taken back."""
        if committed and self._sealed is not None:
            self.step = self._sealed
        self._sealed = None


class Encoder:
    """One contribution: its chunks as values and as bytes. Without a `residual` these are those of the vector alone."""

    def __init__(self, vector: torch.Tensor, weight: int, residual: Residual | None = None) -> None:
        self.weight = weight
        self._vector, self._residual = vector, residual

    def values(self, chunk: Chunk) -> torch.Tensor:
        """The mean that this peer stands for, what was left out before included; not to be changed."""
        mean = self._vector[chunk.start : chunk.stop]
        if self._residual is None:
            return mean
        return torch.add(mean, self._residual.mass[chunk.start : chunk.stop], alpha=1.0 / self.weight)

    def encode(self, chunk: Chunk, buffer: memoryview) -> memoryview:
        """The bytes to upload, in `buffer` or in place; the same however often. Raises `NonFiniteError`."""
        codec, values = chunk.codecs.upload, self.values(chunk)
        if codec.is_identity:
            return as_bytes(values)
        return buffer[: codec.encode(values, buffer[: chunk.upload_bytes], limit=CONTRIBUTION_LIMIT)]

    def commit(self, fates: Iterable[tuple[Chunk, Fate]]) -> None:
        """The round has a result: keep what of each chunk it left out. Takes as long as encoding everything."""
        if self._residual is None:
            return
        for chunk, fate in fates:
            mass = self._residual.mass[chunk.start : chunk.stop]
            if fate is Fate.WHOLE:
                mass.zero_()
                continue
            sent = self._sent(chunk) if fate is Fate.COUNTED else None
            mass.add_(self._vector[chunk.start : chunk.stop], alpha=self.weight)
            if sent is not None:
                mass.sub_(sent, alpha=self.weight)
        self._residual.close(committed=True)

    def take_back(self) -> None:
        """The round came to nothing: the vector counts again elsewhere, and the residual is as it was."""
        if self._residual is not None:
            self._residual.close(committed=False)

    def _sent(self, chunk: Chunk) -> torch.Tensor:
        """What others decode."""
        room = torch.empty(chunk.upload_bytes, dtype=torch.uint8, device=self._vector.device)
        decoded = torch.empty_like(self._vector[chunk.start : chunk.stop])
        chunk.codecs.upload.decode(self.encode(chunk, as_bytes(room)), decoded)
        return decoded
