"""One of some peers that train adapters: `python -m tests.recipes.fine_tune.taking_part FOLDER INDEX PEERS`.

The first one hosts the run of FOLDER/spec.toml and writes its link there. All train side by side, so that each has a
part of each step; each prints which samples it gave to which step, and writes what it has in the end.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import minga
from minga.core.events.bus import Event
from minga.core.spec.run_spec import RunSpec
from minga.recipes.fine_tune.recipe import FineTuneRecipe
from minga.recipes.running.run import RecipeRun, Work
from minga.training.join import join
from tests.worlds.side_by_side import SideBySide

MICRO_BATCH = 4


def entered(folder: Path, index: int) -> minga.Peer:
    """The peer; all but the first take the base from where it lies."""
    options = minga.PeerOptions(ephemeral=True, directory=folder / f"peer-{index}", host="127.0.0.1")
    link, laid = folder / "link", folder / "files"
    if index == 0:
        files = {path.relative_to(laid).as_posix(): path for path in laid.rglob("*") if path.is_file()}
        peer = minga.host(RunSpec.from_toml((folder / "spec.toml").read_text()), options, files=files)
        (folder / "link.part").write_text(str(peer.link))
        (folder / "link.part").rename(link)
        return peer
    while not link.is_file():
        time.sleep(0.05)
    return join(link.read_text(), options, consider=lambda _: laid / "base")


def _step_of(event: Event) -> tuple[int, int]:
    """The step, and how many samples of this peer are in it."""
    fields: Any = event.fields
    return fields["step"], fields["samples"]


def main(folder: Path, index: int, peers: int) -> None:
    torch.set_num_threads(1)
    with entered(folder, index) as peer:
        run = RecipeRun(peer, Work(device="cpu", micro_batch=MICRO_BATCH))
        assert isinstance(run.recipe, FineTuneRecipe)
        samples, optimizer = run.recipe._samples_of(run.files), run.optimizer
        beside = SideBySide(folder, str(index), [str(each) for each in range(peers)], peer, steps=1000)
        counted: list[tuple[int, int]] = []  # a call may see two steps
        peer.subscribe(lambda event: counted.append(_step_of(event)) if event.kind == "step.applied" else None)
        order, pending = random.Random(index), list[int]()
        while not optimizer.finished:
            chosen = order.choices(range(len(samples)), k=MICRO_BATCH)
            run.recipe.total_loss(run.model, samples.batch(chosen)).backward()
            dropped = optimizer.dropped_micro_batches
            optimizer.step(samples=MICRO_BATCH)
            if optimizer.dropped_micro_batches == dropped:
                pending += chosen
            beside.keep_pace(optimizer)
        trained = {name: each.detach() for name, each in run.model.named_parameters() if each.requires_grad}
        save_file(trained, folder / f"trained-{index}.safetensors")
        (folder / f"out-{index}").touch()
        while len(list(folder.glob("out-*"))) < peers:
            time.sleep(0.05)
    steps = {}
    for step, own in counted:
        steps[step], pending = pending[:own], pending[own:]
    print(json.dumps(steps))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
