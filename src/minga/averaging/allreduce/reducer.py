"""The receiving side of an assignment, at its root or at a relay: take the children's chunks, send the result to all.

A chunk is finished when every child that is still with us delivered it: result = sum(w x) / sum(w), weights being
samples. It is accumulated directly in the result vector. The root's children are those members that send to it
directly, relays of sites among them; the root encodes the result once and sends the same bytes to all of them. The
children of a relay, which is the site reducer of its part, are the other members of its site: it sends their mean on to
the root, with the samples behind it, as if one member had accumulated it all, and passes the root's bytes on unchanged.

No child can make a chunk that it already delivered undone; which children are waited for and how long, see
`round.py`.

What a root has finished counts when a quorum holds it with all else, see `commit.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

import torch

from minga.averaging.allreduce.messages import Assignment, ChunkWeight, CountedMembers, PartHello
from minga.averaging.allreduce.round import Round, WaitDeadlines, pack_bitmap, unpack_bitmap
from minga.averaging.codecs.dense import CONTRIBUTION_LIMIT, FLOAT32_MAX, WEIGHT_LIMIT, Codec, is_finite
from minga.averaging.codecs.layout import Chunk, receive_encoded
from minga.averaging.codecs.residual import Encoder
from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.core.aio import end
from minga.core.errors import NonFiniteError, ProtocolError, RejectedError, RemoteError, SilentError
from minga.core.events.averaging import RoundSenderDropped
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.interface import Buffer
from minga.network.rpc.stream import MessageStream

LOOK_S, LOOK_SHARE, LONGEST_LOOK_S = 0.1, 0.02, 0.5
"""Whom to give up is asked every `LOOK_S`, or this share of the round, if that is longer."""

EXPLAINED_S = 2.0
"""Seconds within which a member from which others turn away that it is still connected to hears why, if others take
over: they may have been told first, and must not be missing from the mean for it. A member that was given up, or
to which no connection is left, has no such news."""


class Reduced(NamedTuple):
    """An encoded mean of one chunk, and the members (by their numbers) whose chunks it is made of."""

    body: Buffer
    members: frozenset[int]


@loop_bound
class Reducer:
    """Reduces one assignment at its root or relay."""

    def __init__(self, round: Round, assignment: Assignment) -> None:
        self._round, self._assignment = round, assignment
        self._is_relay = assignment.aggregator != round.me
        children = round.routes.children(assignment, round.me, range(len(round.members)))
        # Who was given up here in this round is not waited for again in a repair, but without a relay nothing goes on.
        gone = {child for child in children if child in round.dead or child in round.unheard}
        self.useless_relays = {child for child in gone if round.routes.is_relay(assignment, child)}
        """Relays from which nothing more comes although they may live; the coordinator should hear of them."""
        self._away = gone - self.useless_relays
        self._absent = children - self._away
        self._streams: dict[int, MessageStream] = {}
        self._pending = {index: set(self._absent) for index in assignment.chunks}
        self._owed = {index: set(self._absent) for index in assignment.chunks}
        """Who still has to be sent the result of each chunk: its bytes are kept as long as there is one."""
        self._weights: dict[int, float] = {}
        self._counted: dict[int, frozenset[int]] = {}  # whose chunks are in a sum
        self._contributions: dict[int, tuple[int, Reduced]] = {}
        self._encoded: dict[int, Reduced] = {}
        self._cut_off_s: float | None = None  # since when too few are heard
        self._taken = {round.me}  # who has all results of this assignment
        self._left: dict[int, tuple[float, str]] = {}  # relays and others that ended their streams: when, and why
        self._fan_in = len(self._absent) + 1
        self._ready = round.signal()
        self._notice_cut_off()
        round.spawn(self._watch(), round.routes.hops(assignment) - {round.me})
        for index in assignment.chunks:  # alone, or with nothing to wait for
            self._finish_if_ready(index)

    @property
    def _is_taken_over(self) -> bool:
        """Whether enough members have what is made here to commit it, or others make it; a relay makes nothing."""
        round = self._round
        replaced = round.given_up | round.revoked
        if self._is_relay or not replaced.isdisjoint(round.routes.hops(self._assignment)):
            return True
        return round.electorate.is_quorum(self._taken)

    @property
    def is_stuck(self) -> bool:
        """Whether only the coordinator can help: a relay is lost, or too few can take what was made here."""
        if self._is_taken_over or self._cut_off_s is not None:
            return False
        waiting = self._absent or self._streams.keys() - self._taken - self._away
        return self._round.is_broken(self._assignment) or not (waiting or any(self._pending.values()))

    @property
    def is_serving(self) -> bool:
        """Whether any member is still taking over what was made here."""
        return not self._round.aborted and bool(self._streams.keys() - self._taken - self._away)

    async def attend(self, child: int, hello: PartHello, stream: MessageStream) -> None:
        """Serve one child's stream to its end."""
        if child in self._streams:
            raise ProtocolError("a second stream for the same part", peer=stream.peer, phase="reduce")
        if self._round.routes.parent(self._assignment, child) != self._round.me:
            raise ProtocolError("it sends a part to another member than the plan says", peer=stream.peer)
        if child not in self._absent:
            raise RejectedError("too late, this part goes on without it", code=RefusalCode.LATE)
        if (hello.weight is None) != self._round.routes.is_relay(self._assignment, child):
            raise ProtocolError("it takes itself for a relay, or does not", peer=stream.peer, phase="reduce")
        self._streams[child] = stream
        self._absent.discard(child)
        await self._round.run(self._converse(child, hello, stream))

    # ---- for the exchange of a relay with the root

    async def contribution(self, index: int) -> tuple[int, Reduced]:
        """The samples behind a chunk of the own site, and their encoded mean (nothing if there are none)."""
        while index not in self._contributions:
            await self._ready.wait()
        return self._contributions.pop(index)

    def pass_on(self, index: int, result: Reduced) -> None:
        """Send the encoded result of a chunk to the own site. The bytes must not change any more."""
        self._encoded[index] = result
        self._settle(set(), (index,))
        self._pending[index].clear()  # the root went on without us: nothing more is added to what is the result now
        self._ready.fire()

    # ---- receiving

    async def _converse(self, child: int, hello: PartHello, stream: MessageStream) -> None:
        sending = asyncio.get_running_loop().create_task(self._send_results(child, stream))
        try:
            if hello.weight == 0:
                self._drop(child)
                self._round.note_heard(child, 0)
            else:
                await self._receive(child, hello.weight, stream)
            await sending
            if not self._round.aborted:
                await stream.finish()
                await stream.receive_end()
                self._taken |= self._round.routes.behind(self._assignment, child)
                self._round.changed.fire()
        except (ProtocolError, SilentError) as error:
            self._drop(child, error.message)
            if isinstance(error, ProtocolError):
                raise
        except RemoteError as error:
            if self._may_explain(child):
                self._left[child] = asyncio.get_running_loop().time(), error.message
            else:
                self._drop(child, error.message)
        finally:
            await end(sending)
            self._settle({child}, self._assignment.chunks)
        if self._round.aborted:
            raise RejectedError(self._round.aborted, code=RefusalCode.ABORTED)

    def _may_explain(self, child: int) -> bool:
        """Whether a child that ended its stream may know already that others take over, and this member not yet."""
        return self._is_linked(child) or self._round.routes.is_relay(self._assignment, child)

    def _is_linked(self, child: int) -> bool:
        return self._round.node.is_connected(self._round.members[child])

    async def _receive(self, child: int, weight: int | None, stream: MessageStream) -> None:
        """Take the child's chunks; one without a weight of its own is a relay and tells it with each chunk."""
        round = self._round
        pairs = [(round.chunks[index], _codec_from(round.chunks[index], weight)) for index in self._assignment.chunks]
        buffer = round.buffer(max(codec.max_encoded_bytes(chunk.numel) for chunk, codec in pairs))
        for index, (chunk, codec) in zip(self._assignment.chunks, pairs, strict=True):
            told = ChunkWeight(weight) if weight is not None else await stream.receive(ChunkWeight)
            samples = told.weight
            self._check_weight(child, samples, stream)
            body, members = buffer[: codec.max_encoded_bytes(chunk.numel)], frozenset({child})
            if samples:
                if weight is None:
                    behind = self._round.routes.behind(self._assignment, child)
                    members = await receive_counted(round, stream) & behind
                body = await receive_encoded(stream, codec, body)
                round.bytes_received += len(body)
            if round.aborted:
                return
            if child not in self._pending[index] or round.is_broken(self._assignment):
                continue  # given up, but it gets the result; or others reduce it now, perhaps in the same memory
            if samples:
                try:
                    codec.decode_add(body, self._open(index), float(samples))
                except ValueError as error:
                    raise ProtocolError(f"chunk refused: {error}", peer=stream.peer, phase="reduce") from error
                self._weights[index] += samples
                self._counted[index] |= members
            self._pending[index].discard(child)
            self._finish_if_ready(index)
            if index == self._assignment.chunks[-1]:
                self._note_heard(child, told, is_relay=weight is None)

    def _note_heard(self, child: int, told: ChunkWeight, *, is_relay: bool) -> None:
        """All chunks of a child came; a relay divides among its site exactly what counts."""
        if not is_relay:
            self._round.note_heard(child, told.weight)
            return
        behind = self._round.routes.behind(self._assignment, child)
        divided = {member: samples for member, samples in told.behind if member in behind}
        if sum(divided.values()) == told.weight:
            for member, samples in divided.items():
                self._round.note_heard(member, samples)

    def samples_behind(self) -> tuple[tuple[int, int], ...]:
        """The samples of each member of the own site that was heard to the end, this one included."""
        site = self._round.routes.behind(self._assignment, self._round.me)
        own = {self._round.me: self._round.weight if self._round.own is not None else 0}
        return tuple(sorted({m: s for m, s in (self._round.heard | own).items() if m in site}.items()))

    def _check_weight(self, child: int, samples: int, stream: MessageStream) -> None:
        allowed = self._round.allowed_weight(self._round.routes.behind(self._assignment, child))
        if allowed is not None and samples > allowed:
            why = f"a weight of {samples} where {allowed} is the most that the plan and the strategy allow"
            raise ProtocolError(why, peer=stream.peer, phase="reduce")
        if samples * self._fan_in > WEIGHT_LIMIT:  # the sum of the weighted values could overflow
            raise ProtocolError(f"a weight of {samples} samples is too large", peer=stream.peer, phase="reduce")

    def _open(self, index: int) -> torch.Tensor:
        """The accumulator of a chunk, which begins with this member's own contribution."""
        round = self._round
        accumulator = round.reduced[index]
        if index not in self._weights:
            if round.own is None:
                accumulator.zero_()
                self._weights[index], self._counted[index] = 0.0, frozenset()
            else:
                share = self._own_share(round.own, index)
                if not accumulator.is_meta:  # of a model that is only a size there is nothing to multiply
                    torch.mul(share, float(round.weight), out=accumulator)
                self._weights[index], self._counted[index] = float(round.weight), frozenset({round.me})
        return accumulator

    def _own_share(self, own: Encoder, index: int) -> torch.Tensor:
        """What a chunk's mean has of this member's own."""
        try:
            return own.own_share(self._round.chunks[index])
        except NonFiniteError as error:
            self._round.abort(f"this member's part cannot be counted: {error}")
            return own.values(self._round.chunks[index])

    # ---- finishing

    def _finish_if_ready(self, index: int) -> None:
        round, done = self._round, self._contributions if self._is_relay else self._encoded
        if self._pending[index] or round.have[index] or index in done or self._is_over():
            return
        values = self._open(index)
        if self._weights[index] == 0.0 and not self._is_relay:
            round.abort("nobody's samples reached this aggregator")
            return
        if round.own is not None and self._weights[index] == round.weight:
            values.copy_(self._own_share(round.own, index))  # alone: else it would be rounded twice
        elif self._weights[index] and not values.is_meta:
            values.div_(self._weights[index])
        try:
            mean = Reduced(self._encode(index, values), self._counted[index])
        except NonFiniteError:  # no other member's numbers can do that, see `CONTRIBUTION_LIMIT`
            round.abort("the own vector holds NaN, infinity or numbers that are too large")
            return
        if self._is_relay:
            self._contributions[index] = (int(self._weights[index]), mean)
        else:
            self._encoded[index] = mean
            round.note_fate(index, mean.members)
            round.got(index)
            self._settle(set(), (index,))
        self._ready.fire()

    def _is_over(self) -> bool:
        """Whether nothing more is finished here: others take over, or this member hears too few to speak for all."""
        return self._cut_off_s is not None or self._round.is_broken(self._assignment)

    def _encode(self, index: int, values: torch.Tensor) -> Buffer:
        """The bytes to send; a root takes over what they decode to, as all others will."""
        chunk, limit = self._round.chunks[index], CONTRIBUTION_LIMIT if self._is_relay else FLOAT32_MAX
        codec = chunk.codecs.relay if self._is_relay else chunk.codecs.download
        if codec.is_identity:
            if not is_finite(values, limit):
                raise NonFiniteError("the chunk cannot be sent")
            return as_bytes(values)
        seeds = self._round.seeds
        seed = seeds.upload(chunk) if self._is_relay else seeds.download(chunk)
        room = self._round.buffer(codec.max_encoded_bytes(chunk.numel))
        body = room[: codec.encode(values, room, seed=seed, limit=limit)]
        if not self._is_relay:
            codec.decode(body, values)
        return body

    def _drop(self, child: int, why: str | None = None) -> None:
        """Go on without a child from the first chunk that it has not delivered.

        Without a reason it had nothing to send. If too few are heard, or take what was made here, it is this member
        that is cut off: a mean over what arrived would stand for the whole group's. A relay is not gone on without:
        its site would be lost.
        """
        round = self._round
        if child in self._absent:  # it comes too late from now on
            self._absent.discard(child)
            self._settle({child}, self._assignment.chunks)
        if round.is_broken(self._assignment):
            return
        if why is not None:
            if any(child in waiting for waiting in self._pending.values()):
                if round.routes.is_relay(self._assignment, child):
                    round.mark_dead(child, why)  # what is heard of it later is of no use
                    return
                round.node.events.emit(RoundSenderDropped(step=round.plan.step, peer=round.members[child], why=why))
                round.unheard[child] = why
            self._away.add(child)
            self._notice_cut_off()
        for index, waiting in self._pending.items():
            if child in waiting:
                waiting.discard(child)
                self._finish_if_ready(index)

    def _notice_cut_off(self) -> None:
        away = self._away | self._round.unheard.keys()
        if not self._round.electorate.is_quorum(set(range(len(self._round.members))) - away):
            self._cut_off_s = self._cut_off_s or asyncio.get_running_loop().time()

    # ---- sending

    async def _send_results(self, child: int, stream: MessageStream) -> None:
        round = self._round
        for index in self._assignment.chunks:
            while index not in self._encoded:
                if round.aborted:
                    return
                await self._ready.wait()
            await send_reduced(round, self._encoded[index], stream)
            self._settle({child}, (index,))

    def _settle(self, children: set[int], indices: Iterable[int]) -> None:
        """Nothing more of these chunks goes to these children: forget the bytes that no child is owed."""
        for index in indices:
            self._owed[index] -= children
            if not self._owed[index] and index in self._encoded:
                self._encoded[index] = self._encoded[index]._replace(body=b"")

    # ---- waiting

    async def _watch(self) -> None:
        """Give up on children that never appear, that are known to be gone, or that lag far behind the others."""
        round, deadlines = self._round, WaitDeadlines(self._round, self._assignment, frozenset(self._absent))
        while not (round.aborted or round.is_broken(self._assignment)):
            await asyncio.sleep(min(max(LOOK_S, LOOK_SHARE * round.expected_s), LONGEST_LOOK_S))
            if self._is_taken_over and not any(self._pending.values()):
                return
            before_s = asyncio.get_running_loop().time() - EXPLAINED_S
            if self._cut_off_s and self._cut_off_s < before_s:
                round.abort("too few members of the group could be heard to the end")
            for child, why in self._unexplained(before_s).items():
                if round.routes.is_relay(self._assignment, child) and self._is_linked(child):
                    self.useless_relays.add(child)
                else:
                    del self._left[child]
                    self._drop(child, why)
            for child in sorted(round.given_up & set().union(*self._pending.values())):
                self._drop(child, round.dead[child])
            laggards = set().union(*self._pending.values())
            for child, why in deadlines.given_up(self._absent, self._awaited(), laggards).items():
                if round.routes.is_relay(self._assignment, child) and child not in round.dead:
                    self.useless_relays.add(child)
                else:
                    self._drop(child, why)

    def _unexplained(self, before_s: float) -> dict[int, str]:
        """The members that left before then, with the reason, and those that are gone for all."""
        round = self._round
        return {
            child: why
            for child, (since_s, why) in self._left.items()
            if since_s < before_s or child in round.given_up or not self._is_linked(child)
        }

    def _awaited(self) -> dict[int, MessageStream]:
        """The streams of those whose turn it is; see `round.py`."""
        owing = next((waiting for waiting in self._pending.values() if waiting), None)
        if owing is None and len(self._encoded) < len(self._assignment.chunks):
            return {}  # a relay waits for the root
        waited_for = self._streams.keys() - self._taken - self._away if owing is None else owing
        return {child: self._streams[child] for child in waited_for if child in self._streams}


def _codec_from(chunk: Chunk, weight: int | None) -> Codec:
    """How a chunk comes from a child, which is a relay if it has no weight of its own."""
    return chunk.codecs.relay if weight is None else chunk.codecs.upload


# ---- a mean on its way, from a root or a relay, and whose it is


async def send_reduced(round: Round, mean: Reduced, stream: MessageStream) -> None:
    """Send a mean, and before it whose it is, if that matters to the members that get it."""
    if round.tells_counted:
        counted = (member in mean.members for member in range(len(round.members)))
        await stream.send(CountedMembers(pack_bitmap(counted)))
    await stream.send_bulk(mean.body)
    round.bytes_sent += memoryview(mean.body).nbytes


async def receive_counted(round: Round, stream: MessageStream) -> frozenset[int]:
    """The members whose chunks are in the mean that comes next; nobody is named where it does not matter."""
    if not round.tells_counted:
        return frozenset()
    bits = (await stream.receive(CountedMembers)).members
    return frozenset(member for member, bit in enumerate(unpack_bitmap(bits, len(round.members))) if bit)
