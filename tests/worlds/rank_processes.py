"""The processes of one peer: scripts that meet by `torch.distributed` and say as JSON what has become of them.

A script finds its `rank`, the `size` of the group, `folder`, where the store of the group lies, and further `words`. A
process alone is no group.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import minga
from tests.worlds import forked

PRELUDE = """
import json, os, pathlib, sys, time, torch, minga
import torch.distributed as dist

torch.set_num_threads(1)
folder, words = pathlib.Path(sys.argv[1]), sys.argv[2:]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if size > 1:
    dist.init_process_group("gloo", init_method="file://" + str(folder / "store"), rank=rank, world_size=size)


def enter():
    # The peer of this process: rank 0 of a group hosts the run of `write_spec`, and a process alone joins it.
    options = minga.PeerOptions(ephemeral=True, directory=folder / f"peer-of-{size}", host="127.0.0.1")
    link = folder / "link"
    if size == 1:
        while not link.exists():
            time.sleep(0.02)
        return minga.join(link.read_text(), options)
    if rank:
        return None
    peer = minga.host(minga.RunSpec.from_toml((folder / "run.toml").read_text()), options)
    link.with_suffix(".part").write_text(str(peer.link))
    link.with_suffix(".part").replace(link)
    return peer


def say(**found):
    print(json.dumps(found), flush=True)
"""
"""What each script begins with."""


def write_spec(folder: Path, local: dict[str, Any] | None = None, **training: Any) -> minga.RunSpec:
    """The run that scripts in this folder enter."""
    spec = minga.RunSpec.from_mapping(
        {
            "name": "ranks",
            "model": {"recipe": "custom"},
            "training": {"target_batch_size": 32, **training},
            "strategy": {} if local is None else {"local": local},
            "averaging": {"codec": "float32"},
            "checkpoints": {"every_steps": 0},
        }
    )
    (folder / "run.toml").write_text(spec.to_toml())
    return spec


def start_rank(script: str, folder: Path, *words: str, rank: int = 0, size: int = 1) -> subprocess.Popen[str]:
    """One process."""
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    command, pipe = ("-c", PRELUDE + script, str(folder), *words), subprocess.PIPE
    return forked.start(*command, env=environment, stdout=pipe, stderr=pipe)


def start_ranks(script: str, folder: Path, *words: str, size: int = 2) -> list[subprocess.Popen[str]]:
    """All processes of one peer."""
    return [start_rank(script, folder, *words, rank=rank, size=size) for rank in range(size)]


def results_of_ranks(script: str, folder: Path, *words: str, size: int = 2) -> list[dict[str, Any]]:
    """What the processes of one peer say at last; none may fail."""
    return forked.results_of(start_ranks(script, folder, *words, size=size), 100.0)


def errors_of(ranks: list[subprocess.Popen[str]]) -> list[str]:
    """What processes say that end with an error."""
    try:
        return [rank.communicate(timeout=60)[1] for rank in ranks]
    finally:
        for rank in ranks:
            with rank:
                rank.kill()
            assert rank.returncode
