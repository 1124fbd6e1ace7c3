"""The signed run spec and the files of a run: fetched from any peers, verified, resumed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from minga.core.errors import ProtocolError, RejectedError, StorageError, UnreachableError
from minga.core.events.bus import Event, EventBus
from minga.core.spec.run_spec import RunSpec
from minga.identity.keys.keys import Identity
from minga.identity.links.signed_spec import SignedRunSpec
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node
from minga.network.virtual.internet import HostSettings, VirtualInternet
from minga.simulation import run_virtual
from minga.training.transfer import run_files
from minga.training.transfer.run_files import FILE, FileRequest, RunFileServer
from minga.training.transfer.run_files_fetch import FileProgress, fetch_files, fetch_run_spec

ORGANISER = Identity.from_seed(b"o" * 32)
CONTENT = {"tokenizer.json": b"{}" * 400_000, "data/train.txt": os.urandom(1_500_001), "empty": b""}


@dataclass(frozen=True)
class Facts:
    blake3: str
    size_bytes: int


def facts_of(content: dict[str, bytes]) -> dict[str, Facts]:
    return {name: Facts(blake3(body).hexdigest(), len(body)) for name, body in content.items()}


FACTS = facts_of(CONTENT)
SPEC = RunSpec(name="files")
SIGNED = SignedRunSpec.sign(SPEC, ORGANISER)


class Peer:
    def __init__(self, swarm: Swarm, settings: HostSettings) -> None:
        self.network = swarm.internet.host(settings)
        self.events: list[Event] = []
        bus = EventBus(asyncio.get_running_loop().time)
        bus.subscribe(self.events.append)
        self.node = Node(self.network, run_id=SPEC.run_id, role="trainer", lookup=swarm.lookup, events=bus)
        self.node.start()
        self.id: PeerId = self.node.peer_id

    def offenders(self) -> list[str]:
        return [str(event.fields["peer"]) for event in self.events if event.kind == "peer.offence"]


class Swarm:
    def __init__(self, folder: Path) -> None:
        self.folder, self.internet = folder, VirtualInternet(3)
        self.peers: dict[PeerId, Peer] = {}

    def lookup(self, peer: PeerId) -> Address | None:
        return self.peers[peer].network.address if peer in self.peers else None

    def peer(self, rate: float = 1e6) -> Peer:
        peer = Peer(self, HostSettings(rate, 16e6, latency_s=0.02))
        self.peers[peer.id] = peer
        return peer

    def server(self, signed: SignedRunSpec = SIGNED, content: dict[str, bytes] = CONTENT, rate: float = 1e6) -> Peer:
        """A peer that serves `content` as if it were the run's files."""
        peer = self.peer(rate)
        paths = {}
        for name, body in content.items():
            paths[name] = self.folder / "served" / peer.id[:8] / name
            paths[name].parent.mkdir(parents=True, exist_ok=True)
            paths[name].write_bytes(body)
        RunFileServer(peer.node, signed, FACTS, paths)
        return peer


