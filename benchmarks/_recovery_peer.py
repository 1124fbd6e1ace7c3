"""The process of one peer that averages a vector step after step and tells all it does, for recovery and partitions.

It works in a network namespace if its settings name one, and behind the address `host`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from benchmarks._worker import Channel
from minga import Event, Optimizer, PeerOptions, RunSpec, host, join
from tests.netlab import enter as enter_namespace

SAMPLES = 8
QUIET = ("peer.", "sync.progress", "member.status", "state.", "board.")
"""Events of no interest."""


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """Wait for the command to enter, then train until told to end."""
    if settings.get("namespace"):
        enter_namespace(settings["namespace"])  # before anything opens a socket or starts a thread that does
    torch.set_num_threads(1)
    channel.send(event="waiting", t=time.monotonic(), fields={})
    enter = channel.receive()
    options = PeerOptions(
        role=enter["role"], ephemeral=True, directory=Path(settings["directory"]), host=settings["host"]
    )
    entered = join(enter["link"], options) if enter.get("link") else host(RunSpec.from_toml(settings["spec"]), options)

    def tell(event: Event) -> None:
        if not event.kind.startswith(QUIET):
            channel.send(event=event.kind, t=event.time, fields=event.fields)

    about = {"peer_id": entered.peer_id, "run_id": entered.run_id, "link": str(entered.link)}
    channel.send(event="entered", t=time.monotonic(), fields=about)
    entered.subscribe(tell)
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(settings["numel"]))
    gradient = torch.randn(settings["numel"], generator=torch.Generator().manual_seed(settings["index"]))
    optimizer = Optimizer(torch.optim.SGD([parameter], lr=0.01), entered)
    seen = 0
    while channel.poll() is None:
        time.sleep(settings["micro_batch_s"])
        parameter.grad = gradient
        optimizer.step(samples=SAMPLES)
        if optimizer.global_step != seen:
            seen = optimizer.global_step
            digest = blake3(parameter.detach().numpy().data.cast("B")).hexdigest()
            standing = {"step": seen, "digest": digest, "link": str(entered.link)}
            channel.send(event="standing", t=time.monotonic(), fields=standing)
        optimizer.zero_grad()
    entered.close()
