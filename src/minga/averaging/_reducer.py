"""The aggregator's side of an assignment: take everybody's chunks, reduce, send the same bytes back to all.

A chunk is finished when every sender that is still with us delivered it: result = sum(w x) / sum(w), weights being
samples. It is accumulated directly in the result vector. Who never opens its stream is given up after
`APPEAR_S` and some round trips (plus the time of a dial), who lags when more than half have delivered everything after
max(LAG_S, 3 * the time that the others needed); a silent one is noticed by its stream, and one of which no byte comes
for `STALL_S` though it is alive is given up, too. None of them can make a chunk
that they already delivered undone.
"""

from __future__ import annotations

import asyncio

import torch

from minga.averaging._codecs import WEIGHT_LIMIT, is_finite
from minga.averaging._exchange import as_bytes
from minga.averaging._messages import Assignment, PartHello
from minga.averaging._ranking import has_quorum
from minga.averaging._round import Round
from minga.core._errors import ProtocolError, RejectedError, RemoteError
from minga.network._messages import MessageStream

APPEAR_S = 2.0
DIAL_S = 3.0
LAG_S = 3.0
STALL_S = 30.0


class Reducer:
    """Reduces one assignment at its aggregator."""

    def __init__(self, round: Round, assignment: Assignment) -> None:
        self._round, self._assignment = round, assignment
        self._absent = {i for i in round.alive() if i != round.me}
        self._streams: dict[int, MessageStream] = {}
        self._pending = {index: set(self._absent) for index in assignment.chunks}
        self._weights: dict[int, float] = {}
        self._encoded: dict[int, bytes | bytearray | memoryview] = {}
        round.spawn(self._watch(), round.me)
        for index in assignment.chunks:  # alone, or with nothing to wait for
            self._finish_if_ready(index)

    async def attend(self, sender: int, hello: PartHello, stream: MessageStream) -> None:
        """Serve one member's stream to its end."""
        if sender in self._streams:
            raise ProtocolError("a second stream for the same part", peer=stream.peer, phase="reduce")
        if sender not in self._absent:
            raise RejectedError("too late, this part goes on without it", code="late")
        if hello.weight * len(self._round.members) > WEIGHT_LIMIT:  # the sum of the weighted values would overflow
            raise ProtocolError(f"a weight of {hello.weight} samples is too large", peer=stream.peer, phase="reduce")
        self._streams[sender] = stream
        self._absent.discard(sender)
        await self._round.run(self._converse(sender, hello, stream))

    async def _converse(self, sender: int, hello: PartHello, stream: MessageStream) -> None:
        sending = asyncio.get_running_loop().create_task(self._send_results(stream))
        try:
            if hello.weight == 0:
                self._drop(sender)
            else:
                await self._receive(sender, float(hello.weight), stream)
            await sending
        except RemoteError as error:
            self._drop(sender, error.message)
            if isinstance(error, ProtocolError):
                raise
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        if self._round.aborted:
            raise RejectedError(self._round.aborted, code="aborted")

    # ---- receiving

    async def _receive(self, sender: int, weight: float, stream: MessageStream) -> None:
        round = self._round
        for index in self._assignment.chunks:
            chunk = round.chunks[index]
            body = bytearray(chunk.encoded_bytes)
            await stream.receive_bulk_into(memoryview(body))
            round.bytes_received += chunk.encoded_bytes
            if round.aborted:
                return
            if sender not in self._pending[index]:
                continue  # given up meanwhile; it still gets the result
            accumulator = self._open(index)
            try:
                chunk.codec.decode_add(body, accumulator, weight)
            except ValueError as error:
                raise ProtocolError(f"chunk refused: {error}", peer=stream.peer, phase="reduce") from error
            self._weights[index] += weight
            self._pending[index].discard(sender)
            self._finish_if_ready(index)

    def _open(self, index: int) -> torch.Tensor:
        """The accumulator of a chunk, which begins with this member's own contribution."""
        round = self._round
        accumulator = round.slice(round.result, round.chunks[index])
        if index not in self._weights:
            if round.local is None:
                accumulator.zero_()
                self._weights[index] = 0.0
            else:
                torch.mul(round.slice(round.local, round.chunks[index]), float(round.weight), out=accumulator)
                self._weights[index] = float(round.weight)
        return accumulator

    def _finish_if_ready(self, index: int) -> None:
        if self._pending[index] or self._round.have[index] or index in self._encoded:
            return
        round, chunk = self._round, self._round.chunks[index]
        values = self._open(index)
        if self._weights[index] == 0.0:
            round.abort("nobody's samples reached this aggregator")
            return
        if round.local is not None and self._weights[index] == round.weight:
            values.copy_(round.slice(round.local, chunk))  # alone: multiplying and dividing would round twice
        else:
            values.div_(self._weights[index])
        if not is_finite(values):  # no other member's numbers can do that, see `CONTRIBUTION_LIMIT`
            round.abort("the own vector holds NaN, infinity or numbers that are too large")
            return
        if chunk.codec.name == "float32":
            self._encoded[index] = as_bytes(values)
        else:
            body = bytearray(chunk.encoded_bytes)
            chunk.codec.encode(values, memoryview(body))
            chunk.codec.decode(body, values)
            self._encoded[index] = body
        round.got(index)

    def _drop(self, sender: int, why: str | None = None) -> None:
        """Go on without a sender from the first chunk that it has not delivered.

        Without a reason it had nothing to send. If too few are heard, it is this member that is cut off: a mean over
        what arrived here would stand for the whole group's.
        """
        round = self._round
        self._absent.discard(sender)
        if why is not None and any(sender in waiting for waiting in self._pending.values()):
            round.node.events.emit("round.sender_dropped", step=round.plan.step, peer=round.members[sender], why=why)
            round.unheard[sender] = why
            if not has_quorum(set(round.members) - {round.members[i] for i in round.unheard}, round.members):
                round.abort("too few members of the group could be heard to the end")
                return
        for index, waiting in self._pending.items():
            if sender in waiting:
                waiting.discard(sender)
                self._finish_if_ready(index)

    # ---- sending

    async def _send_results(self, stream: MessageStream) -> None:
        round = self._round
        for index in self._assignment.chunks:
            while index not in self._encoded:
                if round.aborted:
                    return
                await round.changed.wait()
            await stream.send_bulk(self._encoded[index])
            round.bytes_sent += round.chunks[index].encoded_bytes

    # ---- waiting

    async def _watch(self) -> None:
        """Give up on members that never appear, that are known to be gone, or that lag far behind the others."""
        round = self._round
        begun = asyncio.get_running_loop().time()
        patience_s = self._patience_s()
        lag_deadline: float | None = None
        while any(self._pending.values()) and not round.aborted:
            await asyncio.sleep(0.1)
            elapsed = asyncio.get_running_loop().time() - begun
            for sender in sorted(self._absent):
                if sender in round.dead or elapsed > patience_s[sender]:
                    self._drop(sender, "it never sent its part")
            for sender, stream in self._streams.items():
                if stream.idle_s > STALL_S:
                    self._drop(sender, f"nothing came from it for {STALL_S:.0f} s")
            laggards = set().union(*self._pending.values())
            if 2 * len(laggards) >= len(round.members) - 1:
                lag_deadline = None
            elif lag_deadline is None:
                lag_deadline = elapsed + max(LAG_S, 3.0 * elapsed)
            elif elapsed > lag_deadline:
                for sender in sorted(laggards):
                    self._drop(sender, "it is far slower than the others")

    def _patience_s(self) -> dict[int, float]:
        """How long each sender may take to appear: the plan may have come to it later, and it may have to dial."""
        round = self._round
        facts = {i: round.node.facts(round.members[i]) for i in self._absent}
        trips = {i: fact.round_trip_s or 0.0 for i, fact in facts.items() if fact is not None}
        longest = max(trips.values(), default=0.0)
        return {i: APPEAR_S + 2 * trips[i] if i in trips else APPEAR_S + DIAL_S + 4 * longest for i in self._absent}
