"""What a peer keeps to find back into its run, and the options of a peer."""

from __future__ import annotations

import atexit
import dataclasses
import math
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

import minga
from minga.cli.taking_part.link import HostLink
from minga.cli.terminal.output import Output
from minga.identity.keys.keys import Identity
from minga.identity.links.links import EntryPoint, Link
from minga.identity.links.signed_spec import SignedRunSpec
from minga.keeping.known_runs import run_folders
from minga.keeping.rejoin import (
    MAX_PEERS,
    MAX_PLACES,
    SPEC_FILE,
    HostLock,
    KnownAddresses,
    RejoinFile,
    merged,
    own_port,
)
from minga.network.interface import Address, PeerId
from minga.training.join import _places_of

ME = PeerId("0" * 64)


def address(number: int, *direct: str) -> Address:
    return Address(PeerId(f"{number:064x}"), direct)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x00" * 100_000, b"\x81\xa8own_port\xcd\xff", b"\x90"])
def test_damaged_places_count_as_unknown(tmp_path: Path, body: bytes) -> None:
    (tmp_path / f"places-{ME[:16]}.msgpack").write_bytes(body)
    assert RejoinFile(tmp_path, ME).places() == KnownAddresses()


@pytest.mark.parametrize("body", [b"", b"\xc1", bytes(1 << 22)])
def test_a_damaged_run_spec_counts_as_unknown(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "run-spec.signed").write_bytes(body)
    organiser = Identity.from_seed(bytes(32))
    assert (
        RejoinFile.spec(tmp_path, Link("ab" * 32, organiser.peer_id, (EntryPoint("cd" * 32, ("127.0.0.1:9",), None),)))
        is None
    )


def test_who_only_looks_on_is_led_by_what_others_of_this_machine_remember(tmp_path: Path) -> None:
    """As `minga status` of a run whose host, on the same machine, is down."""
    assert RejoinFile.known_here(tmp_path) == ()
    for number in (1, 2):
        places = KnownAddresses(others=(address(5, "127.0.0.1:5"), address(number, "127.0.0.1:9")))
        (tmp_path / f"places-{number}.msgpack").write_bytes(msgspec.msgpack.encode(places))
    (tmp_path / "places-3.msgpack").write_bytes(b"damaged")
    assert {each.peer_id for each in RejoinFile.known_here(tmp_path)} == {address(n).peer_id for n in (1, 2, 5)}
    for number in range(50):
        (tmp_path / f"places-x{number}.msgpack").write_bytes(b"")
    assert len(RejoinFile.known_here(tmp_path)) <= MAX_PLACES


def test_several_addresses_of_a_peer_are_joined() -> None:
    joined = merged([address(1, "1.1.1.1:1"), address(2, "2.2.2.2:2"), address(1, "1.1.1.1:9", "1.1.1.1:1")])
    assert joined == [address(1, "1.1.1.1:1", "1.1.1.1:9"), address(2, "2.2.2.2:2")]
    assert len(merged([address(1, *(f"1.1.1.1:{i}" for i in range(1, 40)))])[0].direct) == 16


@pytest.mark.parametrize(
    ("direct", "port"), [((), 0), (("127.0.0.1:4433",), 4433), (("[::1]:5",), 5), (("x:99999",), 0), (("x:y",), 0)]
)
def test_the_own_port(direct: tuple[str, ...], port: int) -> None:
    assert own_port(address(1, *direct)) == port


def test_the_newest_addresses_are_kept(tmp_path: Path) -> None:
    rejoin_file = RejoinFile(tmp_path, ME)
    seen = KnownAddresses(1, tuple(address(i, "1.1.1.1:1") for i in range(MAX_PLACES)))
    assert rejoin_file.now(seen).others == seen.others
    later = rejoin_file.now(KnownAddresses(2, (address(99, "9.9.9.9:9"),)))
    assert (later.own_port, later.others[0], len(later.others)) == (2, address(99, "9.9.9.9:9"), MAX_PLACES)
    assert RejoinFile(tmp_path, ME).places() == KnownAddresses(), "nothing is written before there is time for it"