def virtually(test: Callable[[Swarm], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        async def main() -> None:
            swarm = Swarm(tmp_path)
            try:
                await test(swarm)
            finally:
                for peer in swarm.peers.values():
                    await peer.node.close()

        run_virtual(main(), limit_s=1000.0)

    run.__name__ = test.__name__
    return run


async def fetch(peer: Peer, servers: list[Peer], folder: Path, **options: Any) -> dict[str, Path]:
    return await fetch_files(peer.node, [server.id for server in servers], FACTS, folder, **options)


def complete(paths: dict[str, Path], folder: Path) -> bool:
    there = sorted(str(path.relative_to(folder).as_posix()) for path in folder.rglob("*") if path.is_file())
    return {name: path.read_bytes() for name, path in paths.items()} == CONTENT and there == sorted(CONTENT)


def check(signed: SignedRunSpec, peer: PeerId) -> None:
    signed.verify(SPEC.run_id, ORGANISER.peer_id, peer=peer)


@virtually
async def test_the_spec_comes_from_any_genuine_peer(swarm: Swarm) -> None:
    forged = SignedRunSpec.sign(RunSpec(name="other"), Identity.from_seed(b"x" * 32))
    silent, liar, honest, newcomer = swarm.peer(), swarm.server(forged), swarm.server(), swarm.peer()
    signed = await fetch_run_spec(newcomer.node, [silent.id, liar.id, honest.id], check)
    assert signed == SIGNED
    assert newcomer.offenders() == [liar.id]
    with pytest.raises(UnreachableError, match=r"another run"):
        await fetch_run_spec(newcomer.node, [silent.id, liar.id], check)
    with pytest.raises(UnreachableError, match="nobody to ask"):
        await fetch_run_spec(newcomer.node, [], check)


@virtually
async def test_files_come_from_several_peers_and_only_once(swarm: Swarm) -> None:
    servers, newcomer, folder = [swarm.server(), swarm.server()], swarm.peer(), swarm.folder / "here"
    seen: list[FileProgress] = []
    paths = await fetch(newcomer, servers, folder, progress=seen.append)
    assert complete(paths, folder)
    total = sum(map(len, CONTENT.values()))
    assert seen[-1] == FileProgress(total, total)
    assert [each.done_bytes for each in seen] == sorted(each.done_bytes for each in seen)
    for server in servers:
        swarm.internet.kill(server.network)
    assert complete(await fetch(newcomer, servers, folder), folder)


@virtually
async def test_a_broken_off_file_is_continued_from_another_peer(swarm: Swarm) -> None:
    first, newcomer, folder = swarm.server(), swarm.peer(), swarm.folder / "here"

    def kill(progress: FileProgress) -> None:
        if progress.done_bytes > 1_000_000:
            swarm.internet.kill(first.network)

    with pytest.raises(UnreachableError, match=r"nobody could send the file"):
        await fetch(newcomer, [first], folder, progress=kill)
    assert any(path.name.endswith(".part") for path in folder.rglob("*"))
    seen: list[FileProgress] = []
    assert complete(await fetch(newcomer, [swarm.server()], folder, progress=seen.append), folder)
    received = newcomer.node.facts(next(reversed(swarm.peers)))
    assert received is not None
    assert received.bytes_received < 1_700_000


@virtually
async def test_a_liar_is_named_and_others_are_asked(swarm: Swarm) -> None:
    lies = {name: bytes(len(body)) for name, body in CONTENT.items()}
    liar, honest, newcomer = swarm.server(content=lies), swarm.server(), swarm.peer()
    folder = swarm.folder / "here"
    assert complete(await fetch(newcomer, [liar, honest], folder), folder)
    assert set(newcomer.offenders()) == {liar.id}
    with pytest.raises(UnreachableError, match="does not match its hash"):
        await fetch(newcomer, [liar], swarm.folder / "there")


@virtually
async def test_nobody_is_blamed_for_a_damaged_beginning(swarm: Swarm) -> None:
    honest, newcomer, folder = swarm.server(), swarm.peer(), swarm.folder / "here"
    part = folder / "data" / f"train.txt.{FACTS['data/train.txt'].blake3[:16]}.part"
    part.parent.mkdir(parents=True)
    for damaged in (b"x" * 1000, bytes(len(CONTENT["data/train.txt"])), b"y" * 5_000_000):
        part.write_bytes(damaged)
        (folder / "data" / "train.txt").write_bytes(b"old")
        assert complete(await fetch(newcomer, [honest], folder), folder)
    assert newcomer.offenders() == []


@virtually
async def test_a_server_whose_file_is_gone_or_short_is_passed_over(swarm: Swarm) -> None:
    broken, honest, newcomer = swarm.server(), swarm.server(), swarm.peer()
    folder = swarm.folder / "here"
    (swarm.folder / "served" / broken.id[:8] / "data" / "train.txt").write_bytes(b"short")
    (swarm.folder / "served" / broken.id[:8] / "tokenizer.json").unlink()
    assert complete(await fetch(newcomer, [broken, honest], folder), folder)
    assert newcomer.offenders() == []


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/../../b", "con", "a\\b", "", "a" * 300])
def test_unsafe_names_are_refused(name: str, tmp_path: Path) -> None:
    async def test(swarm: Swarm) -> None:
        with pytest.raises(ProtocolError, match="cannot be stored"):
            await fetch_files(swarm.peer().node, [], {name: FACTS["empty"]}, swarm.folder / "here")
        assert not (swarm.folder / "here").exists()

    virtually(test)(tmp_path)


@virtually
async def test_a_disk_that_refuses_is_a_storage_error(swarm: Swarm) -> None:
    (swarm.folder / "here").write_bytes(b"a file where a folder should be")
    with pytest.raises(StorageError, match="here"):
        await fetch(swarm.peer(), [swarm.server()], swarm.folder / "here")


@virtually
async def test_bad_requests(swarm: Swarm) -> None:
    server, bad = swarm.server(), swarm.peer()
    known = FACTS["data/train.txt"].blake3
    with pytest.raises(RejectedError, match="no file with this hash"):
        await bad.node.call(server.id, FILE, FileRequest("0" * 64, 0), FileRequest)
    for request in (FileRequest(known, 1_500_002), FileRequest(known, -1), FileRequest("../x", 0)):
        with pytest.raises(UnreachableError):
            await bad.node.call(server.id, FILE, request, FileRequest)
    assert server.offenders() == [bad.id] * 3


@virtually
async def test_sending_is_limited(swarm: Swarm) -> None:
    server, newcomer = swarm.server(), swarm.peer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_files, "MAX_SENDING", 0)
        with pytest.raises(UnreachableError, match="0 files are sent at a time"):
            await fetch(newcomer, [server], swarm.folder / "here")
