"""Fetching chunks of a state or of a file from several donors at once.

Theory of operation. Every donor has one task and one stream. The tasks take indices from one common queue, a
second's worth at a time by the donor's measured pace, so that a fast donor serves more. When the queue is empty, an
idle task asks its donor for chunks of another donor that takes unusually long, or that is silent, and the first copy
that verifies counts. So neither a dead nor a very slow donor delays the end. Each chunk is received into a buffer of
the task's own and verified before it is copied to its place. A donor that fails gives its indices back to the queue.

Fellows, which are downloading the same (`incoming.py`), serve like donors what they tell that they have. Donors are
asked first for what no fellow has, and soon for what a fellow is slow to send: its line may be that of all others,
too. Fellows that fail are let go without a word, unless they lied.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.core.aio import Signal, end
from minga.core.errors import RemoteError, StateMismatchError
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.training.state.manifest import CHUNK_BYTES
from minga.training.transfer.incoming import read_bitmap
from minga.training.transfer.messages import (
    MAX_FELLOWS,
    MAX_TAKE,
    DownloadOpened,
    HeldChunks,
    OpenDownload,
    TakeChunks,
    timely,
)
from minga.training.transfer.part_file import Chunked

PIPELINE_S = 1.0
"""Seconds of transfer that are asked for ahead: far more than a round trip, little to lose when a donor dies."""

PATIENCE_CHUNKS = 4.0
"""A chunk is overdue at its donor when an idle donor could have sent this many meanwhile, and `PIPELINE_S` passed."""

QUIET_S = 0.5
"""A donor whose signs of life are overdue by so much, and a round trip, may be dead."""

FIRST_CHUNK_S = 2.0
"""Seconds assumed for a chunk of a donor that has not sent any yet."""

ALONE_S = 30.0
"""Seconds without a chunk after which fellows that have no donor any more are not waited for."""

OnChunk = Callable[[int, memoryview], Awaitable[None]]
OnDropped = Callable[[PeerId, RemoteError], None]


@dataclass(frozen=True)
class ChunkSource:
    """Where chunks come from: the method that donors serve them by, and what to do when one is not used any more."""

    node: Node
    method: str
    dropped: OnDropped


@dataclass(eq=False)
class _Donor:
    """A peer that chunks come from. A fellow has only those that it `held` when it last told; None: all."""

    peer: PeerId
    is_fellow: bool = False
    held: set[int] | None = None
    stream: MessageStream | None = None

    def has(self, index: int) -> bool:
        """Whether it can send this chunk."""
        return self.held is None or index in self.held


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
        shuffled = random.Random(source.node.peer_id).sample(missing, len(missing))  # fellows take others meanwhile
        self._queue = dict.fromkeys(shuffled)
        self._missing = set(missing)
        self._arriving: set[int] = set()
        self._asked: dict[int, dict[PeerId, float]] = {}
        self._donors: dict[PeerId, _Donor] = {}
        self._tasks: list[asyncio.Task[None]] = []  # in order, so that simulated runs repeat
        self._told_of = set[int]()
        """The chunks that some fellow told that it has."""
        self._is_over = False
        self._came_s = 0.0  # when the last chunk came, or a donor was lost
        self._changed, self._ended = Signal(), Signal()
        self.received_bytes: dict[PeerId, int] = {}
        self.failed: dict[PeerId, RemoteError] = {}

    @property
    def complete(self) -> bool:
        """Whether every chunk arrived."""
        return not self._missing

    async def run(self, donors: Sequence[PeerId]) -> None:
        """Fetch until everything is there, or nothing comes any more: all donors dropped out, and from fellows no chunk
        has come for `ALONE_S`. Raises only `LocalError`s and `OSError`.
        """
        for donor in donors:
            self._begin(_Donor(donor))
        try:
            while not self.complete and self._donors:
                left_s = None
                if all(donor.is_fellow for donor in self._donors.values()):
                    left_s = self._came_s + ALONE_S - asyncio.get_running_loop().time()
                    if left_s <= 0.0:
                        return
                await self._ended.wait(left_s)
                for task in [task for task in self._tasks if task.done()]:
                    self._tasks.remove(task)
                    task.result()
        finally:
            self._is_over = True
            await end(*self._tasks)

    def meet(self, fellow: PeerId) -> None:
        """Fetch from a peer, too, which is downloading the same."""
        is_known = fellow == self._node.peer_id or fellow in self._donors or fellow in self.failed
        fellows = sum(donor.is_fellow for donor in self._donors.values())
        if not (is_known or self._is_over) and fellows < MAX_FELLOWS:
            self._begin(_Donor(fellow, is_fellow=True, held=set()))

    def _begin(self, donor: _Donor) -> None:
        self._donors[donor.peer] = donor
        task = asyncio.ensure_future(self._serve_from(donor))
        self._tasks.append(task)
        task.add_done_callback(lambda _: self._ended.fire())

    async def _serve_from(self, donor: _Donor) -> None:
        try:
            async with self._node.open(donor.peer, self._source.method, bulk=True) as stream:
                await stream.send(OpenDownload(self._wanted.digest))
                # Waiting for this costs one round trip, and lets the reason of a refusal arrive.
                opened = await timely(stream.receive(DownloadOpened), donor.peer, "sent no chunk")
                donor.stream = stream
                if not donor.is_fellow:
                    for fellow in opened.fellows:
                        self.meet(PeerId(fellow))
                donor.is_fellow |= opened.held is not None
                self._note_held(donor, opened.held)
                await self._pull(donor, stream)
        except RemoteError as error:
            if not donor.is_fellow or isinstance(error, StateMismatchError):
                self.failed[donor.peer] = error
                self._source.dropped(donor.peer, error)
        finally:
            del self._donors[donor.peer]
            if not donor.is_fellow:
                self._came_s = asyncio.get_running_loop().time()
            self._give_back(donor.peer)

    def _note_held(self, donor: _Donor, bitmap: bytes | None) -> None:
        """What this donor told of the chunks that it has."""
        held = None if bitmap is None else read_bitmap(bitmap, self._wanted.chunk_count)
        if held is not None:
            self._told_of |= held
        donor.held = None if held is None or len(held) == self._wanted.chunk_count else held
        self._changed.fire()

    async def _pull(self, donor: _Donor, stream: MessageStream) -> None:
        clock = asyncio.get_running_loop().time
        scratch = as_bytes(torch.empty(CHUNK_BYTES, dtype=torch.uint8, device=self._device))
        pending: deque[int | None] = deque()  # None where it is to tell which chunks it has
        chunk_s = FIRST_CHUNK_S
        last = clock()
        while not self.complete:
            depth = max(1 if donor.is_fellow else 2, min(MAX_TAKE, round(PIPELINE_S / chunk_s)))
            indices = self._assign(donor, depth - len(pending), chunk_s) if len(pending) <= depth // 2 else []
            asks_news = donor.held is not None and bool(indices or not pending)
            if indices or asks_news:
                last = clock() if not pending else last
                await stream.send(TakeChunks(tuple(indices), asks_news))
                pending.extend(indices)
                if asks_news:
                    pending.append(None)
            if not pending:
                await self._changed.wait(min(_patience_s(chunk_s), QUIET_S / 2))
                continue
            if (index := pending.popleft()) is None:
                self._note_held(donor, (await timely(stream.receive(HeldChunks), donor.peer, "told no news")).bitmap)
                continue
            data = scratch[: self._wanted.chunk_size(index)]
            await self._receive(donor.peer, stream, index, data)
            # The pace is the mean of the last few chunks, so that one hiccup does not decide. A short one tells none.
            now = clock()
            if data.nbytes == CHUNK_BYTES:
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
        self._came_s = asyncio.get_running_loop().time()
        await self._on_chunk(index, data)
        self._missing.remove(index)
        if self.complete:
            self._changed.fire()

    def _assign(self, donor: _Donor, count: int, chunk_s: float) -> list[int]:
        """Up to `count` indices to ask `donor` for: from the queue, or else one that is overdue elsewhere."""
        now = asyncio.get_running_loop().time()
        indices = list(itertools.islice(self._open_to(donor), count))
        for index in indices:
            del self._queue[index]
        if not indices:
            overdue = (
                (max(askers.values()), index)
                for index, askers in self._asked.items()
                if donor.peer not in askers
                and donor.has(index)
                and (
                    now - max(askers.values()) >= self._patience_s(donor, askers, chunk_s) - 1e-9
                    or all(map(self._is_quiet, askers))
                )
            )
            indices = [index for _, index in sorted(overdue)[:1]]
        for index in indices:
            self._asked.setdefault(index, {})[donor.peer] = now
        return indices

    def _open_to(self, donor: _Donor) -> Iterator[int]:
        """What of the queue this donor can be asked for: of one that has all, what no fellow has comes first."""
        if donor.is_fellow:
            return filter(donor.has, self._queue)
        told_of = self._told_of
        rare = (index for index in self._queue if index not in told_of)
        return itertools.chain(rare, (index for index in self._queue if index in told_of))

    def _patience_s(self, donor: _Donor, askers: Iterable[PeerId], chunk_s: float) -> float:
        """How many seconds a chunk is left to those that were asked for it, where this donor could send it."""
        fellows_only = not donor.is_fellow and all(self._donors[asker].is_fellow for asker in askers)
        return max(PIPELINE_S, chunk_s) if fellows_only else _patience_s(chunk_s)

    def _is_quiet(self, donor: PeerId) -> bool:
        stream = self._donors[donor].stream
        return stream is not None and stream.quiet_s > QUIET_S + stream.round_trip_s + stream.pause_s

    def _give_back(self, donor: PeerId) -> None:
        """Put what only this donor was asked for back into the queue."""
        for index in [index for index, askers in self._asked.items() if donor in askers]:
            askers = self._asked[index]
            del askers[donor]
            if not askers:
                del self._asked[index]
                if index in self._missing:
                    self._queue[index] = None
        self._changed.fire()


def _patience_s(chunk_s: float) -> float:
    return max(PIPELINE_S, PATIENCE_CHUNKS * chunk_s)