def test_peers_that_have_left_are_known_by_their_ids_however_many_took_part(tmp_path: Path) -> None:
    """Also in a run of more peers than addresses are kept of."""
    rejoin_file = RejoinFile(tmp_path, ME)
    living = [PeerId(f"{number:064x}") for number in range(MAX_PEERS)]
    for present in (living[:20], living[1:20]):
        rejoin_file._keep_places(rejoin_file.now(KnownAddresses(1, (), tuple(present))))
    assert RejoinFile.peers_known_here(tmp_path) == set(living[:20])
    rejoin_file = RejoinFile(tmp_path, ME)
    for present in (living[1:], living[2:]):
        rejoin_file._keep_places(rejoin_file.now(KnownAddresses(1, (), (PeerId("ab" * 32), *present))))
    assert RejoinFile.peers_known_here(tmp_path) == {PeerId("ab" * 32), *living[1:]}, "the first to leave are forgotten"


def test_other_peers_of_the_machine_do_not_touch_what_it_keeps(tmp_path: Path) -> None:
    spec = minga.RunSpec.from_mapping({"name": "two", "model": {"recipe": "custom"}})
    options = minga.PeerOptions(identity=tmp_path / "key.json", directory=tmp_path, host="127.0.0.1")
    with minga.host(spec, options) as organiser:
        others = [
            minga.PeerOptions(role="monitor", identity=tmp_path / "b.json", directory=tmp_path, host="127.0.0.1"),
            minga.PeerOptions(ephemeral=True, directory=tmp_path, host="127.0.0.1"),
        ]
        for other in others:
            minga.join(organiser.link, other).close()
        folder = tmp_path / organiser.run_id[:16]
        while not list(folder.glob("places-*.msgpack")):
            time.sleep(0.01)
        port = own_port(organiser.session.node.network.address)
    (kept,) = folder.glob("places-*.msgpack")
    assert kept.name == f"places-{organiser.peer_id[:16]}.msgpack"
    assert RejoinFile(folder, PeerId(organiser.peer_id)).places().own_port == port


def test_a_link_that_names_this_peer_alone_leads_nowhere(tmp_path: Path) -> None:
    """The host has ended and its key is free: a second start must not begin the run again at step 0, alone."""
    spec = minga.RunSpec.from_mapping({"name": "gone", "model": {"recipe": "custom"}})
    key = tmp_path / "key.json"
    with minga.host(spec, minga.PeerOptions(identity=key, directory=tmp_path / "host", host="127.0.0.1")) as organiser:
        link = organiser.link
        guest = minga.PeerOptions(identity=tmp_path / "b.json", directory=tmp_path / "guest", host="127.0.0.1")
        minga.join(link, guest).close()  # the guest's folder knows the run spec now
    again = minga.PeerOptions(identity=key, directory=tmp_path / "guest", host="127.0.0.1")
    with pytest.raises(minga.UnreachableError, match=r"no other peer than this one.*minga host FOLDER"):
        minga.join(link, again)


