"""The signed run spec and the files of a run (tokenizer, data): served by every peer that has them, and fetched.

    run.describe      no request -> DescribeRunReply                     the signed run spec
    run.file_hashes   ManifestRequest -> ManifestReply, then pages        the digests of a file's pieces, 32 bytes each
    run.file_pieces   OpenDownload, then Take -> one bulk frame for each index, as often as wanted

The link names the run, the spec is signed, and the spec holds the hash and size of each file. So all of it can come
from any peer, and every peer serves the files that it has, in pieces of 1 MiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import torch
from blake3 import blake3

from minga.core.aio import Backoff, end
from minga.core.errors import (
    ProtocolError,
    RejectedError,
    RemoteError,
    SilentError,
    StateMismatchError,
    StorageError,
    UnreachableError,
    reason_of,
)
from minga.core.events.training import RunFileFailed
from minga.core.files import Content, link_or_copy
from minga.core.refusal_code import RefusalCode
from minga.core.spec.sections import FileEntry, check_file_names
from minga.core.thread_guard import loop_bound
from minga.identity.links.signed_spec import MAX_SIGNED_SPEC_BYTES, SignedRunSpec
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.training.state.manifest import CHUNK_BYTES, HASH_BYTES, hash_chunks
from minga.training.transfer.chunk_fetch import ChunkFetch, ChunkSource
from minga.training.transfer.download import receive_manifest
from minga.training.transfer.messages import CHUNK_TIMEOUT_S, ManifestRequest, OpenDownload
from minga.training.transfer.part_file import PartFile
from minga.training.transfer.server import Places, send_manifest, serve_chunks

# ---- The pieces of a file, 1 MiB each, with a digest for each, so that several peers can send the file at once.
#
# Theory of operation. The run spec holds the BLAKE3 of a file, its size, and the BLAKE3 of the concatenated digests of
# its pieces (`pieces`). So a list of digests can come from any peer and is checked by its hash, and each piece is
# checked by its digest as it arrives. The list of a file that is one piece is the digest of the file.


READ_BYTES = 8 * CHUNK_BYTES


logger = logging.getLogger("minga.training")


@dataclass(frozen=True)
class FilePieces:
    """A file by the digests of its pieces; `hashes` are 32 bytes for each of them."""

    name: str
    digest: str
    total_bytes: int
    hashes: bytes

    @property
    def label(self) -> str:
        """What error messages call the file."""
        return f"the file {self.name}"

    @property
    def chunk_count(self) -> int:
        """The number of pieces; the last one may be short."""
        return piece_count(self.total_bytes)

    def chunk_size(self, index: int) -> int:
        """Bytes of one piece."""
        return min(CHUNK_BYTES, self.total_bytes - index * CHUNK_BYTES)

    def verify_chunk(self, index: int, data: memoryview) -> bool:
        """Whether `data` is piece `index`."""
        known = self.hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]
        return data.nbytes == self.chunk_size(index) and blake3(data).digest() == known


def piece_count(size_bytes: int) -> int:
    """How many pieces a file of that size has."""
    return -(-size_bytes // CHUNK_BYTES)


def hash_pieces(content: Content) -> bytes:
    """The digests of the pieces of a file. Raises `OSError`."""
    return hash_chunks(_blocks(content))


def whole_digest(content: Content) -> str:
    """BLAKE3 of a file, 64 hexadecimal digits. Raises `OSError`."""
    hasher = blake3()
    for block in _blocks(content):
        hasher.update(block)
    return hasher.hexdigest()


def describe_file(content: Content) -> FileEntry:
    """What a run spec says of a file. Raises `OSError`."""
    whole, size_bytes = blake3(), 0

    def read() -> Iterator[memoryview]:
        nonlocal size_bytes
        for block in _blocks(content):
            whole.update(block)
            size_bytes += block.nbytes
            yield block

    pieces = blake3(hash_chunks(read())).hexdigest()
    return FileEntry(blake3=whole.hexdigest(), size_bytes=size_bytes, pieces=pieces)


def is_intact(path: Path, digest: str, size_bytes: int) -> bool:
    """Whether the file is there and has that digest and size. Raises `OSError` for a file that cannot be read."""
    try:
        return path.stat().st_size == size_bytes and whole_digest(path) == digest
    except FileNotFoundError:
        return False


def _blocks(content: Content) -> Iterator[memoryview]:
    if isinstance(content, bytes):
        yield memoryview(content)
        return
    with content.open("rb") as file:
        while block := file.read(READ_BYTES):
            yield memoryview(block)


# ---- Serving the signed run spec and the files of a run.


DESCRIBE_RUN, FILE_HASHES, FILE_PIECES = "run.describe", "run.file_hashes", "run.file_pieces"

MAX_SENDING = 64
"""Streams on which pieces are sent at once; each has one piece of 1 MiB in flight, and what the transport buffers."""

MAX_SENDING_TO_ONE = 8

T = TypeVar("T")


class DescribeRunRequest(msgspec.Struct, frozen=True):
    """What run is this?"""


class DescribeRunReply(msgspec.Struct, frozen=True):
    """The signed run spec, encoded."""

    signed_spec: Annotated[bytes, msgspec.Meta(max_length=MAX_SIGNED_SPEC_BYTES)]


async def run_blocking(function: Callable[..., T], *arguments: Any) -> T:
    """Call something that waits for the disk, outside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: function(*arguments))


