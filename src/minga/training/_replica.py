"""This peer's copy of what is trained: model, optimizer and scheduler, as the rounds see it."""

from __future__ import annotations

import torch
from torch.optim.lr_scheduler import LRScheduler

from minga.core._run_spec import RunSpec
from minga.training._manifest import Manifest
from minga.training._snapshot import StateSnapshot
from minga.training._state_dict import TrainingState
from minga.training._vector import ParameterVector


class Replica:
    """Applies averaged vectors to a model exactly as every other peer does. Use it on one thread only.

    `model` gives names and buffers; without it the state has the optimizer's parameters only.
    """

    def __init__(
        self,
        spec: RunSpec,
        optimizer: torch.optim.Optimizer,
        *,
        model: torch.nn.Module | None = None,
        scheduler: LRScheduler | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self.optimizer, self.scheduler, self.max_grad_norm = optimizer, scheduler, max_grad_norm
        self.step = 0
        """Global steps that this state has seen."""
        averaged = spec.training.buffers == "average"
        buffers = list(model.buffers()) if model is not None and averaged else []
        self.vector = ParameterVector(optimizer, buffers, spec.averaging.codec)
        self._state = TrainingState(optimizer, model=model, scheduler=scheduler, include_buffers=averaged)

    def accumulate(self, vector: torch.Tensor, samples: int) -> bool:
        """Add the present mean gradients of `samples` samples to an accumulator; False if they are not finite."""
        return self.vector.accumulate(vector, samples)

    def apply(self, mean: torch.Tensor, step: int) -> None:
        """Take the optimizer step that leads to global step `step`: gradients from `mean`, clipping, scheduler."""
        self.vector.load(mean)
        if self.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.vector.parameters(), self.max_grad_norm)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
        self.step = step

    def capture(self) -> StateSnapshot:
        """A copy of the whole state, in CPU memory."""
        return self._state.capture(self.step)

    def restore(self, snapshot: StateSnapshot) -> None:
        """Become what `snapshot` holds. Raises `ConfigurationError` if it is of another model or optimizer."""
        self._state.restore(snapshot)
        self.optimizer.zero_grad()
        self.step = snapshot.step

    def check(self, manifest: Manifest) -> None:
        """Refuse a manifest of another model or optimizer, by `ConfigurationError`."""
        self._state.check(manifest)

    def digest(self) -> str:
        """The state digest, by which peers compare: the hash of the manifest."""
        return self._state.digest(self.step)