@pytest.mark.parametrize("hosted_by", ["auxiliary", "monitor"])
def test_links_and_places_name_who_leads_into_the_run_and_not_who_only_looks_on(hosted_by: Any, tmp_path: Path) -> None:
    """Each `minga status` took the place of a member there; a host that only watches has its own."""

    def options(name: str, role: Any) -> minga.PeerOptions:
        return minga.PeerOptions(role, identity=tmp_path / f"{name}.json", directory=tmp_path, host="127.0.0.1")

    spec = {"name": "x", "model": {"recipe": "custom"}, "state": {"founder": "first"}}
    with (
        minga.host(spec, options("host", hosted_by)) as host,
        minga.join(host.link, options("trainer", "trainer")) as trainer,
        minga.join(host.link, options("viewer", "monitor")) as viewer,
    ):
        everybody = {host.peer_id, trainer.peer_id, viewer.peer_id}
        deadline = time.monotonic() + 20.0
        while any({peer.peer_id for peer in each.peers()} != everybody for each in (host, trainer)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for each, other in ((host, trainer), (trainer, host)):
            assert {entry.peer_id for entry in each.link.entries} == {host.peer_id, trainer.peer_id}
            places = each.on_loop(lambda each=each: _places_of(each.session, host.peer_id))  # type: ignore[misc]
            assert [address.peer_id for address in places.others] == [other.peer_id]
            assert {host.peer_id, other.peer_id} <= set(places.peers)


@pytest.mark.parametrize("role", ["trainer", "monitor"])
def test_a_run_is_hosted_once_from_its_folder(tmp_path: Path, role: Any) -> None:
    spec = minga.RunSpec.from_mapping({"name": "once", "model": {"recipe": "custom"}, "state": {"founder": "first"}})
    options = minga.PeerOptions(role=role, identity=tmp_path / "key.json", directory=tmp_path, host="127.0.0.1")
    folder = None
    for _ in range(2):  # it is free again when the first one has ended
        with minga.host(spec, options, resume=folder) as organiser:
            folder, link = organiser.directory, organiser.link
            other = minga.PeerOptions(identity=tmp_path / "other.json", directory=tmp_path, host="127.0.0.1")
            shutil.copy(tmp_path / "key.json", tmp_path / "other.json")  # the same key, by a path that is not locked
            for second in (other, options):  # with the usual key file in use, the second gets another key
                with pytest.raises(minga.ConfigurationError, match=f"hosts this run already.*minga join {link}`"):
                    minga.host(None, second, resume=folder)
    claim = tmp_path / link.run_id[:16] / "hosted.link"
    for damaged in (b"", b"minga1abc", b"\xff" * 9000):
        with HostLock.take(claim.parent):
            claim.write_bytes(damaged)
            with pytest.raises(minga.ConfigurationError, match="by the link that it printed"):
                HostLock.take(claim.parent)


@pytest.mark.parametrize("is_writable", [True, False])
def test_peers_with_ephemeral_keys_leave_nothing_behind(
    is_writable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts, trainers with their checkpoints, and monitors; also where the user's data folder cannot be written."""
    data, temporary = tmp_path / "data", tmp_path / "temporary"
    data.mkdir() if is_writable else data.touch()
    temporary.mkdir()
    monkeypatch.setenv("XDG_DATA_HOME", str(data))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    settings = {"name": "brief", "model": {"recipe": "custom"}, "state": {"founder": "first"}}
    options = minga.PeerOptions(ephemeral=True, host="127.0.0.1")
    with minga.host(settings, options) as organiser:
        for role in ("trainer", "monitor"):
            with minga.join(organiser.link, dataclasses.replace(options, role=role)) as peer:  # type: ignore[arg-type]
                if role == "trainer":
                    assert (data if is_writable else temporary) in peer.directory.parents
                    optimizer = minga.Optimizer(torch.optim.SGD([torch.zeros(1, requires_grad=True)]), peer)
                    optimizer.save_checkpoint()
                    newest = peer.newest_checkpoint()
                    assert newest is not None
                    assert newest.step == 0
                    (folder,) = run_folders(peer.directory.parent.parent)[:1]
                    with pytest.raises(minga.ConfigurationError, match="end that process before"):
                        folder.remove()
    assert not [*temporary.glob("temporary-*"), *data.glob("minga/runs/*")]
    with pytest.raises(minga.ConfigurationError, match="ephemeral key leaves none"):
        minga.host(None, options, resume=organiser.directory)


@pytest.mark.parametrize("way", ["host", "join"])
def test_an_entry_that_fails_at_its_very_end_is_undone(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C when the peer is there, and the program does not have it yet: key, lock and thread are free again."""
    spec = minga.RunSpec.from_mapping({"name": "cut", "model": {"recipe": "custom"}})
    options = minga.PeerOptions(identity=tmp_path / "key.json", directory=tmp_path, host="127.0.0.1")
    others = minga.PeerOptions(identity=tmp_path / "host.json", directory=tmp_path / "host", host="127.0.0.1")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with minga.host(spec, others) as organiser, monkeypatch.context() as patch:
        hooks = list[Callable[[], None]]()
        patch.setattr(atexit, "register", hooks.append)
        patch.setattr(atexit, "unregister", hooks.remove)
        patch.setattr(*((HostLock, "tell") if way == "host" else (RejoinFile, "keep_places")), interrupt)
        with pytest.raises(KeyboardInterrupt):
            minga.host(spec, options) if way == "host" else minga.join(organiser.link, options)
        assert not hooks, "of the end of this process"
        assert sum(thread.name == "minga" for thread in threading.enumerate()) == 1, "that of the organiser"
        patch.undo()
        minga.join(organiser.link, options).close()
    for path in tmp_path.rglob("hosted.link"):
        HostLock.take(path.parent).release()


def test_a_run_keeps_its_settings(tmp_path: Path) -> None:
    settings = {"name": "kept", "model": {"recipe": "custom"}, "training": {"target_batch_size": 64}}
    options = minga.PeerOptions(identity=str(tmp_path / "key.json"), directory=str(tmp_path), host="127.0.0.1")
    with minga.host(settings, options, files={"words.txt": b"one two"}) as organiser:
        folder, run_id = organiser.directory, organiser.run_id
    changed = {**settings, "training": {"target_batch_size": 65}}
    with pytest.raises(minga.ConfigurationError, match="with other settings of training"):
        minga.host(changed, options, resume=folder)
    with pytest.raises(minga.ConfigurationError, match=r"words\.txt is not the one"):
        minga.host(None, options, files={"words.txt": b"three"}, resume=folder)
    with minga.host(settings, options, resume=str(folder)) as organiser:
        assert organiser.run_id == run_id
        assert organiser.files["words.txt"].read_bytes() == b"one two"
    (folder / "files" / "words.txt").write_bytes(b"three")
    with pytest.raises(minga.ConfigurationError, match=r"words\.txt is not the one"):
        minga.host(None, options, resume=folder)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: minga.host(), "host what"),
        (lambda: minga.host(7), "not a int"),
        (lambda: minga.host("no-such.toml"), "no-such.toml: cannot be read"),
        (lambda: minga.host({"name": 5}), "name"),
        (lambda: minga.host({"name": "x"}, {"role": "client"}), "not a dict"),
        (lambda: minga.join(None), "not a NoneType"),
        (lambda: minga.join("foo"), "no link"),
        (lambda: minga.PeerOptions(directory=5), "directory = 5"),
        (lambda: minga.PeerOptions(port=70_000), "port = 70000"),
        (lambda: minga.PeerOptions(role="boss"), "role"),  # type: ignore[arg-type]
        (lambda: minga.PeerOptions(max_upload=0.0), "max_upload"),
        (lambda: minga.PeerOptions(max_upload=-5.0), "max_upload"),
        (lambda: minga.PeerOptions(max_download=math.nan), "max_download"),
        (lambda: minga.Optimizer(torch.optim.SGD([torch.zeros(1)]), "minga1abc"), "not a str"),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises((minga.ConfigurationError, minga.LinkError), match=message):
        call()


def test_a_run_is_hosted_with_the_key_that_began_it(tmp_path: Path) -> None:
    """A peer of another run may hold the usual key; then the next one would be taken, and the old link lead nowhere."""
    spec = minga.RunSpec.from_mapping({"name": "mine", "model": {"recipe": "custom"}})
    options = minga.PeerOptions(identity=tmp_path / "key.json", directory=tmp_path, host="127.0.0.1")
    with minga.host(spec, options) as organiser:
        own, folder = organiser.peer_id, organiser.directory
    assert options.identity is not None
    with (
        Identity.acquire(Path(options.identity)),
        pytest.raises(minga.ConfigurationError, match=f"another peer on this machine uses.*{own[:10]}: end that peer"),
    ):
        minga.host(spec, options, resume=folder)
    for other in ({"identity": tmp_path / "other.json"}, {"identity": None, "ephemeral": True}):
        with pytest.raises(
            minga.ConfigurationError, match=rf"{own[:10]}, is not among.*--identity FILE.*identity=FILE"
        ):
            minga.host(spec, dataclasses.replace(options, **other), resume=folder)
    assert SignedRunSpec.decode((folder / SPEC_FILE).read_bytes()).organiser == own


@pytest.mark.parametrize("others", [0, 2])
def test_a_host_that_comes_back_says_that_the_run_goes_on(
    others: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = announced({"name": "again"}, tmp_path, capsys, others=others)
    assert f"minga join {LINK}" in said
    assert ("under way" in said) == (others > 0)


LINK = Link("ab" * 32, "cd" * 32, (EntryPoint("cd" * 32, ("127.0.0.1:9",), None),))


def announced(spec: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str], *, others: int = 0) -> str:
    """What a host of this run says of its link."""
    node = SimpleNamespace(connected=lambda: range(others), address=None, spawn=lambda task: task.close())
    peer: Any = SimpleNamespace(
        link=LINK,
        run_id=LINK.run_id,
        directory=folder,
        spec=minga.RunSpec.from_mapping(spec),
        on_loop=lambda read: read(),
        subscribe=lambda _: None,
        session=SimpleNamespace(node=node),
    )
    HostLink(peer, Output(json_output=False), bound_to="127.0.0.1").announce()
    return capsys.readouterr().out
