"""Receipts for peers that take no part, such as monitors: a member sends the file of all, which they verify themselves.

    receipts.file     FileRequest -> FileReply, then bulk frames of at most PAGE_BYTES until all bytes came

The file is made on another thread, once for all that ask within `FRESH_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated

import msgspec

from minga.core.errors import ConfigurationError, RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.identity.links.signed_spec import SignedRunSpec
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node
from minga.training.receipts.book import ReceiptBook
from minga.training.receipts.document import (
    MAX_FILE_BYTES,
    ReceiptError,
    VerifiedReceipts,
    verify_document,
    write_document,
)

FILE = "receipts.file"
FRESH_S = 60.0
"""Seconds for which a file that was made is sent again."""
FETCH_S = 120.0
"""Seconds that a member has to send its file, alive or not."""
PAGE_BYTES = 1 << 20
MAX_ASKED = 3
"""Members that a reader asks, one after the other."""


class FileRequest(msgspec.Struct, frozen=True):
    """What do the members attest?"""


class FileReply(msgspec.Struct, frozen=True):
    """A file of so many bytes follows."""

    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_FILE_BYTES)]


@loop_bound
class ReceiptFileServer:
    """Serves what is in a member's book."""

    def __init__(self, node: Node, book: ReceiptBook, signed_spec: SignedRunSpec) -> None:
        self._book, self._signed_spec = book, signed_spec
        self._making = asyncio.Lock()
        self._made, self._made_s = b"", float("-inf")
        node.serve(FILE, self._serve)

    async def _serve(self, peer: PeerId, stream: MessageStream) -> None:
        await stream.receive(FileRequest)
        data = await self._file(peer)
        await stream.send(FileReply(len(data)))
        for start in range(0, len(data), PAGE_BYTES):
            await stream.send_bulk(memoryview(data)[start : start + PAGE_BYTES])

    async def _file(self, peer: PeerId) -> bytes:
        loop = asyncio.get_running_loop()
        async with self._making:
            if loop.time() - self._made_s >= FRESH_S:
                try:
                    self._made = await loop.run_in_executor(
                        None, write_document, self._book.snapshot(), self._signed_spec
                    )
                except ConfigurationError as error:
                    raise RejectedError(str(error), code=RefusalCode.GONE, peer=peer) from error
                self._made_s = loop.time()
            return self._made


async def fetch_receipts(node: Node, members: Iterable[PeerId], run_id: str, organiser: str) -> VerifiedReceipts | None:
    """What a member sends, verified; None if none of the first few members has anything that holds.

    Which rounds there are is the member's word: another one may know more.
    """
    loop = asyncio.get_running_loop()
    for member in list(members)[:MAX_ASKED]:
        try:
            async with asyncio.timeout(FETCH_S):
                data = await _fetch(node, member)
            return await loop.run_in_executor(None, verify_document, data, run_id, organiser)
        except ReceiptError as error:
            node.offend(member, f"its receipts prove nothing: {error}")
        except (RemoteError, TimeoutError):
            continue
    return None


async def _fetch(node: Node, member: PeerId) -> bytes:
    async with node.open(member, FILE, bulk=True) as stream:
        await stream.send(FileRequest())
        await stream.finish()
        data = await stream.receive_pages((await stream.receive(FileReply)).size, PAGE_BYTES)
        await stream.receive_end()
    return bytes(data)
