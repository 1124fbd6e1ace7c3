from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import minga
from tests.worlds.optimizer_loops import BATCH, STEPS, MakePeer


@pytest.fixture(autouse=True)
def _equal_draws() -> None:
    torch.manual_seed(7)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[MakePeer]:
    """Makes peers that host a run of a custom recipe, alone; keyword arguments go to its `[training]` section."""
    peers: list[minga.Peer] = []

    def make(*, codec: str = "float32", checkpoint_every: int = 0, **training: Any) -> minga.Peer:
        values = {"target_batch_size": BATCH, "stop_after_steps": STEPS, **training}
        spec = minga.RunSpec.from_mapping(
            {
                "name": "test",
                "model": {"recipe": "custom"},
                "training": {name: value for name, value in values.items() if value is not None},
                "averaging": {"codec": codec},
                "state": {"digest_every": 1},
                "checkpoints": {"every_steps": checkpoint_every},
            }
        )
        directory = tmp_path / "peers" / str(len(peers))
        directory.mkdir(parents=True)
        peers.append(minga.host(spec, minga.PeerOptions(ephemeral=True, directory=directory, host="127.0.0.1")))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()
