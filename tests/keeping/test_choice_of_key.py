"""Which of the keys of a machine its hosts and joins take."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import minga
from minga.identity.keys.keys import Identity

SPEC = {"name": "one of many", "model": {"recipe": "custom"}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> minga.PeerOptions:
    """A peer on the machine whose keys lie in the test's folder; it names none of them."""
    monkeypatch.setattr("minga.identity.keys.key_file.default_path", lambda: tmp_path / "identity.json")
    return minga.PeerOptions(directory=tmp_path / "runs", host="127.0.0.1")


def elsewhere(tmp_path: Path) -> minga.PeerOptions:
    """A peer on another machine."""
    return minga.PeerOptions(identity=tmp_path / "other.json", directory=tmp_path / "other", host="127.0.0.1")


def file_of(peer: minga.Peer, folder: Path) -> str:
    """The name of the file that holds the key of a peer of this machine."""
    return next(path.name for path in folder.glob("identity*.json") if peer.peer_id in path.read_text())


def join_as_before(link: str, options: minga.PeerOptions) -> minga.Peer:
    """A peer whose key the run's folder remembers from now on."""
    peer = minga.join(link, options)
    while not (peer.directory / f"places-{peer.peer_id[:16]}.msgpack").exists():
        time.sleep(0.01)
    return peer


def test_each_run_of_a_machine_finds_its_key_again(tmp_path: Path, here: minga.PeerOptions) -> None:
    """After a crash of all of them, in whatever order they come back, and whatever was joined meanwhile."""
    with minga.host(SPEC, here) as first, minga.host(SPEC, here) as second:
        assert (file_of(first, tmp_path), file_of(second, tmp_path)) == ("identity.json", "identity-2.json")
        with join_as_before(second.link, here) as joined:
            assert file_of(joined, tmp_path) == "identity-3.json"
    with minga.host(resume=second.directory, options=here) as again, minga.join(again.link, here) as returned:
        assert (again.peer_id, returned.peer_id) == (second.peer_id, joined.peer_id)
        with minga.host(SPEC, elsewhere(tmp_path)) as third, minga.join(third.link, here):
            minga.host(resume=first.directory, options=here).close()


def test_a_peer_comes_back_with_that_of_its_keys_which_hosts_nothing(tmp_path: Path, here: minga.PeerOptions) -> None:
    with minga.host(SPEC, elsewhere(tmp_path)) as far:
        join_as_before(far.link, here).close()
        with minga.host(SPEC, here) as own, join_as_before(far.link, here) as second:
            assert (file_of(own, tmp_path), file_of(second, tmp_path)) == ("identity.json", "identity-2.json")
        with minga.join(far.link, here) as back:
            assert back.peer_id == second.peer_id
            minga.host(resume=own.directory, options=here).close()


def test_a_key_that_was_in_the_run_comes_before_a_new_one_though_it_hosts(
    tmp_path: Path, here: minga.PeerOptions
) -> None:
    """Others may know the peer by it, in a run for members for instance."""
    with minga.host(SPEC, elsewhere(tmp_path)) as far:
        with join_as_before(far.link, here) as joined:
            pass
        minga.host(SPEC, here).close()
        with minga.join(far.link, here) as back:
            assert back.peer_id == joined.peer_id


def test_an_organiser_comes_back_by_the_link(tmp_path: Path, here: minga.PeerOptions) -> None:
    member = Identity.load_or_create(tmp_path / "other.json").peer_id
    spec = {**SPEC, "security": {"admission": "members", "organisers": [member]}}
    with minga.host(spec, here) as host, minga.join(host.link, elsewhere(tmp_path)) as other:
        link = other.link
        host.close()
        with minga.join(link, here) as back:
            assert back.peer_id == host.peer_id


def test_a_run_begins_with_a_key_that_it_names(tmp_path: Path, here: minga.PeerOptions) -> None:
    """Though the key hosted another run before, and another one comes first."""
    with Identity.acquire(), minga.host(SPEC, here) as before:
        assert file_of(before, tmp_path) == "identity-2.json"
    with minga.host({**SPEC, "security": {"organisers": ["ab" * 32, before.peer_id]}}, here) as named:
        assert named.peer_id == before.peer_id


def test_the_second_run_of_an_organiser_has_the_key_of_the_first(here: minga.PeerOptions) -> None:
    with minga.host(SPEC, here) as first:
        pass
    with minga.host(SPEC, here) as second:
        assert second.peer_id == first.peer_id


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_run_is_hosted_again_though_another_key_is_lost(tmp_path: Path, here: minga.PeerOptions, how: str) -> None:
    other = tmp_path / "identity.json"
    with Identity.acquire(), minga.host(SPEC, here) as run:
        assert file_of(run, tmp_path) == "identity-2.json"
    if how == "missing":
        other.unlink()
    else:
        other.write_text("{}")
    with minga.host(resume=run.directory, options=here) as again:
        assert again.peer_id == run.peer_id
    (tmp_path / "identity-2.json").write_text("{}")
    with pytest.raises(minga.IdentityError, match="damaged"):
        minga.host(resume=run.directory, options=here)
    assert other.exists() == (how == "damaged"), "no key was made for it"
