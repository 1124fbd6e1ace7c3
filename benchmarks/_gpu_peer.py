"""The process of one of two peers that train on one card."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from benchmarks._gpu_workloads import gpu_workload
from benchmarks._worker import Channel


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """Enter the run, and train for some seconds."""
    import minga

    torch.set_num_threads(1)
    work = gpu_workload(settings["workload"], settings["device"], is_tiny=settings["is_tiny"])
    options = minga.PeerOptions(ephemeral=True, directory=Path(settings["directory"]), host="127.0.0.1")
    if settings["link"]:
        entered = minga.join(settings["link"], options)
    else:
        entered = minga.host(minga.RunSpec.from_toml(settings["spec"]), options)
    channel.send(link=str(entered.link))
    inner = minga.optim.AdamW(work.model.parameters(), lr=1e-4)
    optimizer = minga.Optimizer(inner, entered, model=work.model)
    channel.send(ready=True)
    while (command := channel.poll()) is None:
        optimizer.follow(0.02)
    began = time.perf_counter()
    micro_batches, steps, held_s = 0, optimizer.global_step, list[float]()
    while time.perf_counter() - began < command["seconds"]:
        loss = work.loss()
        loss.backward()
        before, asked = optimizer.global_step, time.perf_counter()
        optimizer.step(samples=work.samples, loss=loss)
        if optimizer.global_step != before:
            held_s.append(time.perf_counter() - asked)
        micro_batches += 1
    seconds = time.perf_counter() - began
    channel.send(
        samples_per_s=micro_batches * work.samples / seconds, steps=optimizer.global_step - steps, held_s=held_s
    )
    while channel.poll() is None:
        optimizer.follow(0.02)
    entered.close()
