"""Checkpoints from the server to those who stand by.

split.checkpoint   CheckpointRequest -> CheckpointHeader, then bulk frames: the manifest in pages of at most PAGE_BYTES,
                   and the chunks of the state

Only peers that the run spec names as servers are served. Who fetches compares the manifest with its own part of the
model before it reserves memory, and each chunk with the manifest. Neither side waits longer than `CHUNK_TIMEOUT_S` for
the next frame to come, or to go: signs of life alone hold up nobody, and a standby that does not read keeps no other
from its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Annotated, Final

import msgspec
import torch

from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.core.errors import ConfigurationError, ProtocolError, RejectedError
from minga.core.refusal_code import RefusalCode
from minga.network.gossip.record_kinds import Count
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.split.server.sessions import MAX_CLIENTS, SessionState
from minga.split.standby.checkpoint import TopCheckpoint
from minga.training.state.manifest import MAX_MANIFEST_BYTES, Manifest, build_manifest
from minga.training.state.snapshot import StateSnapshot
from minga.training.transfer.messages import PAGE_BYTES, timely
from minga.training.transfer.server import send_pages

CHECKPOINT: Final = "split.checkpoint"
LOOK_S: Final = 0.05
MAX_WAIT_S: Final = 20.0
"""A request that nothing answers so long is refused, and comes again: who asked may be gone."""
_READ_NOTHING: Final = "read nothing of a checkpoint"

ClientId = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class CheckpointRequest(msgspec.Struct, frozen=True):
    """A peer that stands by, and `has_one`, has the checkpoint of this step, and wants the next."""

    step: Count
    has_one: bool


class CheckpointHeader(msgspec.Struct, frozen=True):
    """What comes with the state, and the size of its manifest, which follows."""

    samples: Count
    sessions: Annotated[dict[ClientId, SessionState], msgspec.Meta(max_length=MAX_CLIENTS)]
    manifest_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_MANIFEST_BYTES)]


class CheckpointServer:
    """Serves checkpoints that `take` makes, None while there are none, to the `allowed` peers; one at a time.

    It answers when `is_due(step)`, which is asked about the step that the other peer has.
    """

    def __init__(
        self,
        node: Node,
        allowed: Collection[str],
        is_due: Callable[[int], bool],
        take: Callable[[], Awaitable[TopCheckpoint | None]],
    ) -> None:
        self._allowed, self._is_due, self._take, self._turn = allowed, is_due, take, asyncio.Lock()
        node.serve(CHECKPOINT, self._serve)

    async def _serve(self, peer: PeerId, stream: MessageStream) -> None:
        request = await stream.receive(CheckpointRequest)
        if peer not in self._allowed:
            raise RejectedError("checkpoints go to the peers of split.servers alone", code=RefusalCode.ACCESS)
        looks = 0
        while request.has_one and not self._is_due(request.step):
            looks += 1
            if looks * LOOK_S > MAX_WAIT_S:
                raise RejectedError("there is nothing newer yet", code=RefusalCode.NOT_READY)
            await asyncio.sleep(LOOK_S)
        async with self._turn:
            checkpoint = await self._take()
            if checkpoint is None:
                raise RejectedError("this peer does not serve", code=RefusalCode.NOT_READY)
            manifest = await asyncio.get_running_loop().run_in_executor(None, build_manifest, checkpoint.snapshot)
            encoded = manifest.encoded
            await stream.send(CheckpointHeader(checkpoint.samples, checkpoint.sessions, len(encoded)))
            await send_pages(stream, memoryview(encoded), PAGE_BYTES, peer)
            start, whole = 0, checkpoint.snapshot.bytes_view
            for index in range(manifest.chunk_count):
                stop = start + manifest.chunk_size(index)
                await timely(stream.send_bulk(whole[start:stop]), peer, _READ_NOTHING)
                start = stop


async def fetch(
    node: Node, server: PeerId, last: TopCheckpoint | None, check: Callable[[Manifest], None]
) -> TopCheckpoint:
    """The next checkpoint of `server` after the `last` one, once it is due.

    `check` raises `ConfigurationError` for one of another kind of part.

    Raises `RemoteError`, among them `ProtocolError` for what cannot be used and `SilentError` for what does not come.
    """
    async with node.open(server, CHECKPOINT, bulk=True) as stream:
        await stream.send(CheckpointRequest(0 if last is None else last.step, last is not None))
        await stream.finish()
        header = await timely(stream.receive(CheckpointHeader), server, "sent no checkpoint")
        encoded = await timely(stream.receive_pages(header.manifest_bytes, PAGE_BYTES), server, "sent no manifest")
        try:
            manifest = Manifest.decode(bytes(encoded))
            check(manifest)
        except (ValueError, ConfigurationError) as error:
            raise ProtocolError(f"its checkpoint cannot be used here: {error}", peer=server) from error
        buffer = torch.zeros(manifest.total_bytes, dtype=torch.uint8)
        view, start = as_bytes(buffer), 0
        for index in range(manifest.chunk_count):
            chunk = view[start : start + manifest.chunk_size(index)]
            await timely(stream.receive_bulk_into(chunk), server, "sent no chunk")
            if not manifest.verify_chunk(index, chunk):
                raise ProtocolError(f"chunk {index} of its checkpoint has another hash", peer=server)
            start += chunk.nbytes
        await timely(stream.receive_end(), server, "did not end its checkpoint")
    snapshot = StateSnapshot(manifest.step, manifest.tensors, manifest.scalars, buffer)
    return TopCheckpoint(snapshot, header.samples, header.sessions)
