"""The process of one peer that trains with micro-batches that are pauses, while everything else is real.

It works in a network namespace if its settings name one, and behind the address `host`. Its `role` is "trainer" unless
they say "auxiliary".
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from benchmarks._worker import Channel
from minga import Event, Optimizer, PeerOptions, RunSpec, host, join
from tests.netlab import enter


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """Train until told to end; then tell when each step was applied and with how many samples of this peer."""
    if settings.get("namespace"):
        enter(settings["namespace"])  # before anything opens a socket or starts a thread that does
    torch.set_num_threads(1)
    role = settings.get("role", "trainer")
    options = PeerOptions(role, ephemeral=True, directory=Path(settings["directory"]), host=settings["host"])
    link, samples = settings["link"], settings["micro_batch"]
    entered = join(link, options) if link else host(RunSpec.from_toml(settings["spec"]), options)
    applied: list[tuple[int, float, int]] = []

    def note(event: Event) -> None:
        if event.kind == "step.applied":
            step, given = (int(str(event.fields[key])) for key in ("step", "samples"))
            applied.append((step, event.time, given))
            channel.send(step=step)

    entered.subscribe(note)
    channel.send(link=str(entered.link))
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(settings["numel"]))
    optimizer = Optimizer(torch.optim.SGD([parameter], lr=0.01), entered)
    while (command := channel.poll()) is None:
        if role == "auxiliary":
            optimizer.follow(settings["micro_batch_s"])
            continue
        time.sleep(settings["micro_batch_s"])
        parameter.grad = parameter.detach().clone()
        optimizer.step(samples=samples)
        optimizer.zero_grad()
    if command["do"] != "exit":
        channel.send(applied=applied)
    entered.close()