@dataclass(frozen=True)
class _Served:
    path: Path
    entry: FileEntry

    def hashes(self) -> bytes:
        """The digests of the pieces. Raises `OSError` if the file is not what it was."""
        hashes = hash_pieces(self.path)
        if blake3(hashes).hexdigest() != self.entry.pieces:
            raise OSError("the file is damaged")
        return hashes

    def piece(self, index: int) -> bytes:
        """One piece. Raises `OSError`."""
        start = index * CHUNK_BYTES
        size_bytes = min(CHUNK_BYTES, self.entry.size_bytes - start)
        with self.path.open("rb") as file:
            file.seek(start)
            data = file.read(size_bytes)
        if len(data) < size_bytes:
            raise OSError("the file is not complete")
        return data


@loop_bound
class RunFileServer:
    """Serves the signed spec and files on `node`; `files` maps the names of the spec to where they lie here."""

    def __init__(
        self, node: Node, signed_spec: SignedRunSpec, spec_files: Mapping[str, FileEntry], files: Mapping[str, Path]
    ) -> None:
        self._reply = DescribeRunReply(signed_spec.encode())
        self._files = {spec_files[name].blake3: _Served(path, spec_files[name]) for name, path in files.items()}
        self._hashes: dict[str, asyncio.Future[bytes]] = {}
        self._places = Places(MAX_SENDING, MAX_SENDING_TO_ONE)
        node.serve(DESCRIBE_RUN, self._describe)
        node.serve(FILE_HASHES, self._send_hashes)
        node.serve(FILE_PIECES, self._send_pieces)

    async def _describe(self, _: PeerId, stream: MessageStream) -> None:
        await stream.receive(DescribeRunRequest)
        await stream.send(self._reply)

    async def _send_hashes(self, peer: PeerId, stream: MessageStream) -> None:
        digest = (await stream.receive(ManifestRequest)).digest
        served = self._served(digest)
        hashing = self._hashes.get(digest)
        if hashing is None:  # computed once, for all that ask meanwhile and later
            hashing = self._hashes[digest] = asyncio.ensure_future(run_blocking(served.hashes))
        try:
            hashes = await asyncio.shield(hashing)
        except OSError as error:
            if self._hashes.get(digest) is hashing:  # else another request that waited for it was faster
                del self._hashes[digest]
            raise RejectedError("the file cannot be read here", code=RefusalCode.GONE, peer=peer) from error
        await send_manifest(stream, hashes, peer)

    async def _send_pieces(self, peer: PeerId, stream: MessageStream) -> None:
        served = self._served((await stream.receive(OpenDownload)).digest)
        with self._places.of(peer):
            await serve_chunks(stream, peer, piece_count(served.entry.size_bytes), partial(_piece, served))

    def _served(self, digest: str) -> _Served:
        served = self._files.get(digest)
        if served is None:
            raise RejectedError("no file with this hash is served here", code=RefusalCode.GONE)
        return served


async def _piece(served: _Served, index: int) -> memoryview:
    try:
        return memoryview(await run_blocking(served.piece, index))
    except OSError as error:
        raise RejectedError("the file cannot be read here", code=RefusalCode.GONE) from error


# ---- Fetching one file of a run in pieces from several peers, verified and resumable.
#
# Theory of operation. The digests of the pieces come from one peer; then all peers send pieces side by side, as with a
# state (`download.py`). Pieces lie in their places in a file whose name ends in `.part`; hashing finds those that
# an earlier attempt, or another process, has brought. At last the whole file is hashed.
#
# The run spec holds the hash of the list of digests, so a wrong list is found before a piece is asked for.
#
# A peer that is busy has done nothing wrong: if only such peers are left, they are asked again after a pause.


