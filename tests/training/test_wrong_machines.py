"""Over real sockets: a machine with a wrong clock, and one with a copy of a key that is in use."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

import minga
from minga.cli.terminal import exit_codes
from minga.network.iroh.network import IrohNetwork

SPEC = minga.RunSpec.from_mapping({"name": "machines", "model": {"recipe": "custom"}})
HOST = minga.PeerOptions(role="auxiliary", ephemeral=True, host="127.0.0.1")


def options(folder: Path, key: str) -> minga.PeerOptions:
    return minga.PeerOptions(role="auxiliary", identity=folder / key, directory=folder / "runs", host="127.0.0.1")


def test_a_copy_of_a_key_is_refused_as_long_as_the_first_lives(tmp_path: Path) -> None:
    with minga.host(SPEC, HOST) as organiser:
        with minga.join(organiser.link, options(tmp_path, "key.json")) as first:
            shutil.copy(tmp_path / "key.json", tmp_path / "copy.json")
            with pytest.raises(
                minga.RejectedError, match=r"this key is in use by another process since .* UTC"
            ) as caught:
                minga.join(organiser.link, options(tmp_path, "copy.json"))
            assert exit_codes.code_of(caught.value) == exit_codes.KEY
            assert exit_codes.advice(caught.value) == ""
            assert "a peer that only joins can have a key of its own" in caught.value.message, "no host can"
            assert {peer.peer_id for peer in organiser.peers()} == {organiser.peer_id, first.peer_id}
        minga.join(organiser.link, options(tmp_path, "copy.json")).close()


def test_a_clock_is_corrected_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with minga.host(SPEC, HOST) as organiser:
        monkeypatch.setattr(IrohNetwork, "wall_time", lambda _: time.time() - 840.0)
        with minga.join(organiser.link, options(tmp_path, "slow.json")) as slow:
            assert slow.on_loop(lambda: slow.session.node.clock.correction_s) == pytest.approx(840.0, abs=10.0)
            assert {peer.peer_id for peer in slow.peers()} == {organiser.peer_id, slow.peer_id}
        monkeypatch.setattr(IrohNetwork, "wall_time", lambda _: time.time() + 3600.0)
        with pytest.raises(minga.RejectedError, match="this machine's clock is 1 h ahead of the run's") as caught:
            minga.join(organiser.link, options(tmp_path, "fast.json"))
        assert exit_codes.code_of(caught.value) == exit_codes.CLOCK
        assert exit_codes.advice(caught.value) == ""
