"""The process of one peer in the crowd: its micro-batches are pauses, so all that it computes is for the others."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks._crowd_counts import Counts
from benchmarks._worker import Channel
from minga import Event, Optimizer, PeerOptions, RunSpec, host, join

BARE_STEPS = 5


def bare_s(settings: dict[str, Any]) -> float:
    """Processor seconds of a step of the same loop without minga: pauses, gradients, their sum, the optimizer."""
    parameter = torch.nn.Parameter(torch.randn(settings["numel"]))
    optimizer = torch.optim.SGD([parameter], lr=0.01)
    total, begun_s = torch.zeros(settings["numel"]), 0.0
    for step in range(BARE_STEPS + 1):
        if step == 1:  # the first has more to do
            begun_s = time.thread_time()
        for _ in range(settings["micro_batches"]):
            time.sleep(settings["micro_batch_s"])
            total += parameter.detach().clone()
        parameter.grad = total / settings["micro_batches"]
        optimizer.step()
        optimizer.zero_grad()
        total.zero_()
    return (time.thread_time() - begun_s) / BARE_STEPS


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """Wait for the command to enter, then train until told to end, and answer what was used and done so far."""
    torch.set_num_threads(1)
    channel.send(bare_s=bare_s(settings))
    link = channel.receive()["link"]
    options = PeerOptions("trainer", ephemeral=True, directory=Path(settings["directory"]), host="127.0.0.1")
    entered = join(link, options) if link else host(RunSpec.from_toml(settings["spec"]), options)
    applied: list[float] = []
    counts = Counts()

    def note(event: Event) -> None:
        if event.kind == "step.applied":
            applied.append(event.time)

    entered.subscribe(note)
    channel.send(link=str(entered.link))
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(settings["numel"]))
    optimizer = Optimizer(torch.optim.SGD([parameter], lr=0.01), entered)
    while True:
        while (command := channel.poll()) is None:
            time.sleep(settings["micro_batch_s"])
            parameter.grad = parameter.detach().clone()
            optimizer.step(samples=1)
            optimizer.zero_grad()
        if command["do"] == "exit":
            break
        if command["do"] == "count":
            entered.on_loop(counts.install)
        used = os.times()
        told = {"cpu_s": used.user + used.system, "step": optimizer.global_step, "at_s": time.monotonic()}
        channel.send(**told, totals=dict(counts.totals), methods=dict(counts.methods), applied=applied)
    entered.close()