MAX_DONORS = 8
"""Peers that send pieces of one file at once."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 15.0
MAX_PAUSES = 40
"""Pauses without a new piece before busy peers are given up: some ten minutes."""
MOST_BROKEN = 2
"""Times that a peer may fall silent or out of reach without a new piece. Once is usual, and where this machine's own
line falters for a moment all peers do.
"""


class FileFetch:
    """Fetches the file `name`, of which the run spec says `entry`, into `directory`. Where `own`, a folder of this
    machine, has the file, it is taken from there.
    """

    def __init__(self, node: Node, name: str, entry: FileEntry, directory: Path, own: Path | None = None) -> None:
        self._node, self._name, self._entry = node, name, entry
        self._final, self._own = directory / name, own
        self._part = self._final.with_name(f"{self._final.name}.{entry.blake3[:16]}.part")
        self._failed: dict[PeerId, RemoteError] = {}
        self._broken = Counter[PeerId]()

    async def run(self, peers: Sequence[PeerId]) -> Path:
        """The file, from the disk or from `peers`. Raises `UnreachableError` and `OSError`."""
        if not (await run_blocking(self._is_intact, self._final) or await run_blocking(self._take_own)):
            pieces = await self._pieces(peers)
            part = PartFile(self._part, pieces)
            had_part = await run_blocking(part.open)
            try:
                await self._fetch(pieces, part, await run_blocking(part.found) if had_part else set(), peers)
            finally:
                await run_blocking(part.close)
            if not await run_blocking(self._is_here):
                raise OSError(f"{self._part} does not hold what was written to it")
            await run_blocking(self._finish)
        return self._final

    async def _pieces(self, peers: Sequence[PeerId]) -> FilePieces:
        """The file by the digests of its pieces, from the first peer that has the right ones."""
        entry = self._entry
        if piece_count(entry.size_bytes) <= 1:
            return FilePieces(self._name, entry.blake3, entry.size_bytes, bytes.fromhex(entry.blake3))
        for attempt in range(MOST_BROKEN):
            usable = self._usable(peers)
            if attempt and usable:
                await asyncio.sleep(FIRST_PAUSE_S)
            for peer in usable:
                try:
                    size_bytes = piece_count(entry.size_bytes) * HASH_BYTES
                    hashes = await receive_manifest(self._node, peer, entry.blake3, FILE_HASHES, size_bytes)
                    if blake3(hashes).hexdigest() != entry.pieces:
                        what = f"sent digests of pieces of the file {self._name} that do not match their hash"
                        raise StateMismatchError(what, peer=peer, phase="run files")
                except RemoteError as error:
                    self._drop(peer, error)
                else:
                    return FilePieces(self._name, entry.blake3, entry.size_bytes, bytes(hashes))
        raise self._nobody()

    # ---- the pieces

    async def _fetch(self, pieces: FilePieces, part: PartFile, found: set[int], peers: Sequence[PeerId]) -> None:
        """Fetch the pieces but those that were `found` here."""
        missing = [index for index in range(pieces.chunk_count) if index not in found]
        pause, pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), 0
        while missing and (donors := self._usable(peers)):
            stored: set[int] = set()
            source = ChunkSource(self._node, FILE_PIECES, self._drop)
            store = partial(self._store, part, stored)
            fetch = ChunkFetch(source, pieces, missing, store, torch.device("cpu"))
            await fetch.run(donors[:MAX_DONORS])
            missing = [index for index in missing if index not in stored]
            if stored:
                pauses = 0
                pause.overcome()
                self._broken.clear()
            if missing and (pauses := pauses + 1) > MAX_PAUSES:
                raise self._nobody()
            if missing:
                await asyncio.sleep(pause.next_s())
        if missing:
            raise self._nobody()

    async def _store(self, part: PartFile, stored: set[int], index: int, data: memoryview) -> None:
        await run_blocking(part.write, index, data)
        stored.add(index)

    # ---- peers

    def _usable(self, peers: Sequence[PeerId]) -> list[PeerId]:
        """The peers that have not failed, or may do better at another time."""
        return [peer for peer in peers if peer not in self._failed or self._may_recover(peer, self._failed[peer])]

    def _may_recover(self, peer: PeerId, error: RemoteError) -> bool:
        return _is_busy(error) or (_is_broken(error) and self._broken[peer] < MOST_BROKEN)

    def _drop(self, peer: PeerId, error: RemoteError) -> None:
        if isinstance(error, StateMismatchError):
            self._node.offend(peer, str(error))
        if not _is_busy(error):
            self._node.events.emit(RunFileFailed(peer=peer, file=self._name, reason=str(error)))
        self._failed[peer] = error
        self._broken[peer] += _is_broken(error)

    def _nobody(self) -> UnreachableError:
        return UnreachableError(f"nobody could send the file {self._name} ({reasons(self._failed)})", phase="run files")

    # ---- the disk

    def _is_intact(self, path: Path) -> bool:
        return is_intact(path, self._entry.blake3, self._entry.size_bytes)

    def _take_own(self) -> bool:
        """Whether the owner of this machine has the file, which is then given its name here."""
        if self._own is None or (path := lies_in(self._own, self._name, self._entry.size_bytes)) is None:
            return False
        try:
            wrong = "" if self._is_intact(path) else f"is another file than the {self._name} of this run"
        except OSError as error:
            wrong = f"cannot be read ({reason_of(error)})"
        if wrong:
            logger.warning("%s %s: %s comes from peers", path, wrong, self._name)
            return False
        self._final.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(path, self._final)
        return True

    def _is_here(self) -> bool:
        """Whether the whole is right; another process that fetched the same file may have given it its name."""
        return self._is_intact(self._part) or self._is_intact(self._final)

    def _finish(self) -> None:
        try:
            self._part.replace(self._final)
        except OSError:
            if not self._is_intact(self._final):  # else another process finished the same file
                raise


def lies_in(folder: Path, name: str, size_bytes: int) -> Path | None:
    """Where a file of a run may lie in a folder of this machine, by its name, with or without folders, and its size."""
    for path in (folder / name, folder / Path(name).name):
        with contextlib.suppress(OSError):
            if path.stat().st_size == size_bytes:
                return path
    return None


def reasons(failed: Mapping[PeerId, RemoteError]) -> str:
    """Why each peer could not send something, for people."""
    return "; ".join(f"{peer[:10]}: {error.message}" for peer, error in failed.items()) or "there was nobody to ask"


def _is_busy(error: RemoteError) -> bool:
    return isinstance(error, RejectedError) and error.code == RefusalCode.BUSY


def _is_broken(error: RemoteError) -> bool:
    return isinstance(error, UnreachableError | SilentError)


# ---- Fetching the signed run spec and the files of a run from any peers that have them.
#
# A few files are fetched side by side, each in pieces from several peers (`FileFetch`).


AT_ONCE = 4
"""Files that are fetched side by side."""


async def fetch_run_spec(
    node: Node, peers: Sequence[PeerId], check: Callable[[SignedRunSpec, PeerId], None]
) -> SignedRunSpec:
    """The signed run spec from the first of `peers` that has a genuine one.

    `check(signed, peer)` raises `ProtocolError` for one that is not, see `SignedRunSpec.verify`. Raises
    `UnreachableError` with the reason of each peer if none has one, and any `LocalError` that `check` raises.
    """
    failed: dict[PeerId, RemoteError] = {}
    for peer in peers:
        try:
            request = DescribeRunRequest()
            reply = await node.call(peer, DESCRIBE_RUN, request, DescribeRunReply, timeout_s=CHUNK_TIMEOUT_S)
        except RemoteError as error:
            failed[peer] = error
            continue
        try:
            signed = SignedRunSpec.decode(reply.signed_spec, peer=peer)
            check(signed, peer)
        except RemoteError as error:
            node.offend(peer, str(error))
            failed[peer] = error
            continue
        return signed
    raise UnreachableError(f"nobody could send the run spec ({reasons(failed)})", phase="run spec")


async def fetch_files(
    node: Node,
    peers: Sequence[PeerId],
    files: Mapping[str, FileEntry],
    directory: Path,
    own: Path | None = None,
) -> dict[str, Path]:
    """Fetch the files of a run from `peers` into `directory`, by their names; those that are there are only verified,
    as are those that lie in `own`, a folder of this machine.

    Raises `UnreachableError` with the reason of each peer if a file cannot be had (what arrived stays for the next
    attempt), `StorageError` if the disk refuses, and `ProtocolError` for file names that are not safe.
    """
    try:
        check_file_names(list(files))
    except ValueError as error:
        raise ProtocolError(f"the run's files cannot be stored: {error}", phase="run files") from error
    places = asyncio.Semaphore(AT_ONCE)

    async def fetch(number: int, name: str, entry: FileEntry) -> Path:
        async with places:
            return await FileFetch(node, name, entry, directory, own).run(_rotated(peers, number))

    tasks = [asyncio.ensure_future(fetch(i, name, entry)) for i, (name, entry) in enumerate(files.items())]
    try:
        return dict(zip(files, await asyncio.gather(*tasks), strict=True))
    except OSError as error:
        raise StorageError(f"the files of the run cannot be stored in {directory}: {reason_of(error)}") from error
    finally:
        await end(*tasks)


def _rotated(peers: Sequence[PeerId], by: int) -> list[PeerId]:
    """`peers` beginning with another one for each `by`, which spreads the load."""
    by %= max(1, len(peers))
    return [*peers[by:], *peers[:by]]
