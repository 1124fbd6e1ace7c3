"""Optimizers that have two points: one at which gradients are taken, and an average of it that is evaluated.

`schedulefree` and others like it have `train()` and `eval()`, which move the parameters from one to the other in place.
What peers average, compare, serve and keep is the training point, whatever the program evaluates meanwhile. The way
there and back rounds, so that a peer that evaluates would drift from the others: the training point is kept aside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


class TrainingPoint:
    """Knows at which point the parameters of `optimizer` are; with most optimizers there is but one.

    The optimizer is brought to its training point at once: before it has a state that costs nothing, and afterwards it
    would take the state of others for that of its other point.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer  # torch's own class knows no `train` and `eval`
        self.has_two = all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))
        """Whether there are two points; such an optimizer also counts in the numbers of its parameter groups."""
        self._aside: list[torch.Tensor] | None = None
        if self.has_two:
            self._optimizer.train()

    @property
    def is_away(self) -> bool:
        """Whether the parameters are where they are evaluated."""
        return self._aside is not None

    @torch.no_grad()
    def leave(self) -> None:
        """The program evaluates."""
        if self.has_two and self._aside is None:
            self._aside = [parameter.detach().clone() for parameter in self._parameters()]
            self._optimizer.eval()

    @torch.no_grad()
    def come_back(self) -> None:
        """The program trains."""
        if self._aside is None:
            return
        aside, self._aside = self._aside, None
        self._optimizer.train()
        for parameter, value in zip(self._parameters(), aside, strict=True):
            parameter.copy_(value)

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Inside, the parameters are at the training point."""
        if self._aside is None:
            yield
            return
        self.come_back()
        try:
            yield
        finally:
            self.leave()

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
