"""The replica seam: what rounds may ask of whatever is trained.

`minga.training.replica.replica` has the one for real models; simulations have one for models of which only the size
matters.
"""

from __future__ import annotations

from typing import Protocol

import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.training.state.manifest import Manifest
from minga.training.state.snapshot import StateSnapshot


class VectorInterface(Protocol):
    """The vector that is averaged: its layout, its elements, and memory for one."""

    layout: VectorLayout
    numel: int

    def new(self, numel: int | None = None) -> torch.Tensor:
        """A zeroed float32 vector, flat and in CPU memory (on the device `meta` if it has no numbers), of `numel`
        elements if not as long as this one.
        """


class ReplicaInterface(Protocol):
    """One peer's copy of what is trained. All but `fingerprint`, `layout_of` and `project` is for one thread only."""

    step: int
    """Global steps that this state has seen."""

    @property
    def vector(self) -> VectorInterface:
        """What is averaged."""

    def layout_of(self, step: int) -> VectorLayout:
        """The layout of the vector that the round of `step` averages; see `averaging/codecs/round_vectors.py`.

        Any thread may ask.
        """

    def project(self, vector: torch.Tensor | None, weight: int, step: int) -> torch.Tensor | None:
        """What this peer gives to the round of `step`, for its mean gradient over `weight` samples, which stays as it
        is; None for nothing. On any thread.
        """

    def expand(self, mean: torch.Tensor, step: int) -> torch.Tensor:
        """The mean gradient that the mean of the round of `step` stands for; `mean` stays as it is.

        Once for each round that counts, in their order: what `project` left out is known from then on.
        """

    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        """Add the present mean gradients, `weight` times, to an accumulator; False if they are not finite."""

    def zero_grad(self) -> None:
        """Forget the present gradients."""

    def fingerprint(self, mean: torch.Tensor, round_id: str) -> str:
        """32 hexadecimal digits by which peers tell whether they apply the same mean; asked before each `apply`."""

    def apply(self, mean: torch.Tensor, step: int) -> None:
        """Take the optimizer step that leads to global step `step`."""

    def read_values(self) -> torch.Tensor:
        """The parameters as a vector."""

    def write_values(self, values: torch.Tensor) -> None:
        """Set the parameters from such a vector."""

    def capture(self) -> StateSnapshot:
        """A copy of the whole state after the last step."""

    def restore(self, snapshot: StateSnapshot) -> None:
        """Become what `snapshot` holds. Raises `ConfigurationError` if it is of another model or optimizer."""

    def check(self, manifest: Manifest) -> None:
        """Refuse a manifest of another model or optimizer, by `ConfigurationError`."""

    def digest(self) -> str:
        """The state digest, by which peers compare: the hash of the manifest."""
