"""The process of one peer in a real partition: takes short steps in its namespace, and tells the state after each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from benchmarks._worker import Channel
from minga import Optimizer, PeerOptions, RunSpec, host, join
from tests.netlab import enter


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """Train until told to end."""
    enter(settings["namespace"])  # before anything opens a socket or starts a thread that does
    torch.set_num_threads(1)
    options = PeerOptions(ephemeral=True, directory=Path(settings["directory"]), host=settings["host"])
    link = settings["link"]
    entered = join(link, options) if link else host(RunSpec.from_toml(settings["spec"]), options)
    channel.send(link=str(entered.link))
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(settings["numel"]))
    gradient = torch.randn(settings["numel"], generator=torch.Generator().manual_seed(settings["index"]))
    optimizer = Optimizer(torch.optim.SGD([parameter], lr=0.01), entered)
    seen = 0
    while channel.poll() is None:
        time.sleep(settings["micro_batch_s"])
        parameter.grad = gradient
        optimizer.step(samples=settings["micro_batch"])
        if optimizer.global_step != seen:
            seen = optimizer.global_step
            digest = blake3(parameter.detach().numpy().data.cast("B")).hexdigest()
            channel.send(step=seen, digest=digest, t=time.monotonic())
        optimizer.zero_grad()
    entered.close()
