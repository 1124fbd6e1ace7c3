"""The signed run spec and the files that come with a run (tokenizer, data), served by every peer that has them.

    run.describe      no request -> DescribeRunReply                     the signed run spec
    run.file_hashes   ManifestRequest -> ManifestReply, then pages        the digests of a file's pieces, 32 bytes each
    run.file_pieces   OpenDownload, then Take -> one bulk frame for each index, as often as wanted

The link names the run, the spec is signed, and the spec holds the hash and size of each file. So all of it can come
from any peer, and every peer serves the files that it has, in pieces of 1 MiB (`file_pieces.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from blake3 import blake3

from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.core.spec.sections import FileEntry
from minga.core.thread_guard import loop_bound
from minga.identity.links.signed_spec import MAX_SIGNED_SPEC_BYTES, SignedRunSpec
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node
from minga.training.state.manifest import CHUNK_BYTES, HASH_BYTES
from minga.training.transfer.chunk_serving import send_pages, serve_chunks
from minga.training.transfer.file_pieces import hash_pieces, piece_count
from minga.training.transfer.messages import PAGE_BYTES, ManifestReply, ManifestRequest, OpenDownload

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
        known = self.entry.pieces
        if len(hashes) != piece_count(self.entry.size_bytes) * HASH_BYTES or known not in (
            None,
            blake3(hashes).hexdigest(),
        ):
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
        self._sending: dict[PeerId, int] = {}
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
        await stream.send(ManifestReply(len(hashes)))
        await send_pages(stream, memoryview(hashes), PAGE_BYTES, peer)

    async def _send_pieces(self, peer: PeerId, stream: MessageStream) -> None:
        served = self._served((await stream.receive(OpenDownload)).digest)
        with self._place(peer):
            await serve_chunks(stream, peer, piece_count(served.entry.size_bytes), partial(_piece, served))

    def _served(self, digest: str) -> _Served:
        served = self._files.get(digest)
        if served is None:
            raise RejectedError("no file with this hash is served here", code=RefusalCode.GONE)
        return served

    @contextmanager
    def _place(self, peer: PeerId) -> Iterator[None]:
        """One of the streams on which pieces are sent at once."""
        if sum(self._sending.values()) >= MAX_SENDING or self._sending.get(peer, 0) >= MAX_SENDING_TO_ONE:
            raise RejectedError(f"{MAX_SENDING} files are sent at a time", code=RefusalCode.BUSY, peer=peer)
        self._sending[peer] = self._sending.get(peer, 0) + 1
        try:
            yield
        finally:
            self._sending[peer] -= 1
            if not self._sending[peer]:
                del self._sending[peer]


async def _piece(served: _Served, index: int) -> memoryview:
    try:
        return memoryview(await run_blocking(served.piece, index))
    except OSError as error:
        raise RejectedError("the file cannot be read here", code=RefusalCode.GONE) from error
