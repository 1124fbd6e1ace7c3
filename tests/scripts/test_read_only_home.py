"""Machines on which programs may not write where users' data lie, as in containers."""

from __future__ import annotations

from pathlib import Path

import pytest

import minga
from tests.worlds.script_peers import spec_of


def test_a_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key for one time needs no home, for who hosts and for who joins; else the error says what to name."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    once = minga.PeerOptions(ephemeral=True, host="127.0.0.1")
    with minga.host(spec_of(4, 1), once) as host:
        with minga.join(host.link, once) as guest:
            assert guest.directory.is_dir()
        with pytest.raises(minga.StorageError, match=r"cannot be made: .* --directory DIR or PeerOptions\(directory"):
            minga.join(host.link, minga.PeerOptions(identity=tmp_path / "key", host="127.0.0.1"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file"]
