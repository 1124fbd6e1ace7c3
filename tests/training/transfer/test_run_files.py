"""The signed run spec and the files of a run: fetched from any peers, verified, resumed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from minga.core.errors import ProtocolError, RejectedError, StorageError, UnreachableError
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import FileEntry
from minga.identity.keys.keys import Identity
from minga.identity.links.signed_spec import SignedRunSpec
from minga.network.interface import PeerId
from minga.network.rpc.stream import MessageStream
from minga.training.state.manifest import CHUNK_BYTES
from minga.training.transfer import run_files
from minga.training.transfer.messages import DownloadOpened, ManifestReply, ManifestRequest, OpenDownload, TakeChunks
from minga.training.transfer.part_file import PartFile
from minga.training.transfer.run_files import (
    FILE_HASHES,
    FILE_PIECES,
    FileFetch,
    RunFileServer,
    describe_file,
    fetch_files,
    fetch_run_spec,
)
from minga.training.transfer.server import Places, serve_chunks
from tests.worlds.swarm_tools import later
from tests.worlds.transfer_world import LINE, Peer, Swarm, virtually

ORGANISER = Identity.from_seed(b"o" * 32)
CONTENT = {"tokenizer.json": b"{}" * 400_000, "data/train.txt": os.urandom(5 * CHUNK_BYTES + 1), "empty": b""}


def entry_of(body: bytes) -> FileEntry:
    digests = b"".join(blake3(body[start : start + CHUNK_BYTES]).digest() for start in range(0, len(body), CHUNK_BYTES))
    return FileEntry(blake3=blake3(body).hexdigest(), size_bytes=len(body), pieces=blake3(digests).hexdigest())


ENTRIES = {name: entry_of(body) for name, body in CONTENT.items()}
SPEC = RunSpec(name="files")
SIGNED = SignedRunSpec.sign(SPEC, ORGANISER)


def server_of(
    swarm: Swarm,
    signed: SignedRunSpec = SIGNED,
    content: dict[str, bytes] = CONTENT,
    rate: float = 1e6,
    kind: type[RunFileServer] = RunFileServer,
) -> Peer:
    """A peer that serves `content` as if it were the run's files."""
    peer = swarm.peer(replace(LINE, up_bytes_per_s=rate))
    paths = {}
    for name, body in content.items():
        paths[name] = swarm.folder / "served" / peer.id[:8] / name
        paths[name].parent.mkdir(parents=True, exist_ok=True)
        paths[name].write_bytes(body)
    peer.files = kind(peer.node, signed, ENTRIES, paths)
    return peer


async def fetch(
    peer: Peer,
    servers: list[Peer],
    folder: Path,
    entries: dict[str, FileEntry] = ENTRIES,
    *,
    own: Path | None = None,
    arrived: Callable[[int], None] = lambda _: None,
) -> dict[str, Path]:
    """`arrived` hears after each piece how many bytes of all files have come."""
    store, sizes = FileFetch._store, list[int]()

    async def told(self: FileFetch, part: PartFile, stored: set[int], index: int, data: memoryview) -> None:
        await store(self, part, stored, index, data)
        sizes.append(data.nbytes)
        arrived(sum(sizes))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileFetch, "_store", told)
        return await fetch_files(peer.node, [server.id for server in servers], entries, folder, own)


def complete(paths: dict[str, Path], folder: Path) -> bool:
    there = sorted(str(path.relative_to(folder).as_posix()) for path in folder.rglob("*") if path.is_file())
    return {name: path.read_bytes() for name, path in paths.items()} == CONTENT and there == sorted(CONTENT)


def check(signed: SignedRunSpec, peer: PeerId) -> None:
    signed.verify(SPEC.run_id, ORGANISER.peer_id, peer=peer)


@virtually
async def test_the_spec_comes_from_any_genuine_peer(swarm: Swarm) -> None:
    forged = SignedRunSpec.sign(RunSpec(name="other"), Identity.from_seed(b"x" * 32))
    silent, liar, honest, newcomer = swarm.peer(), server_of(swarm, forged), server_of(swarm), swarm.peer()
    signed = await fetch_run_spec(newcomer.node, [silent.id, liar.id, honest.id], check)
    assert signed == SIGNED
    assert newcomer.offenders() == [liar.id]
    with pytest.raises(UnreachableError, match=r"another run"):
        await fetch_run_spec(newcomer.node, [silent.id, liar.id], check)
    with pytest.raises(UnreachableError, match="nobody to ask"):
        await fetch_run_spec(newcomer.node, [], check)


