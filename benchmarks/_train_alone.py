"""What one process gets by ordinary large-batch training, for comparison with a swarm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from minga.core.spec.run_spec import RunSpec
from minga.simulation.swarm.classification import Classification


def train_alone(spec: RunSpec, steps: Mapping[int, Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor, list[float]]:
    """What one process gets by ordinary large-batch training: step `s` takes all samples of `steps[s]` at once.

    Returns the parameters at the start and at the end, and the held-out loss after each step.
    """
    task = Classification(spec)
    start, losses = task.parameters(), []
    for step in sorted(steps):
        task.optimizer.zero_grad()
        task.backward(steps[step])
        if spec.optimizer.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(task.model.parameters(), spec.optimizer.max_grad_norm)
        task.optimizer.step()
        task.scheduler.step()
        losses.append(task.held_out_loss())
    return start, task.parameters(), losses
