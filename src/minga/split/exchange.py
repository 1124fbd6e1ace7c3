"""A client's requests on their way: to the server that is there, again if no answer comes, and never applied twice.

    ask ─▶ is the server here? (board) ─▶ begin, if there is no session ─▶ request, reply
             ▲                                                          │ no answer, or busy: the same number again
             └──────────────────────────────────────────────────────────┘ "session": begin anew; what became of it?

What `begin` says of a request in doubt is what `ask` returns: the batch begins anew, or it is given up.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final

from minga.core.aio import Backoff
from minga.core.errors import ProtocolError, RejectedError, RemoteError, SilentError, UnreachableError
from minga.core.events.split import SplitBatchGivenUp, SplitRetried
from minga.core.refusal_code import RefusalCause, RefusalCode
from minga.core.spec.sections import SplitSection
from minga.core.thread_guard import loop_bound
from minga.network.gossip.board import Board
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.split.computing.halves import Answer, BatchFate, Question, check_reply
from minga.split.wire.bodies import receive_bodies, send_bodies
from minga.split.wire.messages import BATCH, BEGIN, BatchReply, BatchRequest, BeginReply, BeginRequest
from minga.split.wire.tensors import EncodedReply, TensorWire
from minga.training.record_kinds import SplitServing

ANSWER_S: Final = 300.0
"""Seconds that a server has to read a piece of a request, or to answer one that it has read, alive or not; then it is
asked again.
"""
PATIENCE_S: Final = 600.0
"""Seconds for which a request is tried, if nothing else is said."""
FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 10.0
LOOK_S: Final = 0.25


@loop_bound
class Exchange:
    """Asks `server` one question at a time, as long as the `board` says that it serves; made on the event loop.

    A question that it does not answer within `patience_s` raises the last error. The time for which the server, which
    has the question, lets the client wait for others counts for nothing.
    """

    def __init__(
        self,
        node: Node,
        board: Board,
        server: PeerId | None,
        section: SplitSection,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._node, self._board, self._server, self._patience_s = node, board, server, patience_s
        self._download = TensorWire(section.download_codec, section.max_elements)
        self._wait_s = section.wait_s
        self._deadline, self._others_s = 0.0, 0.0
        self._sent_s: float | None = None
        self._session, self._number = 0, 0
        self._doubt: BeginRequest | None = None
        self._asking = asyncio.Lock()
        self.step = 0
        """The server's step, as it said last."""

    async def ask(self, question: Question) -> Answer | BatchFate:
        """The answer to a question, or what became of it.

        Raises `RejectedError` for what the server will not take, `ProtocolError` for what no honest server sends, and
        `UnreachableError` or `SilentError` if there was no server for too long.
        """
        async with self._asking:  # one that was interrupted still ends, and its number may have been taken
            return await self._ask(question)

    async def _ask(self, question: Question) -> Answer | BatchFate:
        self._deadline = asyncio.get_running_loop().time() + self._patience_s
        waits_s = {"turn": math.inf, "block": self._wait_s, "predict_block": self._wait_s}
        self._others_s = waits_s.get(question.kind, 0.0)
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        try:
            while True:
                try:
                    return await self._attempt(question)
                except RemoteError as error:
                    self._take_failure(error, question)
                await asyncio.sleep(backoff.next_s())
        except BaseException:
            self._session, self._doubt = 0, None  # the next question is another one, whatever became of this
            raise

    async def _attempt(self, question: Question) -> Answer | BatchFate:
        self._sent_s = None
        server = await self._find()
        changes = question.changes
        while changes and not self._session:
            begun = await self._node.call(server, BEGIN, self._doubt or BeginRequest(), BeginReply)
            doubt, self._doubt = self._doubt, None
            self._session, self._number, self.step = begun.session, 1, begun.step
            if doubt is not None:
                return self._fate(begun)
        try:
            reply = await self._request(server, question)
        except RejectedError as error:
            if error.code == RefusalCode.GIVEN_UP:
                self._node.events.emit(SplitBatchGivenUp(why=error.message))
                return BatchFate.GIVEN_UP
            if error.code != RefusalCode.SESSION or not changes:
                raise
            self._doubt, self._session = BeginRequest(self._session, self._number), 0
            return await self._attempt(question)
        self._number += changes
        self.step = reply.message.step
        return Answer(server, reply)

    def _fate(self, begun: BeginReply) -> BatchFate:
        if begun.applied is False:
            return BatchFate.NOT_APPLIED
        why = "its gradients are not kept any more" if begun.applied else "the server does not know whether it has it"
        self._node.events.emit(SplitBatchGivenUp(why=why))
        return BatchFate.GIVEN_UP

    def _take_failure(self, error: RemoteError, question: Question) -> None:
        """Raise what trying again does not mend."""
        if isinstance(error, ProtocolError):
            raise error
        passes = not isinstance(error, RejectedError) or error.code.cause == RefusalCause.TEMPORARY
        is_gone = isinstance(error, RejectedError) and error.code == RefusalCode.METHOD  # it serves no more, or not yet
        now = asyncio.get_running_loop().time()
        if self._sent_s is not None:
            waited_s = min(now - self._sent_s, self._others_s)
            self._deadline, self._others_s = self._deadline + waited_s, self._others_s - waited_s
            if question.kind == "turn" and isinstance(error, SilentError):
                return  # it is in the queue, where others may take as long as they like
        if not (passes or is_gone) or now >= self._deadline:
            raise error
        self._node.events.emit(SplitRetried(peer=error.peer, why=f"{question.kind}: {error.message}"))

    async def _find(self) -> PeerId:
        """The server, once it is there."""
        while (server := self._server) is None or self._board.get(server, SplitServing) is None:
            if asyncio.get_running_loop().time() >= self._deadline:
                raise UnreachableError("no peer of this run serves the other part of the model", phase="split")
            await asyncio.sleep(LOOK_S)
        return server

    async def _request(self, server: PeerId, question: Question) -> EncodedReply:
        changes = question.changes
        request = BatchRequest(
            question.kind,
            self._session if changes else 0,
            self._number if changes else 0,
            question.tensors.headers,
            question.labels.headers,
            question.wants_gradients,
            question.place,
            question.digest,
        )
        async with self._node.open(server, BATCH, bulk=True) as stream:
            await stream.send(request)
            bodies = (*question.tensors.bodies, *question.labels.bodies)
            await send_bodies(stream, bodies, self._node.clockwork.timeout, ANSWER_S)
            await stream.finish()
            self._sent_s = asyncio.get_running_loop().time()
            try:
                async with self._node.clockwork.timeout(ANSWER_S):
                    message = await stream.receive(BatchReply)
            except TimeoutError as error:
                raise SilentError(f"no answer within {ANSWER_S:.0f} s", peer=server) from error
            return await self._receive(stream, message, server)

    async def _receive(self, stream: MessageStream, message: BatchReply, server: PeerId) -> EncodedReply:
        check_reply(message, self._download, server)
        bodies = await receive_bodies(stream, message.tensors, self._node.clockwork.timeout)
        await stream.receive_end()
        return EncodedReply(message, tuple(bodies))