@virtually
async def test_files_come_from_several_peers_and_only_once(swarm: Swarm) -> None:
    servers, newcomer, folder = [server_of(swarm), server_of(swarm)], swarm.peer(), swarm.folder / "here"
    assert complete(await fetch(newcomer, servers, folder), folder)
    for server in servers:
        swarm.internet.kill(server.network)
    assert complete(await fetch(newcomer, servers, folder), folder)


@virtually
async def test_files_that_the_machine_has_are_taken_from_there_if_they_are_the_same(swarm: Swarm) -> None:
    """What lies under the name and size of another file is fetched."""
    server, newcomer, folder, own = server_of(swarm), swarm.peer(), swarm.folder / "here", swarm.folder / "own"
    (own / "deeper").mkdir(parents=True)
    (own / "train.txt").write_bytes(CONTENT["data/train.txt"])
    (own / "tokenizer.json").write_bytes(bytes(len(CONTENT["tokenizer.json"])))
    paths = await fetch(newcomer, [server], folder, own=own)
    assert complete(paths, folder)
    assert newcomer.node.traffic()[1] < len(CONTENT["tokenizer.json"]) + CHUNK_BYTES
    assert (own / "tokenizer.json").read_bytes() == bytes(len(CONTENT["tokenizer.json"]))


def test_a_file_of_the_machine_that_cannot_be_read_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = Path.open

    def refuse_own(path: Path, *words: Any, **named: Any) -> Any:
        if path.parent.name == "own":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *words, **named)

    @virtually
    async def main(swarm: Swarm) -> None:
        own = swarm.folder / "own"
        own.mkdir()
        (own / "train.txt").write_bytes(CONTENT["data/train.txt"])
        monkeypatch.setattr(Path, "open", refuse_own)
        paths = await fetch(swarm.peer(), [server_of(swarm)], swarm.folder / "here", own=own)
        assert complete(paths, swarm.folder / "here")

    main(tmp_path)
    assert "train.txt cannot be read (Permission denied): data/train.txt comes from peers" in caplog.text


@virtually
async def test_a_broken_off_file_is_continued_from_another_peer(swarm: Swarm) -> None:
    first, newcomer, folder = server_of(swarm), swarm.peer(), swarm.folder / "here"

    def kill(arrived_bytes: int) -> None:
        if arrived_bytes > 4_000_000:
            swarm.internet.kill(first.network)

    with pytest.raises(UnreachableError, match=r"nobody could send the file"):
        await fetch(newcomer, [first], folder, arrived=kill)
    assert any(path.name.endswith(".part") for path in folder.rglob("*"))
    assert complete(await fetch(newcomer, [server_of(swarm)], folder), folder)
    received = newcomer.node.facts(next(reversed(swarm.peers)))
    assert received is not None
    assert received.bytes_received < 3_700_000


@virtually
async def test_a_line_that_falters_for_a_moment_costs_no_peer(swarm: Swarm) -> None:
    """All fell silent at once, and none was asked again."""
    servers, newcomer, folder = [server_of(swarm), server_of(swarm)], swarm.peer(), swarm.folder / "here"
    cuts: list[int] = []

    def cut(arrived_bytes: int) -> None:
        if arrived_bytes > 2_000_000 * (1 + len(cuts)) and len(cuts) < 2:
            cuts.append(arrived_bytes)
            for server in servers:
                swarm.internet.cut(newcomer.network, server.network)
                later(4.0, partial(swarm.internet.restore, newcomer.network, server.network))

    assert complete(await fetch(newcomer, servers, folder, arrived=cut), folder)
    failed = [event for event in newcomer.events if event.kind == "run.file_failed"]
    assert (len(cuts), len(failed) >= 4) == (2, True)


@virtually
async def test_a_liar_is_named_and_others_are_asked(swarm: Swarm) -> None:
    lies = {name: bytes(len(body)) for name, body in CONTENT.items()}
    liar, honest, newcomer = server_of(swarm, content=lies), server_of(swarm), swarm.peer()
    folder = swarm.folder / "here"
    assert complete(await fetch(newcomer, [liar, honest], folder), folder)
    assert set(newcomer.offenders()) == {liar.id}
    with pytest.raises(UnreachableError, match="does not match its hash"):
        await fetch(newcomer, [liar], swarm.folder / "there", {"tokenizer.json": ENTRIES["tokenizer.json"]})


