"""Processes that train in one run with a framework each: scripts that say at last, as JSON, what became of them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.worlds import forked

PRELUDE = """
import json, pathlib, sys, torch, minga
from minga.core.thread_guard import guard_threads

guard_threads()
torch.set_num_threads(1)
torch.manual_seed(7)
folder, role = pathlib.Path(sys.argv[1]), sys.argv[2]


def enter(spec, number=0):
    # The peer of this process in the run, of which the first process writes the link.
    options = minga.PeerOptions(ephemeral=True, directory=folder / (role + str(number)), host="127.0.0.1")
    link = folder / ("link" + str(number))
    if role == "0":
        peer = minga.host(spec, options)
        link.with_suffix(".part").write_text(str(peer.link))
        link.with_suffix(".part").replace(link)
        return peer
    while not link.exists():
        __import__("time").sleep(0.02)
    return minga.join(link.read_text(), options)


def say(**results):
    print(json.dumps(results), flush=True)


def spec_of(batch, steps, **sections):
    return {"name": "test", "model": {"recipe": "custom"}, "network": {"relay": "none"},
            "averaging": {"codec": "float32"}, "training": {"target_batch_size": batch, "stop_after_steps": steps},
            **sections}


def network():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def values(model):
    return [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]


def rows(samples, seed):
    return torch.randn(samples, 6, generator=torch.Generator().manual_seed(seed))
"""
"""What each script begins with."""


def results_of(folder: Path, scripts: Iterable[str]) -> list[dict[str, Any]]:
    """Run these scripts together, as processes "0", "1", …, and return what each says at last."""
    processes: list[subprocess.Popen[str]] = []
    own = {"OMP_NUM_THREADS": "1", "XDG_DATA_HOME": str(folder / "data"), "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **own}
    try:
        for number, script in enumerate(scripts):
            words = ("-c", PRELUDE + script, str(folder), str(number))
            with (folder / f"said{number}").open("w") as said, (folder / f"errors{number}").open("w") as errors:
                options: dict[str, Any] = {"cwd": folder, "env": environment, "stdout": said, "stderr": errors}
                needs = (*forked.FRAMEWORKS, *(forked.LIGHTNING if "lightning" in script else ()))
                processes.append(forked.start(*words, needs=needs, **options))
        while any(process.poll() is None for process in processes):
            time.sleep(0.05)
            if failed := [number for number, process in enumerate(processes) if process.poll() not in (None, 0)]:
                raise AssertionError((folder / f"errors{failed[0]}").read_text("utf-8"))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    assert not any(process.returncode for process in processes)
    lines = [(folder / f"said{number}").read_text("utf-8").splitlines()[-1] for number in range(len(processes))]
    return [json.loads(line) for line in lines]


def network() -> nn.Module:
    """The network of the scripts, as it begins."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def rows(samples: int, seed: int) -> torch.Tensor:
    """Data that the scripts have, too."""
    return torch.randn(samples, 6, generator=torch.Generator().manual_seed(seed))


def reference(
    batches: list[torch.Tensor], *, rates: list[float], labels: torch.Tensor | None = None, momentum: float = 0.9
) -> list[float]:
    """What a plain loop makes of the network: SGD, the gradient clipped to norm 1."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=momentum)
    for batch, rate in zip(batches, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        out = model(batch)
        loss = out.square().mean() if labels is None else nn.functional.cross_entropy(out, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]
