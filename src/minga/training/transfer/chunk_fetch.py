"""Fetching chunks of a state or of a file from several donors at once.

Theory of operation. Every donor has one task and one stream. The tasks take indices from one common queue, a second's
worth at a time by the donor's measured pace, so that a fast donor serves more. When the queue is empty, an idle task
asks its donor for chunks of another donor that takes unusually long, or that is silent, and the first copy that
verifies counts. So neither a dead nor a very slow donor delays the end. Each chunk is received into a buffer of the
task's own and verified before it is copied to its place. A donor that fails gives its indices back to the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.core.aio.ending import end
from minga.core.aio.signal import Signal
from minga.core.errors import RemoteError, StateMismatchError
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node
from minga.training.state.manifest import CHUNK_BYTES
from minga.training.transfer.messages import MAX_TAKE, DownloadOpened, OpenDownload, TakeChunks, timely

PIPELINE_S = 1.0
"""Seconds of transfer that are asked for ahead: far more than a round trip, little to lose when a donor dies."""

PATIENCE_CHUNKS = 4.0
"""A chunk is overdue at its donor when an idle donor could have sent this many meanwhile, and `PIPELINE_S` passed."""

QUIET_S = 0.5
"""A donor whose signs of life are overdue by so much, and a round trip, may be dead."""

FIRST_CHUNK_S = 2.0
"""Seconds assumed for a chunk of a donor that has not sent any yet."""

OnChunk = Callable[[int, memoryview], Awaitable[None]]
OnDropped = Callable[[PeerId, RemoteError], None]


class Chunked(Protocol):
    """What can be fetched in chunks of `CHUNK_BYTES`, each verified by a digest that is known before."""

    @property
    def digest(self) -> str:
        """Its name among the donors, 64 hexadecimal digits."""

    @property
    def label(self) -> str:
        """What error messages call it."""

    def chunk_size(self, index: int) -> int:
        """Bytes of one chunk."""

    def verify_chunk(self, index: int, data: memoryview) -> bool:
        """Whether `data` is chunk `index`."""


@dataclass(frozen=True)
class ChunkSource:
    """Where chunks come from: the method that donors serve them by, and what to do when one is not used any more."""

    node: Node
    method: str
    dropped: OnDropped


@loop_bound
class ChunkFetch:
    """Fetches the chunks `missing` of `wanted`; `on_chunk(index, data)` gets each once, verified.

    Memory is taken on `device`, which is "meta" for a state without content.

    `data` is valid only until the callback returns. `received_bytes` counts what came from each donor, `failed` tells
    why donors dropped out.
    """

    def __init__(
        self, source: ChunkSource, wanted: Chunked, missing: Sequence[int], on_chunk: OnChunk, device: torch.device
    ) -> None:
        self._source, self._node, self._wanted, self._on_chunk = source, source.node, wanted, on_chunk
        self._device = device
        self._queue = deque(missing)
        self._missing = set(missing)
        self._arriving: set[int] = set()
        self._asked: dict[int, dict[PeerId, float]] = {}
        self._streams: dict[PeerId, MessageStream] = {}
        self._changed = Signal()
        self.received_bytes: dict[PeerId, int] = {}
        self.failed: dict[PeerId, RemoteError] = {}

    @property
    def complete(self) -> bool:
        """Whether every chunk arrived."""
        return not self._missing

    async def run(self, donors: Sequence[PeerId]) -> None:
        """Fetch until everything is there or all donors dropped out. Raises only `LocalError`s and `OSError`."""
        tasks = {asyncio.ensure_future(self._serve_from(donor)) for donor in donors}
        try:
            pending = tasks
            while pending and not self.complete:
                finished, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in finished:
                    task.result()
        finally:
            await end(*tasks)

    async def _serve_from(self, donor: PeerId) -> None:
        try:
            async with self._node.open(donor, self._source.method, bulk=True) as stream:
                await stream.send(OpenDownload(self._wanted.digest))
                # Waiting for this costs one round trip, and lets the reason of a refusal arrive.
                await timely(stream.receive(DownloadOpened), donor, "sent no chunk")
                self._streams[donor] = stream
                await self._pull(donor, stream)
        except RemoteError as error:
            self.failed[donor] = error
            self._source.dropped(donor, error)
        finally:
            self._streams.pop(donor, None)
            self._give_back(donor)

    async def _pull(self, donor: PeerId, stream: MessageStream) -> None:
        clock = asyncio.get_running_loop().time
        scratch = as_bytes(torch.empty(CHUNK_BYTES, dtype=torch.uint8, device=self._device))
        pending: deque[int] = deque()
        chunk_s = FIRST_CHUNK_S
        last = clock()
        while not self.complete:
            depth = max(2, min(MAX_TAKE, round(PIPELINE_S / chunk_s)))
            if len(pending) <= depth // 2 and (indices := self._assign(donor, depth - len(pending), chunk_s)):
                last = clock() if not pending else last
                await stream.send(TakeChunks(tuple(indices)))
                pending.extend(indices)
            if not pending:
                await self._changed.wait(min(_patience_s(chunk_s), QUIET_S / 2))
                continue
            index = pending.popleft()
            data = scratch[: self._wanted.chunk_size(index)]
            await self._receive(donor, stream, index, data)
            # The pace is the mean of the last few chunks, so that one hiccup does not decide.
            now = clock()
            measured_s = max(now - last, 1e-6)
            chunk_s = measured_s if chunk_s == FIRST_CHUNK_S else 0.7 * chunk_s + 0.3 * measured_s
            last = now
            await self._take_in(index, data)
        with contextlib.suppress(RemoteError):
            await stream.send(TakeChunks(()))
            await stream.finish()

    async def _receive(self, donor: PeerId, stream: MessageStream, index: int, data: memoryview) -> None:
        await timely(stream.receive_bulk_into(data), donor, "sent no chunk")
        self.received_bytes[donor] = self.received_bytes.get(donor, 0) + data.nbytes
        if not self._wanted.verify_chunk(index, data):
            raise StateMismatchError(
                f"chunk {index} of {self._wanted.label} does not match its hash", peer=donor, phase="download"
            )

    async def _take_in(self, index: int, data: memoryview) -> None:
        self._asked.pop(index, None)
        if index not in self._missing or index in self._arriving:
            return  # another donor was faster
        self._arriving.add(index)
        await self._on_chunk(index, data)
        self._missing.remove(index)
        if self.complete:
            self._changed.fire()

    def _assign(self, donor: PeerId, count: int, chunk_s: float) -> list[int]:
        """Up to `count` indices to ask `donor` for: from the queue, or else one that is overdue elsewhere."""
        now = asyncio.get_running_loop().time()
        indices = [self._queue.popleft() for _ in range(min(count, len(self._queue)))]
        if not indices:
            overdue = (
                (max(askers.values()), index)
                for index, askers in self._asked.items()
                if donor not in askers
                and (now - max(askers.values()) >= _patience_s(chunk_s) - 1e-9 or all(map(self._is_quiet, askers)))
            )
            indices = [index for _, index in sorted(overdue)[:1]]
        for index in indices:
            self._asked.setdefault(index, {})[donor] = now
        return indices

    def _is_quiet(self, donor: PeerId) -> bool:
        stream = self._streams.get(donor)
        return stream is not None and stream.quiet_s > QUIET_S + stream.round_trip_s + stream.pause_s

    def _give_back(self, donor: PeerId) -> None:
        """Put what only this donor was asked for back into the queue."""
        for index in [index for index, askers in self._asked.items() if donor in askers]:
            askers = self._asked[index]
            del askers[donor]
            if not askers:
                del self._asked[index]
                if index in self._missing:
                    self._queue.appendleft(index)
        self._changed.fire()


def _patience_s(chunk_s: float) -> float:
    return max(PIPELINE_S, PATIENCE_CHUNKS * chunk_s)
