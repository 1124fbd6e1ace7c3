"""Processes that train in one run with a framework each: scripts that say at last, as JSON, what became of them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "XDG_DATA_HOME": str(folder / "data"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    results = []
    try:
        for number, script in enumerate(scripts):
            errors = (folder / f"errors{number}").open("w", encoding="utf-8")
            with errors:
                processes.append(
                    forked.start(
                        "-c",
                        PRELUDE + script,
                        str(folder),
                        str(number),
                        cwd=folder,
                        env=environment,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                    )
                )
        for process in processes:
            while process.poll() is None and all(each.poll() in (None, 0) for each in processes):
                time.sleep(0.05)
            failed = next((n for n, each in enumerate(processes) if each.poll() not in (None, 0)), None)
            assert failed is None, (folder / f"errors{failed}").read_text("utf-8")
            assert process.stdout is not None
            results.append(json.loads(process.stdout.read().splitlines()[-1]))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
    return results
