"""What a framework has in the place of a learning-rate scheduler: one that follows the run."""

from __future__ import annotations

from typing import Any

import torch


class GlobalSchedule:
    """Shows the learning rates of `optimizer`, and leaves them alone: `minga.Optimizer` steps the real scheduler.

    A framework steps its scheduler once for each of its own optimizer calls, of which a global step takes many. Between
    the two it asks, for its logs, by what rates the call was made.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._used: list[float] | None = None
        self._is_stepped = True  # since the last call; a loop may leave it out
        optimizer.register_step_pre_hook(self._note)

    def _note(self, *_: Any) -> None:
        self._used = self._present() if self._is_stepped else None
        self._is_stepped = False

    def _present(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def step(self, *_: Any, **__: Any) -> None:
        """Show the present rates from now on. The schedule advances with the global step."""
        self._used, self._is_stepped = None, True

    def get_last_lr(self) -> list[float]:
        """The learning rate of each parameter group."""
        return self._present() if self._used is None else self._used

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the schedule belongs to the state of the run."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take no notice of an earlier state: the schedule belongs to the state of the run."""
