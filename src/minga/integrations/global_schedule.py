"""What a framework has in the place of a learning-rate scheduler: one that follows the run."""

from __future__ import annotations

from typing import Any

import torch


class GlobalSchedule:
    """Shows the learning rates of `optimizer`, and leaves them alone: `minga.Optimizer` steps the real scheduler.

    A framework steps its scheduler once for each of its own optimizer calls, of which a global step takes many.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, *_: Any, **__: Any) -> None:
        """Do nothing: the schedule advances with the global step."""

    def get_last_lr(self) -> list[float]:
        """The learning rate of each parameter group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the schedule belongs to the state of the run."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take no notice of an earlier state: the schedule belongs to the state of the run."""
