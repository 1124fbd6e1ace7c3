"""One peer of the memory benchmark: a model that is only large, with gradients that cost next to nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from benchmarks._worker import Channel

ROW, MOST_ROWS = 4096, 4096
"""Matrices of the model have 4096 columns, and at most as many rows."""
SHORTEST_ROUND_S = 0.05


def large_model(parameters: int) -> torch.nn.ParameterList:
    """Matrices with about so many elements together."""
    rows, shapes = parameters // ROW, []
    while rows:
        shapes.append(min(rows, MOST_ROWS))
        rows -= shapes[-1]
    return torch.nn.ParameterList(torch.nn.Parameter(torch.full((count, ROW), 0.5)) for count in shapes)


def resident_bytes(name: str = "VmRSS:") -> int:
    """Resident memory of this process now, or (`VmHWM:`) the most since the last `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def reset_peak() -> None:
    """Begin to measure the largest resident memory anew; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")


def warm_up() -> None:
    """A step of a tiny model: what torch loads for the first one is no part of what a peer adds."""
    parameter = torch.nn.Parameter(torch.zeros(8))
    torch.autograd.backward(parameter.sum())
    torch.optim.SGD([parameter], lr=0.1).step()


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """Host or join, then train until told to exit, and answer what is asked between two micro-batches."""
    torch.set_num_threads(1)
    import minga

    warm_up()
    minga.join, minga.host, minga.Optimizer, minga.PeerOptions, minga.RunSpec  # noqa: B018  (their rooms are imported)
    base = resident_bytes()
    reset_peak()
    model = large_model(settings["parameters"])
    inner = torch.optim.SGD(model.parameters(), lr=1e-4)
    options = minga.PeerOptions(ephemeral=True, directory=Path(settings["directory"]), host="127.0.0.1")
    if settings["link"]:
        here = minga.join(settings["link"], options)
    else:
        here = minga.host(minga.RunSpec.from_toml(settings["spec"]), options)
    seen: Counter[str] = Counter()
    dies = threading.Event()

    def note(event: minga.Event) -> None:
        seen[event.kind] += 1
        if event.kind == "round.begun" and dies.is_set():
            threading.Timer(SHORTEST_ROUND_S, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()

    here.subscribe(note)
    if not settings["link"]:
        channel.send(link=str(here.link))
    optimizer = minga.Optimizer(inner, here, model=model)
    channel.send(vector_bytes=sum(p.nbytes for p in model.parameters()))
    while True:
        while (command := channel.poll()) is not None:
            if command["do"] == "exit":
                here.close()
                return
            if command["do"] == "mark":
                reset_peak()
            elif command["do"] == "disturb":
                with torch.no_grad():
                    next(model.parameters())[0].add_(1.0)
            elif command["do"] == "die":
                dies.set()
            channel.send(
                base=base,
                peak=resident_bytes("VmHWM:"),
                now=resident_bytes(),
                step=optimizer.global_step,
                saved=seen["checkpoint.saved"],
                synced=seen["sync.finished"],
                lost=seen["round.member_lost"],
            )
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter).uniform_(-1.0, 1.0)
        optimizer.step(samples=1)