@virtually
async def test_nobody_is_blamed_for_a_damaged_beginning(swarm: Swarm) -> None:
    honest, newcomer, folder = server_of(swarm), swarm.peer(), swarm.folder / "here"
    part = folder / "data" / f"train.txt.{ENTRIES['data/train.txt'].blake3[:16]}.part"
    part.parent.mkdir(parents=True)
    for damaged in (b"x" * 1000, bytes(len(CONTENT["data/train.txt"])), b"y" * 5_000_000):
        part.write_bytes(damaged)
        (folder / "data" / "train.txt").write_bytes(b"old")
        assert complete(await fetch(newcomer, [honest], folder), folder)
    assert newcomer.offenders() == []


@virtually
async def test_each_peer_that_asks_for_a_damaged_file_is_refused(swarm: Swarm) -> None:
    """All wait for one look at the file; what the next one finds is not spoiled by it."""
    server, path = server_of(swarm), "data/train.txt"
    damaged = swarm.folder / "served" / server.id[:8] / path
    damaged.write_bytes(b"short")

    async def slowly(function: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(1.0)
        return function(*arguments)

    async def ask(peer: Peer) -> int:
        request = ManifestRequest(ENTRIES[path].blake3)
        return (await peer.node.call(server.id, FILE_HASHES, request, ManifestReply)).size_bytes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_files, "run_blocking", slowly)
        answers = await asyncio.gather(*(ask(swarm.peer()) for _ in range(3)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [RejectedError] * 3
        assert all("cannot be read here" in str(answer) for answer in answers)
    damaged.write_bytes(CONTENT[path])
    assert complete(await fetch(swarm.peer(), [server], swarm.folder / "here"), swarm.folder / "here")


@virtually
async def test_a_server_whose_file_is_gone_or_short_is_passed_over(swarm: Swarm) -> None:
    broken, honest, newcomer = server_of(swarm), server_of(swarm), swarm.peer()
    folder = swarm.folder / "here"
    (swarm.folder / "served" / broken.id[:8] / "data" / "train.txt").write_bytes(b"short")
    (swarm.folder / "served" / broken.id[:8] / "tokenizer.json").unlink()
    assert complete(await fetch(newcomer, [broken, honest], folder), folder)
    assert newcomer.offenders() == []


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/../../b", "con", "a\\b", "", "a" * 300])
def test_unsafe_names_are_refused(name: str, tmp_path: Path) -> None:
    async def test(swarm: Swarm) -> None:
        with pytest.raises(ProtocolError, match="cannot be stored"):
            await fetch_files(swarm.peer().node, [], {name: ENTRIES["empty"]}, swarm.folder / "here")
        assert not (swarm.folder / "here").exists()

    virtually(test)(tmp_path)


@virtually
async def test_a_disk_that_refuses_is_a_storage_error(swarm: Swarm) -> None:
    (swarm.folder / "here").write_bytes(b"a file where a folder should be")
    with pytest.raises(StorageError, match="here"):
        await fetch(swarm.peer(), [server_of(swarm)], swarm.folder / "here")


@virtually
async def test_bad_requests(swarm: Swarm) -> None:
    server, bad = server_of(swarm), swarm.peer()
    known = ENTRIES["data/train.txt"].blake3
    with pytest.raises(RejectedError, match="no file with this hash"):
        await bad.node.call(server.id, FILE_HASHES, ManifestRequest("0" * 64), ManifestReply)
    with pytest.raises(RejectedError, match="no file with this hash"):
        await bad.node.call(server.id, FILE_PIECES, OpenDownload("0" * 64), DownloadOpened)
    with pytest.raises(UnreachableError):
        await bad.node.call(server.id, FILE_PIECES, OpenDownload("../x"), DownloadOpened)
    for indices in ((6,), (0,) * 32):
        async with bad.node.open(server.id, FILE_PIECES) as stream:
            await stream.send(OpenDownload(known))
            await stream.receive(DownloadOpened)
            await stream.send(TakeChunks(indices))
            with pytest.raises(UnreachableError):
                await stream.receive(DownloadOpened)
    assert server.offenders() == [bad.id] * 3


@virtually
async def test_a_busy_peer_is_asked_again_until_it_has_time(swarm: Swarm) -> None:
    server, newcomer = server_of(swarm), swarm.peer()
    free, server.files._places = server.files._places, Places(0, 0)
    task = asyncio.ensure_future(fetch(newcomer, [server], swarm.folder / "here"))
    await asyncio.sleep(60.0)
    assert not task.done()
    server.files._places = free
    assert complete(await task, swarm.folder / "here")
    assert newcomer.offenders() == []


@virtually
async def test_a_peer_that_is_busy_for_ever_is_given_up(swarm: Swarm) -> None:
    server, newcomer = server_of(swarm), swarm.peer()
    server.files._places = Places(0, 0)
    with pytest.raises(UnreachableError, match="0 downloads are served at a time"):
        await fetch(newcomer, [server], swarm.folder / "here")


@virtually
async def test_a_file_that_another_process_finishes_meanwhile_is_taken(swarm: Swarm) -> None:
    server, newcomer, folder, name = server_of(swarm), swarm.peer(), swarm.folder / "here", "data/train.txt"

    def finish(arrived_bytes: int) -> None:
        if arrived_bytes > CHUNK_BYTES and (parts := list(folder.rglob("*.part"))):
            parts[0].replace(folder / name)  # what is still to come is written to the same file

    paths = await fetch(newcomer, [server], folder, {name: ENTRIES[name]}, arrived=finish)
    assert paths[name].read_bytes() == CONTENT[name]


@virtually
async def test_pieces_of_one_file_come_from_several_peers_at_once(swarm: Swarm) -> None:
    servers, newcomer = [server_of(swarm, rate=5e5) for _ in range(3)], swarm.peer()
    name = "data/train.txt"
    begun = asyncio.get_running_loop().time()
    await fetch(newcomer, servers, swarm.folder / "here", {name: ENTRIES[name]})
    alone_s = len(CONTENT[name]) / 5e5
    assert asyncio.get_running_loop().time() - begun < 0.6 * alone_s
    for server in servers:
        facts = newcomer.node.facts(server.id)
        assert facts is not None
        assert facts.bytes_received > CHUNK_BYTES


class ForgedHashes(RunFileServer):
    """Serves true pieces, and digests of other ones."""

    async def _send_hashes(self, peer: PeerId, stream: MessageStream) -> None:
        digest = (await stream.receive(ManifestRequest)).digest
        hashes = bytes(len(self._files[digest].hashes()))
        await stream.send(ManifestReply(len(hashes)))
        await stream.send_bulk(memoryview(hashes))


class Forger(ForgedHashes):
    """Serves other pieces than the file's, and the digests of these."""

    async def _send_hashes(self, peer: PeerId, stream: MessageStream) -> None:
        digest = (await stream.receive(ManifestRequest)).digest
        sizes = [min(CHUNK_BYTES, self._files[digest].entry.size_bytes - i * CHUNK_BYTES) for i in range(6)]
        hashes = b"".join(blake3(bytes(size)).digest() for size in sizes)
        await stream.send(ManifestReply(len(hashes)))
        await stream.send_bulk(memoryview(hashes))

    async def _send_pieces(self, peer: PeerId, stream: MessageStream) -> None:
        size_bytes = self._files[(await stream.receive(OpenDownload)).digest].entry.size_bytes

        async def zeros(index: int) -> memoryview:
            return memoryview(bytes(min(CHUNK_BYTES, size_bytes - index * CHUNK_BYTES)))

        await serve_chunks(stream, peer, 6, zeros)


@pytest.mark.parametrize("kind", [ForgedHashes, Forger])
def test_a_forged_list_of_pieces_convicts_its_sender(kind: type[RunFileServer], tmp_path: Path) -> None:
    name = "data/train.txt"

    async def test(swarm: Swarm) -> None:
        liar, honest, newcomer = server_of(swarm, kind=kind), server_of(swarm), swarm.peer()
        got = await fetch(newcomer, [liar, honest], swarm.folder / "here", {name: ENTRIES[name]})
        assert got[name].read_bytes() == CONTENT[name]
        assert newcomer.offenders() == [liar.id]

    virtually(test)(tmp_path)


def test_a_file_is_described_by_its_content(tmp_path: Path) -> None:
    for name, body in CONTENT.items():
        path = tmp_path / "file"
        path.write_bytes(body)
        assert describe_file(path) == ENTRIES[name]
