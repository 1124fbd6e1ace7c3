"""A run of one peer that keeps something of its own, and that a test can kill.

python -m tests.worlds.own_state_run FOLDER KIND STOP [EVERY_STEPS]
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import minga
from minga.averaging.sketches.interface import SKETCHES
from minga.averaging.strategy_choice import STRATEGIES
from tests.worlds import sketches
from tests.worlds.extension_world import EXTRAS
from tests.worlds.organiser_desk import desk_in

LAST = 8
CHECKPOINT_EVERY = 2
SAMPLES = 4
LOCAL = {"fragments": 2, "local_batch": 6}
KINDS: dict[str, dict[str, Any]] = {
    "sketch": {"training": {"strategy": "synchronous"}, "averaging": {"sketch": "block_means"}},
    "strategy": {"training": {"strategy": "local_sgd"}},
    "local": {"training": {"strategy": "local", "target_batch_size": 4 * SAMPLES}, "strategy": {"local": LOCAL}},
}


def install() -> None:
    """Make the sketch and the strategy known in this process."""
    if str(EXTRAS) not in sys.path:
        sys.path.insert(0, str(EXTRAS))
    SKETCHES._builtin.update(sketches.ENTRIES)
    STRATEGIES._builtin["local_sgd"] = "minga_extras.local_sgd:LocalSGD"


def uninstall() -> None:
    """Undo that."""
    sys.path.remove(str(EXTRAS))
    STRATEGIES._builtin.pop("local_sgd")
    for name in sketches.ENTRIES:
        SKETCHES._builtin.pop(name)


def begin(folder: Path, kind: str, device: str = "cpu") -> tuple[minga.Peer, minga.Optimizer, torch.nn.Module]:
    """Host the run from `folder`, with whatever lies there."""
    sections = KINDS[kind]
    spec = minga.RunSpec.from_mapping(
        {
            "name": "own",
            "model": {"recipe": "custom"},
            "training": {"target_batch_size": 2 * SAMPLES, "stop_after_steps": LAST, **sections["training"]},
            "strategy": sections.get("strategy", {}),
            "averaging": {"codec": "float32", **sections.get("averaging", {})},
            "checkpoints": {"every_steps": CHECKPOINT_EVERY},
        }
    )
    options = minga.PeerOptions(identity=folder / "key", directory=folder, host="127.0.0.1")
    before = next(iter(folder.glob("*/run-spec.signed")), None)
    peer = minga.host(spec, options, resume=None if before is None else before.parent)
    torch.manual_seed(3)
    model = torch.nn.Linear(6, 5).to(device)
    optimizer = minga.Optimizer(minga.optim.AdamW(model.parameters(), lr=0.05), peer, model=model)
    return peer, optimizer, model


def train(optimizer: minga.Optimizer, model: torch.nn.Module, stop: int) -> None:
    """Two micro-batches for each step, whose numbers follow from the step."""
    while optimizer.global_step < stop and not optimizer.finished:
        step = optimizer.global_step
        for part in range(2):
            if optimizer.global_step == step:
                batch = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(2 * step + part))
                model(batch.to(model.weight.device)).square().mean().backward()
                optimizer.step(samples=SAMPLES)
                optimizer.zero_grad()


def train_with_checkpoints(peer: minga.Peer, optimizer: minga.Optimizer, model: torch.nn.Module, stop: int) -> None:
    """Up to step `stop`, with each checkpoint that is due: while one is written, the next would be left out."""
    for step in range(1, stop + 1):
        train(optimizer, model, step)
        peer.checkpointer.wait()


def main(folder: str, kind: str, stop: str, every_steps: str = "") -> None:
    """Train up to step `stop`, which has a checkpoint, by the run spec or as it is amended after the first step, and
    one step more; then be killed.
    """
    install()
    torch.set_num_threads(1)
    peer, optimizer, model = begin(Path(folder), kind)
    if every_steps:
        desk = desk_in(peer)
        desk.put_in_force(desk.amend({"checkpoints.every_steps": int(every_steps)}, 1))
    train_with_checkpoints(peer, optimizer, model, int(stop))
    train(optimizer, model, int(stop) + 1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
