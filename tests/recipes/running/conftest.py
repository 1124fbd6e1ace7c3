"""A peer for tests of what runs recipes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import minga
from tests.worlds.extension_world import hosted, install_extras


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[minga.Peer]:
    """Hosts a run of six steps of a small classifier."""
    install_extras(tmp_path, monkeypatch)
    spec = hosted(
        {
            "name": "room",
            "model": {"recipe": "corners"},
            "training": {"target_batch_size": 64, "stop_after_steps": 6},
            "network": {"relay": "none"},
        }
    )
    options = minga.PeerOptions(ephemeral=True, directory=tmp_path, host="127.0.0.1")
    with minga.host(spec, options) as peer:
        yield peer
