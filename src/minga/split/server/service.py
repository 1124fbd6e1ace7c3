"""A split server on a node: streams come in, requests wait their turn, answers go out.

    stream ─▶ check ─▶ room for its bytes (else unread: the client waits) ─▶ turn: admit, take, note ─▶ stream

Uploads of several clients overlap each other and the computing of the batch before. What a stream announces is read
only while there is room for it, and so many streams wait for room; others are refused and come again. What was taken is
finished and noted even if the client's stream broke meanwhile: it asks again and gets the answer that was kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from minga.core.errors import ProtocolError, RejectedError, SilentError
from minga.core.events.split import SplitBatchApplied, SplitBatchDropped, SplitBatchRefused, SplitClientBegan
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import any_thread, loop_bound
from minga.network.gossip.board import Board
from minga.network.gossip.gossip import BEATS_PER_SECOND
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.split.computing.applying import BrokenPartError
from minga.split.server.batch_server import BatchServer, Finished
from minga.split.wire.bodies import Room, receive_bodies, send_bodies
from minga.split.wire.messages import BATCH, BEGIN, PUBLISH_S, BatchRequest, BeginRequest
from minga.split.wire.tensors import Body, EncodedReply
from minga.training.record_kinds import SplitServing

LEAST_BYTES_PER_S: Final = 17_000.0
SLACK_S: Final = 30.0
"""A client that is slower, in bytes per second and after so many seconds, only takes room from others."""
MAX_STREAMS: Final = 4
"""Requests of one client at a time; more are refused, and come again."""

T = TypeVar("T")

logger = logging.getLogger("minga.split")


@dataclass(eq=False)
class _Pending:
    """A request that was read and not answered yet."""

    peer: PeerId
    request: BatchRequest
    answer: asyncio.Future[EncodedReply]
    since: float


@loop_bound
class SplitService:
    """Serves `core` to the peers of `node`, and says so on `board`; made on the event loop.

    `room_bytes` bounds what batches take that were not computed yet, and what answers take that clients do not read.
    """

    def __init__(self, node: Node, board: Board, core: BatchServer, *, room_bytes: int) -> None:
        self._node, self._board, self.core = node, board, core
        self.room, self._replies = Room(room_bytes), Room(room_bytes)
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "minga-split")
        self._pending: dict[int, _Pending] = {}
        self._open: dict[PeerId, int] = {}
        """The ticket of the request of each client that is not answered yet; a client has one."""
        self._heard: dict[str, float] = {}
        self._tickets, self._closed = 0, False
        self._broken: BrokenPartError | None = None
        self._streams: Counter[PeerId] = Counter()
        self._answering: Counter[PeerId] = Counter()
        """Streams of each client, and those of them that wait for an answer."""
        self.on_finished: Callable[[Finished], None] = lambda _: None
        """Told, on the loop, of each work that is finished."""
        self.on_broken: Callable[[BrokenPartError], None] = lambda _: None
        """Told, on the loop, why nothing is served any more, if nobody closed it."""
        node.serve(BEGIN, self._begin)
        node.serve(BATCH, self._batch)
        self._tasks = [node.spawn(self._publish()), node.spawn(self._sweep())]

    @property
    def waiting(self) -> int:
        """Batches that were read and not answered yet."""
        return len(self._pending)

    def close(self) -> None:
        """Serve no more, and withdraw the record."""
        for task in self._tasks:
            task.cancel()
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(_closed())
        self._board.retract(SplitServing)
        self._closed = True

    @any_thread
    def join(self) -> None:
        """Wait, after `close`, until the batch that is being computed is done; on another thread than the loop's."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def between_batches(self, function: Callable[[], T]) -> T:
        """Run a function while no batch is computed, on the thread that computes."""
        async with self._turn:
            if self._broken is not None:  # what is left of the part must not take the place of what was saved
                raise self._broken
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    # ---- inner workings

    async def _begin(self, peer: PeerId, stream: MessageStream) -> None:
        request = await stream.receive(BeginRequest)
        if self._closed:
            raise _closed()
        async with self._turn:  # what this client sent before is finished then, or is refused when its turn comes
            reply, finished = self.core.begin(peer, request)
            self._settle(finished)
        self._node.events.emit(SplitClientBegan(peer=peer))
        await stream.send(reply)

    async def _batch(self, peer: PeerId, stream: MessageStream) -> None:
        request = await stream.receive(BatchRequest)
        self._streams[peer] += 1
        try:
            if self._closed or self._streams[peer] > MAX_STREAMS:
                raise _closed() if self._closed else RejectedError("too many batches at once", code=RefusalCode.BUSY)
            self.core.check(peer, request)
            async with self.room.held(request.size_bytes, peer):
                bodies = await self._receive(peer, stream, request)
                reply = await self._answer(peer, request, bodies)
            with self._replies.taken(reply.size_bytes, peer):
                await self._send(peer, stream, reply)
            self._hear(peer, request)
        except (RejectedError, ProtocolError) as error:
            if isinstance(error, ProtocolError) or error.code == RefusalCode.REFUSED:
                self._node.events.emit(SplitBatchRefused(peer=peer, why=error.message))
            raise
        finally:
            self._streams[peer] -= 1
            if not self._streams[peer]:
                del self._streams[peer]

    async def _receive(self, peer: PeerId, stream: MessageStream, request: BatchRequest) -> list[Body]:
        async with self._timely(peer, request.size_bytes):
            return await receive_bodies(stream, (*request.tensors, *request.labels), self._node.clockwork.timeout)

    async def _send(self, peer: PeerId, stream: MessageStream, reply: EncodedReply) -> None:
        async with self._timely(peer, reply.size_bytes):
            await stream.send(reply.message)
            await send_bodies(stream, reply.bodies, self._node.clockwork.timeout)

    @contextlib.asynccontextmanager
    async def _timely(self, peer: PeerId, size_bytes: int) -> AsyncIterator[None]:
        limit_s = SLACK_S + size_bytes / LEAST_BYTES_PER_S
        try:
            async with self._node.clockwork.timeout(limit_s):
                yield
        except TimeoutError as error:
            raise SilentError(f"{size_bytes} bytes took more than {limit_s:.0f} s", peer=peer) from error

    async def _answer(self, peer: PeerId, request: BatchRequest, bodies: Sequence[Body]) -> EncodedReply:
        """What becomes of a request that was read; if it is under way already, what becomes of that."""
        ticket = self._open.get(peer) if request.changes else None
        known = self._enter(peer, request, bodies) if ticket is None else self._pending[ticket]
        if (known.request.session, known.request.number) != (request.session, request.number):
            raise RejectedError("another batch of this client is not answered yet", code=RefusalCode.BUSY)
        self._answering[peer] += 1
        try:
            return await asyncio.shield(known.answer)
        finally:
            self._answering[peer] -= 1
            if not self._answering[peer]:
                del self._answering[peer]

    def _enter(self, peer: PeerId, request: BatchRequest, bodies: Sequence[Body]) -> _Pending:
        loop = asyncio.get_running_loop()
        self._tickets += 1
        ticket = self._tickets
        known = self._pending[ticket] = _Pending(peer, request, loop.create_future(), loop.time())
        known.answer.add_done_callback(_look)
        if request.changes:
            self._open[peer] = ticket
        self._node.spawn(self._take(ticket, known, bodies))
        return known

    async def _take(self, ticket: int, pending: _Pending, bodies: Sequence[Body]) -> None:
        peer, request = pending.peer, pending.request
        loop = asyncio.get_running_loop()
        try:
            async with self._turn:
                if self._closed:
                    raise _closed()
                if (kept := self.core.admit(peer, request)) is not None:  # another stream was first
                    self._resolve(ticket, kept)
                    return
                self._replies.check(peer)
                try:
                    finished = await loop.run_in_executor(self._thread, self.core.take, peer, request, bodies, ticket)
                except BrokenPartError as error:
                    self._broken = error
                    raise
                self._settle(finished)
        except (RejectedError, ProtocolError) as error:
            self._resolve(ticket, error)
        except BrokenPartError as error:
            self.close()
            self.on_broken(error)
        except Exception as error:
            logger.exception("a batch of %s failed", peer)
            self._resolve(ticket, RejectedError(f"the server failed on this batch: {type(error).__name__}"))

    def _settle(self, finished: Sequence[Finished]) -> None:
        """Keep what became of works, and tell the streams that wait for it."""
        for each in finished:
            pending = self._pending.get(each.work.ticket)
            if pending is None:
                continue
            self.core.note(pending.request, each)
            if isinstance(each.reply, EncodedReply):
                self._hear(pending.peer, pending.request)
            if each.applied:
                loss = each.reply.message.loss if isinstance(each.reply, EncodedReply) else None
                step, samples = self.core.applying.steps, each.work.samples
                self._node.events.emit(SplitBatchApplied(step=step, peer=pending.peer, samples=samples, loss=loss))
            self.on_finished(each)
            self._resolve(each.work.ticket, each.reply)

    def _hear(self, peer: PeerId, request: BatchRequest) -> None:
        """A client goes on with its batch. Whoever holds others up could ask for predictions, and for the turn that it
        has: these do not count.
        """
        if request.changes and request.kind != "turn":
            self._heard[peer] = asyncio.get_running_loop().time()

    def _resolve(self, ticket: int, reply: EncodedReply | RejectedError | ProtocolError) -> None:
        pending = self._pending.pop(ticket)
        if self._open.get(pending.peer) == ticket:
            del self._open[pending.peer]
        if pending.answer.done():
            return
        if isinstance(reply, EncodedReply):
            pending.answer.set_result(reply)
        else:
            pending.answer.set_exception(reply)

    async def _sweep(self) -> None:
        """Drop what clients left half done."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.core.section.wait_s / 10)
            async with self._turn:
                half_done = set(self.core.applying.half_done())
                self._heard = {peer: heard for peer, heard in self._heard.items() if peer in half_done}
                # A slow line is no reason to drop anything: only what waits for further requests is looked at.
                for peer in sorted(
                    each for each in map(PeerId, half_done) if self._streams[each] <= self._answering[each]
                ):
                    if loop.time() - self._heard.setdefault(peer, loop.time()) >= self.core.section.wait_s:
                        self._settle([self.core.finished(each) for each in self.core.applying.drop(peer)])
                        self._node.events.emit(SplitBatchDropped(peer=peer))

    async def _publish(self) -> None:
        said: SplitServing | None = None
        while True:
            serving = SplitServing(
                self.core.applying.steps, self.core.samples, len(self.core.sessions), len(self._pending)
            )
            if serving != said:
                self._board.put(serving)
                said = serving
            await asyncio.sleep(max(PUBLISH_S, self._board.alive_count / BEATS_PER_SECOND))


def _closed() -> RejectedError:
    return RejectedError("the server was closed", code=RefusalCode.BUSY)


def _look(answer: asyncio.Future[EncodedReply]) -> None:
    """The client that waited may be gone: then nobody else looks at the exception."""
    if not answer.cancelled():
        answer.exception()
