"""Serving the training state to peers that need it, and chunks of whatever is served in such.

Theory of operation. Newcomers and peers that fell behind ask for the state. It may be copied only between two optimizer
steps, and only by the training thread. So a request that no held snapshot satisfies raises a flag. The training thread
asks `wants` between steps, which costs one attribute when no peer asked, and hands over a copy with `publish`. All
peers that asked meanwhile get that one copy, so that they also agree on it. The copy is dropped when no peer used it
for `IDLE_S` seconds. But the state after the run's last step stays, since no training thread is left that could copy it
again.

A snapshot takes as much room as the state itself: on disk, if it is large. There are never more than two, and none that
is being downloaded makes room for a newer one before it is `MIN_HELD_S` old. A peer that fetches the state itself
serves what it has of it to others that do the same (`minga.training.transfer.incoming`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from minga.core.aio import Signal
from minga.core.errors import ProtocolError, RejectedError
from minga.core.events.training import StatePublished
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import any_thread, loop_bound
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.training.state.manifest import CHUNK_BYTES, Manifest, build_manifest
from minga.training.state.snapshot import StateSnapshot
from minga.training.transfer.incoming import IncomingState
from minga.training.transfer.messages import (
    BOUNDARY_WAIT_S,
    CHUNK_TIMEOUT_S,
    CHUNKS,
    DESCRIBE,
    MANIFEST,
    MAX_FELLOWS,
    MAX_HELD,
    NEWS_S,
    PAGE_BYTES,
    DescribeReply,
    DescribeRequest,
    Description,
    DownloadOpened,
    HeldChunks,
    ManifestReply,
    ManifestRequest,
    OpenDownload,
    TakeChunks,
    timely,
)

# ---- Sending chunks, of a state or of a file: those that are asked for on one stream, until an empty request.


async def serve_chunks(
    stream: MessageStream,
    peer: PeerId,
    chunk_count: int,
    read: Callable[[int], Awaitable[memoryview]],
    sent: Callable[[int], None] = lambda _: None,
    *,
    fellows: tuple[PeerId, ...] = (),
    incoming: IncomingState | None = None,
) -> None:
    """Send what `peer` takes of `chunk_count` chunks; `read` gives one of them, `sent` hears of it afterwards.

    It is told of the `fellows` that take the same; `incoming` says which chunks are here, if not all are.

    Raises `ProtocolError` for chunks that do not exist or are asked for too often, `RejectedError` if `peer` asks for
    nothing for `CHUNK_TIMEOUT_S`, `SilentError` if it takes nothing for as long, and what `read` raises.
    """
    await stream.send(DownloadOpened(fellows, None if incoming is None else incoming.bitmap()))
    # Chunks may be asked for again after a dropped connection, but not for ever.
    left = 2 * chunk_count + MAX_HELD
    told = 0 if incoming is None else incoming.count
    while (take := await _next_take(stream, peer)).indices or take.news:
        left -= len(take.indices)
        if max(take.indices, default=0) >= chunk_count or left < 0:
            raise ProtocolError("asked for chunks that do not exist, or too often", peer=peer)
        if (take.news and incoming is None) or not (incoming is None or incoming.has(take.indices)):
            raise ProtocolError("asked for chunks, or news of them, that it was not told of", peer=peer)
        for index in take.indices:
            await timely(stream.send_bulk(await read(index)), peer, "took no chunk")
            sent(index)
        if take.news and incoming is not None:
            if not take.indices and incoming.count == told:
                if incoming.is_complete:
                    raise ProtocolError("asked for more than all chunks", peer=peer)
                await incoming.changed.wait(NEWS_S)
            if incoming.is_given_up:
                raise RejectedError("this download was given up here", code=RefusalCode.GONE)
            told = incoming.count
            await stream.send(HeldChunks(incoming.bitmap()))


async def send_manifest(stream: MessageStream, data: bytes, peer: PeerId) -> None:
    """Answer a `ManifestRequest`. Raises as `send_pages`."""
    await stream.send(ManifestReply(len(data)))
    await send_pages(stream, memoryview(data), PAGE_BYTES, peer)


async def send_pages(stream: MessageStream, data: memoryview, page_bytes: int, peer: PeerId) -> None:
    """Send `data` as bulk frames of at most `page_bytes`. Raises `SilentError` if `peer` does not take one."""
    for start in range(0, data.nbytes, page_bytes):
        await timely(stream.send_bulk(data[start : start + page_bytes]), peer, "took no page")


class Places:
    """The streams on which chunks are sent at once: so many of all peers, and of each."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._taken = Counter[PeerId]()

    @contextlib.contextmanager
    def of(self, peer: PeerId) -> Iterator[None]:
        """One of them, while chunks are sent. Raises `RejectedError`, by which `peer` knows that it can ask again."""
        if self._taken.total() >= self._most or self._taken[peer] >= self._most_of_one:
            raise RejectedError(f"{self._most} downloads are served at a time", code=RefusalCode.BUSY, peer=peer)
        self._taken[peer] += 1
        try:
            yield
        finally:
            self._taken[peer] -= 1
            self._taken += Counter()  # forgets who has none any more


