"""A vector for `benchmarks.codecs` that is like those of training: the gradient of a small ALBERT on the Bible."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks._report import note
from benchmarks._strategy_tasks import GLOBAL_BATCH, TASKS, Subject, run_spec
from minga.recipes.interface import StreamPosition

NOBODY = "0" * 64


def gradient_of_albert(steps: int, folder: Path) -> torch.Tensor:
    """The gradient of 32 samples after so many steps of AdamW, flat; `folder` is for the recipe's files."""
    task = TASKS["albert"]
    subject = Subject(task, run_spec(task, seed=0, rounds=max(2, steps), batch=GLOBAL_BATCH, changes={}), folder)
    model = subject.new_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(task.optimizer["learning_rate"]))
    batches = subject.recipe.batches(subject.files, StreamPosition(NOBODY), GLOBAL_BATCH)
    for step in range(steps + 1):
        optimizer.zero_grad()
        loss = subject.recipe.total_loss(model, next(batches))
        torch.autograd.backward(loss)
        if step % 10 == 0:
            note(f"step {step}: loss {float(loss.detach()):.3f}")
        if step < steps:
            optimizer.step()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
