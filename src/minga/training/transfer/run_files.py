"""The signed run spec and the files that come with a run (tokenizer, data), served by every peer that has them.

    run.describe   no request -> DescribeRunReply                     the signed run spec
    run.file       FileRequest -> bulk frames of at most PAGE_BYTES   the file from an offset to its end

The link names the run, the spec is signed, and the spec holds the hash and size of each file. So all of it can come
from any peer, and every peer serves the files that it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import msgspec

from minga.core.errors import ProtocolError, RejectedError
from minga.core.thread_guard import loop_bound
from minga.identity.links.signed_spec import MAX_SIGNED_SPEC_BYTES, SignedRunSpec
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node
from minga.training.transfer.messages import timely

DESCRIBE_RUN, FILE = "run.describe", "run.file"

PAGE_BYTES = 256 << 10
MAX_FILE_BYTES = 1 << 40
MAX_SENDING = 16


T = TypeVar("T")


class FileFacts(Protocol):
    """What a run spec says of a file."""

    @property
    def blake3(self) -> str:
        """BLAKE3 of the content, 64 hexadecimal digits."""

    @property
    def size_bytes(self) -> int:
        """Size of the content."""


class DescribeRunRequest(msgspec.Struct, frozen=True):
    """What run is this?"""


class DescribeRunReply(msgspec.Struct, frozen=True):
    """The signed run spec, encoded."""

    signed_spec: Annotated[bytes, msgspec.Meta(max_length=MAX_SIGNED_SPEC_BYTES)]


class FileRequest(msgspec.Struct, frozen=True):
    """Send the file with this hash from `offset` bytes on."""

    blake3: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    offset: Annotated[int, msgspec.Meta(ge=0, le=MAX_FILE_BYTES)]


async def run_blocking(function: Callable[..., T], *arguments: Any) -> T:
    """Call something that waits for the disk, outside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: function(*arguments))


@loop_bound
class RunFileServer:
    """Serves the signed spec and files on `node`; `files` maps the names of the spec to where they lie here."""

    def __init__(
        self, node: Node, signed_spec: SignedRunSpec, spec_files: Mapping[str, FileFacts], files: Mapping[str, Path]
    ) -> None:
        self._reply = DescribeRunReply(signed_spec.encode())
        self._files = {spec_files[name].blake3: (path, spec_files[name].size_bytes) for name, path in files.items()}
        self._sending = 0
        node.serve(DESCRIBE_RUN, self._describe)
        node.serve(FILE, self._send)

    async def _describe(self, _: PeerId, stream: MessageStream) -> None:
        await stream.receive(DescribeRunRequest)
        await stream.send(self._reply)

    async def _send(self, peer: PeerId, stream: MessageStream) -> None:
        request = await stream.receive(FileRequest)
        path, size_bytes = self._files.get(request.blake3, (None, 0))
        if path is None:
            raise RejectedError("no file with this hash is served here", code="gone", peer=peer)
        if request.offset > size_bytes:
            raise ProtocolError(f"asked for byte {request.offset} of a file of {size_bytes}", peer=peer)
        if self._sending >= MAX_SENDING:
            raise RejectedError(f"{MAX_SENDING} files are sent at a time", code="busy", peer=peer)
        self._sending += 1
        try:
            await _send_file(stream, path, request.offset, size_bytes, peer)
        finally:
            self._sending -= 1


async def _send_file(stream: MessageStream, path: Path, offset: int, size_bytes: int, peer: PeerId) -> None:
    try:
        with await run_blocking(_open, path, offset) as file:
            while offset < size_bytes:
                page = await run_blocking(file.read, min(PAGE_BYTES, size_bytes - offset))
                if not page:
                    raise RejectedError("the file is not complete here", code="gone", peer=peer)
                await timely(stream.send_bulk(page), peer, "took no data")
                offset += len(page)
    except OSError as error:
        raise RejectedError("the file cannot be read here", code="gone", peer=peer) from error


def _open(path: Path, offset: int) -> BufferedReader:
    file = path.open("rb")
    file.seek(offset)
    return file