async def _next_take(stream: MessageStream, peer: PeerId) -> TakeChunks:
    try:
        async with asyncio.timeout(CHUNK_TIMEOUT_S):
            return await stream.receive(TakeChunks)
    except TimeoutError as error:
        raise RejectedError("nothing was asked for any more", code=RefusalCode.IDLE, peer=peer) from error


# ---- The server of the training state.


IDLE_S = 60.0
"""Seconds after the last use during which a snapshot stays for downloads that resume or come late."""

MIN_HELD_S = 120.0
MAX_DOWNLOADS = 16
"""Downloads served at once; each has one chunk of 1 MiB in flight, and what the transport buffers."""

MAX_DOWNLOADS_OF_ONE = 2
MAX_WAITING, MAX_WAITING_PER_PEER = 64, 4

OVERDUE_S = 10 * BOUNDARY_WAIT_S
"""A program that came to no boundary for so long while others wait for its state may have ended its loop."""

logger = logging.getLogger("minga.training")


@dataclass(eq=False)
class _Held:
    snapshot: StateSnapshot
    manifest: Manifest
    since: float
    last_used: float
    downloads: Counter[PeerId] = field(default_factory=Counter)
    stays: bool = False


@loop_bound
class StateServer:
    """Answers `state.*` calls on `node`. Made on the event loop; `wants` and `publish` are for the training thread."""

    def __init__(self, node: Node, *, max_downloads: int = MAX_DOWNLOADS) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._held: tuple[_Held, ...] = ()  # newest first; replaced as a whole, for other threads read it
        self._published_step = self._admitted_step = -1  # the second is older while a copy is hashed
        self._withdrawals = 0
        self._waiting: list[tuple[int, PeerId]] = []  # the least step that each wants, and who
        self._boundary = -1, self._loop.time()  # the step of the training thread's last one, and when that was
        self._is_told = False
        self._is_fetching, self._fetches = False, 0
        self._incoming: IncomingState | None = None
        self.first: Manifest | None = None
        """That of the state with which this peer could found the run. Others may compare; the state is not served."""
        self._changed = Signal()
        self._places = Places(max_downloads, MAX_DOWNLOADS_OF_ONE)
        node.serve(DESCRIBE, self._describe)
        node.serve(MANIFEST, self._serve_manifest)
        node.serve(CHUNKS, self._serve_chunks)

    # ---- for the training thread

    @any_thread
    def wants(self, step: int) -> bool:
        """Whether to call `publish` with the state after `step`, which is how it is right now; any thread, cheap."""
        self._boundary, self._is_told = (step, self._loop.time()), False
        if step <= self._published_step or self._admitted_step < self._published_step:
            return False  # one copy at a time: it may be what they wait for
        if not any(least <= step for least, _ in tuple(self._waiting)):
            return False
        oldest = self._held[-1] if len(self._held) >= MAX_HELD else None
        return oldest is None or not oldest.downloads or self._loop.time() - oldest.since >= MIN_HELD_S

    @any_thread
    def publish(self, snapshot: StateSnapshot, manifest: Manifest | None = None, *, stays: bool = False) -> None:
        """Serve `snapshot`, which must not be changed any more; any thread. Its manifest is computed if not given.

        With `stays` it is served until the peer ends, even if no peer asks for long.
        """
        self._published_step = snapshot.step
        with contextlib.suppress(RuntimeError):  # the loop ended meanwhile, and with it all who wanted the state
            self._loop.call_soon_threadsafe(partial(self._begin_admitting, snapshot, manifest, stays=stays))

    @any_thread
    def publish_last(self, snapshot: StateSnapshot) -> None:
        """Serve the state after the run's last step, until the peer ends."""
        self.publish(snapshot, stays=True)

    @any_thread
    def withdraw(self) -> None:
        """Serve none of the snapshots published so far, because this peer now has another state; any thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._withdraw)

    # ---- for every peer

    @property
    @any_thread
    def held_bytes(self) -> int:
        """Bytes of the snapshots held in memory."""
        return sum(held.manifest.total_bytes for held in self._held)

    @contextlib.contextmanager
    def fetching(self) -> Iterator[None]:
        """This peer fetches the state itself, so no peer waits for a state that it does not have yet; on the loop."""
        self._is_fetching, self._fetches = True, self._fetches + 1
        self._changed.fire()
        try:
            yield
        finally:
            self._is_fetching = False

    @contextlib.contextmanager
    def sharing(self, incoming: IncomingState) -> Iterator[None]:
        """Let peers that download the same state have what this one has of it already; on the loop."""
        self._incoming = incoming
        try:
            yield
        finally:
            self._incoming = None
            incoming.end()

    # ---- inner workings, on the loop

    def _begin_admitting(self, snapshot: StateSnapshot, manifest: Manifest | None, *, stays: bool) -> None:
        self._node.spawn(self._admit(snapshot, manifest, self._withdrawals, stays=stays))

    async def _admit(
        self, snapshot: StateSnapshot, manifest: Manifest | None, withdrawals: int, *, stays: bool
    ) -> None:
        try:
            if manifest is None:
                manifest = await self._loop.run_in_executor(None, build_manifest, snapshot)
        finally:
            self._admitted_step = max(self._admitted_step, snapshot.step)
        if withdrawals < self._withdrawals:  # withdrawn while it was hashed
            return
        now = self._loop.time()
        known = [each for each in self._held if each.manifest.digest == manifest.digest]
        if all(each.snapshot.lineage != snapshot.lineage for each in known):
            held = [each for each in self._held if each not in known]
            # Snapshots without a download go first, then the oldest.
            while len(held) >= MAX_HELD:
                held.remove(min(held, key=lambda h: (bool(h.downloads), h.since)))
            held.append(_Held(snapshot, manifest, now, now))
            self._held = tuple(sorted(held, key=lambda h: -h.snapshot.step))
            self._node.events.emit(StatePublished(step=snapshot.step, digest=manifest.digest))
        self._use(manifest.digest).stays |= stays
        self._changed.fire()

    def _release_idle(self) -> None:
        now = self._loop.time()
        # Timers may fire a rounding error early.
        kept = tuple(h for h in self._held if h.stays or h.downloads or now - h.last_used < IDLE_S - 1e-3)
        if len(kept) < len(self._held):
            self._held = kept
            self._published_step = max((held.snapshot.step for held in kept), default=-1)

    def _withdraw(self) -> None:
        self._held, self._published_step = (), -1
        self._withdrawals += 1

    def _use(self, digest: str) -> _Held:
        held = next((held for held in self._held if held.manifest.digest == digest), None)
        if held is None:
            raise RejectedError("the state with this digest is not held here any more", code=RefusalCode.GONE)
        held.last_used = self._loop.time()
        self._loop.call_later(IDLE_S, self._release_idle)
        return held

    async def _describe(self, peer: PeerId, stream: MessageStream) -> None:
        request = await stream.receive(DescribeRequest)
        of_peer = sum(each == peer for _, each in self._waiting)
        if len(self._waiting) >= MAX_WAITING or of_peer >= MAX_WAITING_PER_PEER:
            raise RejectedError("too many peers are waiting for the state here", code=RefusalCode.BUSY, peer=peer)
        deadline, fetches = self._loop.time() + BOUNDARY_WAIT_S, self._fetches
        while not (ready := [held for held in self._held if held.snapshot.step >= request.minimum_step]):
            left_s = deadline - self._loop.time()
            if left_s <= 0 or self._is_fetching or self._fetches > fetches:  # the fetch may have been over at once
                self._tell_if_overdue(request.minimum_step, peer)
                raise RejectedError(
                    f"no state of step {request.minimum_step} or later here", code=RefusalCode.NOT_READY
                )
            entry = request.minimum_step, peer
            self._waiting.append(entry)
            try:
                await self._changed.wait(left_s)
            finally:
                self._waiting.remove(entry)
        for held in ready:
            self._use(held.manifest.digest)
        found = (Description(h.snapshot.step, h.manifest.digest, h.snapshot.lineage) for h in ready)
        await stream.send(DescribeReply(tuple(found)))

    def _tell_if_overdue(self, minimum_step: int, peer: PeerId) -> None:
        """Say once that `peer` waits in vain: this program has what it needs, and does not come to hand it over."""
        step, since_s = self._boundary
        overdue_s = self._loop.time() - since_s
        if self._is_fetching or self._is_told or step < minimum_step or overdue_s < OVERDUE_S:
            return
        self._is_told = True
        logger.warning(
            "peer %s waits for the state of step %d, which this program has: but for %.0f s it called minga.Optimizer "
            "not once. If its loop has ended, close the peer, or let the optimizer follow() where peers choose their "
            "own data, so that others go on",
            peer[:10],
            step,
            overdue_s,
        )

    async def _serve_manifest(self, peer: PeerId, stream: MessageStream) -> None:
        request = await stream.receive(ManifestRequest)
        manifest = self.first
        if manifest is None or manifest.digest != request.digest:
            manifest = self._use(request.digest).manifest
        await send_manifest(stream, manifest.encoded, peer)

    async def _serve_chunks(self, peer: PeerId, stream: MessageStream) -> None:
        digest = (await stream.receive(OpenDownload)).digest
        incoming, is_held = self._incoming, any(held.manifest.digest == digest for held in self._held)
        if incoming is not None and incoming.manifest.digest == digest and not is_held:
            await self._serve_incoming(peer, stream, incoming)
            return
        held = self._use(digest)
        with self._places.of(peer):
            fellows = tuple(other for other in held.downloads if other != peer)
            held.downloads[peer] += 1
            try:
                await serve_chunks(
                    stream,
                    peer,
                    held.manifest.chunk_count,
                    partial(self._chunk, held),
                    partial(_release_chunk, held.snapshot),
                    fellows=fellows[-MAX_FELLOWS:],
                )
            finally:
                held.downloads[peer] -= 1
                held.downloads += Counter()  # forgets who has none any more
                held.last_used = self._loop.time()
                self._loop.call_later(IDLE_S, self._release_idle)

    async def _serve_incoming(self, peer: PeerId, stream: MessageStream, incoming: IncomingState) -> None:
        with self._places.of(peer):
            incoming.on_fellow.tell(peer)
            await serve_chunks(
                stream,
                peer,
                incoming.manifest.chunk_count,
                partial(_incoming_chunk, incoming),
                partial(_release_chunk, incoming.snapshot),
                incoming=incoming,
            )

    async def _chunk(self, held: _Held, index: int) -> memoryview:
        if held not in self._held:
            raise RejectedError("this state made room for a newer one", code=RefusalCode.GONE)
        return _bytes_of(held.snapshot, index)


async def _incoming_chunk(incoming: IncomingState, index: int) -> memoryview:
    return _bytes_of(incoming.snapshot, index)


def _bytes_of(snapshot: StateSnapshot, index: int) -> memoryview:
    return snapshot.bytes_view[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]


def _release_chunk(snapshot: StateSnapshot, index: int) -> None:
    """Its memory may go until the chunk is asked for again."""
    snapshot.release(index * CHUNK_BYTES, (index + 1) * CHUNK_BYTES)
