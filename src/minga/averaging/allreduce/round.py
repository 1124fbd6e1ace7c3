"""One round as one member sees it: which chunks it has, which members are gone, and how long it waits for slow ones.

Theory of operation. The plan cuts the vector into parts and each part into chunks with global numbers. An *assignment*
is a list of chunks and the member that makes their result, its *root* or aggregator; the plan's parts are the
assignments of term 0, repairs add more. For every assignment each member opens one stream to the root, sends its
chunks in order and reads the reduced chunks back in the same order, both at once:

    member ── PartHello, local chunk 0, 1, 2 … ──▶ root   (`sender.py`)
    member ◀── reduced chunk 0, 1, 2 … ─────────── root   (`reducer.py`)

Members of a site have a *relay* between them and the root, which reduces what its site sends, sends the mean on to
the root as any member does, and passes the result on as any root does. See `routes.py`.

The round is complete for a member when it has every chunk, and done when its result is committed, see `commit.py`.
A member that dies is dropped by each root or relay from the first chunk that lacks it. A root or relay that dies, or
whose work others take over because it is too slow, breaks the assignments that go through it: these are replaced, see
`repair.py`. Result bytes are encoded once, sent alike to everybody and decoded by the root too, so all members end with
bitwise equal vectors. A plan that adopts the result of an earlier round has no assignments: members fetch the chunks
from its holders.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
from collections import Counter
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from minga.averaging.allreduce.messages import Assignment
from minga.averaging.allreduce.routes import Routes, responsible
from minga.averaging.allreduce.send_order import SendOrder
from minga.averaging.codecs.layout import Chunk, VectorLayout
from minga.averaging.codecs.residual import ContributionFate, Encoder, Residual
from minga.averaging.codecs.seeds import RoundSeeds
from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.averaging.election import Electorate
from minga.averaging.messages import Plan
from minga.averaging.planning.signed_plan import chunk_bytes_of
from minga.core.aio import Signal
from minga.core.errors import UnreachableError
from minga.core.events.averaging import RoundMemberLost, RoundWorkTakenOver
from minga.core.thread_guard import any_thread, loop_bound
from minga.network.interface import PeerId
from minga.network.meta_bytes import meta_buffer
from minga.network.rpc.keepalive import PULSE_S
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream

IDLE_S = 300.0
"""A 1 Mbit/s link with 64 aggregators takes that long for the first chunk to each of them, if all get on alike."""

MAPPED_BYTES = 128 << 10
"""Buffers of this size on are taken from the system itself."""

LATE, LATE_S = 1.3, 0.25
"""A round is late if it takes so many times as long as predicted, and so many seconds longer: predictions leave round
trips and arithmetic out."""


@dataclass(frozen=True)
class RoundOutcome:
    """What came of a round: `lost` names the members that were given up, with the reason (those that this member as an
    aggregator did not hear to the end, too), `seconds` its duration, `bytes_sent` / `bytes_received` the encoded tensor
    bytes that this member moved, and `fate` whether a contribution of this member is in the result: the one that it
    gave so many attempts at the step `earlier`. `heard` are the samples of those that this member, as an aggregator,
    heard to the end, itself or through the relay of a site.
    """

    plan: Plan
    lost: dict[PeerId, str]
    seconds: float
    bytes_sent: int
    bytes_received: int
    fate: ContributionFate
    heard: Mapping[PeerId, int] = field(default_factory=dict)
    earlier: int = 0

    @property
    def contributors(self) -> int:
        """How many members gave something to the result, as far as the plan foresaw and this member knows."""
        ids = self.plan.ids
        return max(1, sum(ids[index] not in self.lost for index in self.plan.contributors))

    @property
    def is_late(self) -> bool:
        """Whether it took much longer than the plan predicted, if it predicted anything."""
        expected_s = self.plan.predicted_s
        return expected_s is not None and self.seconds > max(LATE * expected_s, expected_s + LATE_S)


@loop_bound
class Round:
    """Shared state of one round at one member; `sender.py`, `reducer.py` and `repair.py` work on it."""

    def __init__(
        self,
        node: Node,
        plan: Plan,
        layout: VectorLayout,
        local: torch.Tensor | None,
        weight: int,
        result: torch.Tensor,
        residual: Residual | None = None,
        *,
        is_counted: bool,
    ) -> None:
        self.node, self.plan, self.is_counted = node, plan, is_counted
        self.weight, self.result = weight, result
        self.members = plan.ids
        self.most_weight: int | None = None
        """What the contribution of one member may weigh at most; None if that is for it to say."""
        self.me = self.members.index(node.peer_id)
        self.chunks, assignments = chunk_table(layout, plan)
        self.assignments: dict[tuple[int, int], Assignment] = {} if plan.adopts else {a.key: a for a in assignments}
        self.routes = Routes(plan.sites)
        sizes = [chunk.numel for chunk in self.chunks]
        self._residual = residual
        self.tells_counted = layout.needs_residual
        """Whether members are told whose chunks are in each mean: they have to keep what is not."""
        self.seeds = RoundSeeds(layout.fingerprint, plan.step, node.peer_id)
        self.own = self._seal(local, residual)
        """This member's contribution; None if it has none."""
        self.counted = [True] * len(self.chunks)
        """Whether each chunk of it is in the mean, as far as this member was told; none is sent to adopt a result."""
        self.told: dict[int, bytes] = {}
        """Whose chunks are in the means that are here, packed as in `CountedMembers`, where members are told."""
        self.reduced = torch.split(result, sizes)
        """The chunks of `result`, in which roots and relays also accumulate."""
        self.term = 0
        self.promised = 0
        """The highest term of a repair that this member heard of; it takes no orders of lower ones."""
        self.have = [self.me in plan.holders] * len(self.chunks)
        self.missing = self.have.count(False)
        self.dead: dict[int, str] = {}
        self.revoked: set[int] = set()
        """Members that are with us, but whose work as root or relay others take over."""
        self._revoked_before: dict[int, int] = {}
        self.given_up: set[int] = set()
        """Those of the dead whom a coordinator went on without: what they hold may have been reduced anew."""
        self.unheard: dict[int, str] = {}
        self.heard: dict[int, int] = {}
        """The samples of the members that this one heard to the end as an aggregator."""
        self.electorate = Electorate.of(plan)
        self.held_term: int | None = None
        """The term in which this member said that it holds the whole result; see `commit.py`."""
        self.committed_term: int | None = None
        """The term whose result a quorum held, as soon as this member knows of one."""
        self.aborted: str | None = None
        self.over, self.decided = asyncio.Event(), asyncio.Event()
        """Set when the round is given up; and when it is, or its result is committed."""
        self.fetching: dict[int, object] = {}
        """The chunks that are being fetched, each with the request that is to bring it."""
        self.came, self.changed = Signal(), Signal()
        """Fire with each chunk, and with anything else that tasks may wait for."""
        self._signals = [self.came, self.changed]
        self.bytes_sent = self.bytes_received = 0
        self.expected_s = min(plan.predicted_s or 0.0, IDLE_S)
        """How long the plan may make this member wait for what is slow, whatever its leader says."""
        self.turns = SendOrder(asyncio.get_running_loop().time, self.expected_s)
        self.started_s = asyncio.get_running_loop().time()
        self._tasks: dict[asyncio.Task[None], frozenset[int]] = {}
        self._streams: dict[MessageStream, int] = {}

    @property
    def next_term(self) -> int:
        """The lowest term that no repair has had, as far as this member heard."""
        return max(self.term, self.promised) + 1

    @property
    def is_complete(self) -> bool:
        """Whether this member has the whole reduced vector."""
        return self.missing == 0

    @property
    def may_hold(self) -> bool:
        """Whether this member has the whole result, and no repair that could change it is under way."""
        return self.is_complete and self.promised <= self.term

    @property
    def is_done(self) -> bool:
        """Whether this member has a result that is committed."""
        held, committed = self.held_term, self.committed_term
        return held is not None and committed is not None and held >= committed

    def commit(self, term: int) -> None:
        """Note that a quorum held the result of `term`."""
        if self.committed_term is None and not self.aborted:
            self.committed_term = term
            self.decided.set()
            self.changed.fire()

    def _seal(self, local: torch.Tensor | None, residual: Residual | None) -> Encoder | None:
        if local is None or self.weight == 0:
            return None
        if residual is None:
            return Encoder(local, self.weight, seeds=self.seeds)
        return residual.seal(local, self.weight, self.plan.step, self.seeds)

    @any_thread
    def keep_residual(self) -> None:
        """The result is committed: keep what it left out of this member's contribution. Blocks; on any thread."""
        if self.own is not None and not self.plan.adopts:
            self.own.settle(self._own_chunks(self.own), self.result)
        elif self.own is not None:
            self.own.settle_adopted(self.plan.adopts, self.result, counted=self.is_counted)
        elif self.is_counted and self._residual is not None:  # what was given then is not here any more
            self._residual.settle(ContributionFate.COUNTED)

    @any_thread
    def set_aside(self) -> None:
        """The round came to nothing here, and a later one may adopt its result. Before `take_back`; it blocks."""
        if self.own is not None and not self.plan.adopts:
            self.own.set_aside(self.plan.round_id, self._own_chunks(self.own))

    def take_back(self) -> None:
        """The round came to nothing: nothing of this member's contribution counts."""
        if self.own is not None:
            self.own.take_back()

    def _own_chunks(self, own: Encoder) -> list[tuple[Chunk, bool]]:
        """All chunks, and whether each of this member's own is in the mean; `own` is told which it does not encode.

        That follows from who makes the mean, and not from where it came: a relay whose link is cut fetches it. What a
        member gave to a round that it gave up may be in a mean that it never had, unless it was to make that itself.
        """
        fates = []
        for index, maker in sorted(responsible(self.assignments).items()):
            chunk = self.chunks[index]
            if self.me in self.routes.hops(maker) and not chunk.codecs.encodes_own:
                own.summed.add(chunk.start)
            is_made = self.have[index] or maker.aggregator != self.me
            fates.append((chunk, is_made and self.counted[index]))
        return fates

    def note_fate(self, index: int, counted: Collection[int]) -> None:
        """The result of a chunk has the chunks of the members `counted` in it."""
        self.counted[index] = self.me in counted
        if self.tells_counted:
            self.told[index] = pack_bitmap(member in counted for member in range(len(self.members)))

    def note_heard(self, member: int, samples: int) -> None:
        """Note that all chunks of an assignment came from a member, with so many samples; the least it says counts."""
        self.heard[member] = min(samples, self.heard.get(member, samples))

    def allowed_weight(self, members: Collection[int]) -> int | None:
        """What these members may weigh together, by the plan and by what all count; None if nothing says it."""
        givers = [member for member in members if not self.plan.scores or member in self.plan.contributors]
        return None if givers and self.most_weight is None else len(givers) * (self.most_weight or 0)

    def got(self, index: int) -> None:
        """Note that the reduced values of a chunk stand in `result`."""
        if not self.have[index]:
            self.have[index] = True
            self.missing -= 1
            self.came.fire()
            if not self.missing:
                self.changed.fire()

    def buffer(self, size: int) -> memoryview:
        """New memory for `size` encoded bytes; meta where the vectors have no numbers.

        Many of them live for very different times. Those of a chunk or so come from the system and go back to it: the
        C library would keep what lies between two that are still in use, which adds up to half a vector.
        """
        if self.result.is_meta:
            return meta_buffer(size)
        if size >= MAPPED_BYTES:
            return memoryview(mmap.mmap(-1, size))
        return as_bytes(torch.empty(size, dtype=torch.uint8, device=self.result.device))

    def mark_dead(self, member: int, why: str) -> None:
        """Regard a member as gone for the rest of the round; tasks that need it end."""
        if member not in self.dead and member != self.me:
            self.dead[member] = why
            self.node.events.emit(
                RoundMemberLost(step=self.plan.step, peer=self.members[member], why=why, round=self.plan.round_id)
            )
            self._end_tasks_of(member)

    def give_up(self, members: Iterable[int]) -> None:
        """A coordinator goes on without these. If this member is one of them, the round is over for it."""
        for member in sorted(set(members).intersection(range(len(self.members)))):
            self.given_up.add(member)
            self.mark_dead(member, "given up by the coordinator")
            if member == self.me:
                self.abort("the others went on without this member")

    def revoke(self, member: int, term: int) -> None:
        """Take no more from the assignments of earlier terms that go through a member; it may be this one."""
        if member not in self.revoked:
            self.revoked.add(member)
            self.node.events.emit(
                RoundWorkTakenOver(step=self.plan.step, peer=self.members[member], round=self.plan.round_id)
            )
        if term > self._revoked_before.get(member, 0):
            self._revoked_before[member] = term
            self._end_tasks_of(member)

    def is_broken(self, assignment: Assignment) -> bool:
        """Whether a member that the assignment goes through is gone or revoked: no more of its chunks get finished."""
        if not self.dead and not self._revoked_before:  # it is asked for each chunk of each member
            return False
        hops, term = self.routes.hops(assignment), assignment.key[0]
        return any(hop in self.dead or term < self._revoked_before.get(hop, 0) for hop in hops)

    def abort(self, why: str) -> None:
        """Give the round up, unless it already is."""
        self.aborted = self.aborted or why
        self.over.set()
        self.decided.set()
        for signal in self._signals:
            signal.fire()

    def signal(self) -> Signal:
        """A signal of a part of the round; it fires also when the round is given up."""
        self._signals.append(Signal())
        return self._signals[-1]

    def alive(self) -> list[int]:
        """Members not known to be gone, in the order of the plan."""
        return [i for i in range(len(self.members)) if i not in self.dead]

    @contextlib.contextmanager
    def expecting(self, member: int, stream: MessageStream) -> Iterator[None]:
        """Something is to come from `member` over this stream: see `bury_idle`."""
        self._streams[stream] = member
        try:
            yield
        finally:
            del self._streams[stream]

    def silent(self) -> set[int]:
        """Those of whom not even the signs of life come that are due."""
        return {member for stream, member in self._streams.items() if stream.quiet_s > stream.pause_s + PULSE_S}

    def bury_idle(self) -> None:
        """Regard those as gone who give signs of life, but nothing that is expected of them."""
        for stream, member in list(self._streams.items()):
            if stream.idle_s > IDLE_S:
                self.mark_dead(member, f"it is alive, but nothing came from it for {IDLE_S:.0f} s")

    def spawn(self, coroutine: Coroutine[Any, Any, None], needs: frozenset[int]) -> asyncio.Task[None] | None:
        """Run a task that ends with the round, or when one of the members that it `needs` is buried or revoked.

        Once the round is over, nothing begins: the tensors that it worked on may be in use elsewhere.
        """
        if self.over.is_set():
            coroutine.close()
            return None
        task = self.node.spawn(coroutine)
        self._tasks[task] = needs
        task.add_done_callback(lambda t: self._tasks.pop(t, None))
        return task

    async def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Do something that uses this round's buffers; raises `UnreachableError` if the round is retired meanwhile."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = frozenset()
        try:
            await asyncio.wait([task])
            if task.cancelled():
                raise UnreachableError("the round is over", round=self.plan.step)
            task.result()
        finally:
            task.cancel()
            self._tasks.pop(task, None)

    def bitmap(self) -> bytes:
        """Which chunks this member has, one bit each, lowest bit first."""
        return pack_bitmap(self.have)

    def retire(self) -> None:
        """End everything that still works for this round; its result buffer is about to be reused."""
        self.abort("the round is over")
        for task in list(self._tasks):
            task.cancel()

    def _end_tasks_of(self, member: int) -> None:
        for task, needs in list(self._tasks.items()):
            if member in needs:
                task.cancel()
        self.changed.fire()

    def outcome(self) -> RoundOutcome:
        """The summary of a finished round."""
        lost = {self.members[i]: why for i, why in (self.unheard | self.dead).items()}
        seconds = asyncio.get_running_loop().time() - self.started_s
        fate = ContributionFate.ABSENT if self.own is None else ContributionFate.UNCOUNTED
        if self.is_counted and any(self.counted):  # also where it was given to an earlier attempt, and nothing now
            fate = ContributionFate.COUNTED
        heard = {self.members[i]: samples for i, samples in self.heard.items() if self.members[i] not in lost}
        return RoundOutcome(self.plan, lost, seconds, self.bytes_sent, self.bytes_received, fate, heard)


def chunk_table(layout: VectorLayout, plan: Plan) -> tuple[list[Chunk], list[Assignment]]:
    """All chunks of a plan in order, and its parts as assignments."""
    chunks: list[Chunk] = []
    assignments: list[Assignment] = []
    start = 0
    for number, part in enumerate(plan.parts):
        size = chunk_bytes_of(plan, layout.encoded_bytes(start, part.stop))
        pieces = layout.chunks(start, part.stop, size)
        numbers = tuple(range(len(chunks), len(chunks) + len(pieces)))
        assignments.append(Assignment((0, number), part.root, numbers, part.relays))
        chunks.extend(pieces)
        start = part.stop
    return chunks, assignments


def pack_bitmap(flags: Iterable[bool]) -> bytes:
    """One bit for each flag, lowest bit first."""
    return np.packbits(list(flags), bitorder="little").tobytes()


def unpack_bitmap(bitmap: bytes, count: int) -> list[bool]:
    """Undo `pack_bitmap`; surplus bits are ignored, missing ones are False."""
    padded = bitmap.ljust(-(-count // 8), b"\0")
    bits = np.unpackbits(np.frombuffer(padded, np.uint8), count=count, bitorder="little")
    return [bool(bit) for bit in bits]


# ---- How long a root or relay waits for the members that send to it.
#
# Who never opens its stream is given up after `APPEAR_S` and some round trips (plus the time of a dial). Who lags when
# more than half have delivered everything is given up after max(`LAG_S`, 3 * the time that these needed), but not
# before 1.5 times what the plan expected the round to take, for a slow link is no fault. Silence is noticed by the
# stream itself; a child that is alive, and whose turn it is, but to or from which no byte moves for `STALL_S` is given
# up, too (a relay, which itself waits for others, after twice that). It is the turn of those that owe the first chunk
# that is not finished; and once all is finished, of those that have not taken it over.


APPEAR_S = 2.0
DIAL_S = 3.0
LAG_S = 3.0
STALL_S = 30.0
EXPECTED_FACTOR = 1.5


class WaitDeadlines:
    """The waiting for the `children` of one assignment at this member; it begins now."""

    def __init__(self, round: Round, assignment: Assignment, children: frozenset[int]) -> None:
        self._round, self._assignment, self._children = round, assignment, children
        self._begun_s = asyncio.get_running_loop().time()
        self._appear_s = self._times_to_appear()
        self._lag_deadline_s: float | None = None

    def given_up(
        self, absent: Collection[int], awaited: Mapping[int, MessageStream], laggards: Collection[int]
    ) -> dict[int, str]:
        """Whom not to wait for any longer, and why: of the `absent`, of those whose turn it is (the `awaited`, with
        their streams), and of the `laggards` (who have not delivered everything).
        """
        elapsed_s = asyncio.get_running_loop().time() - self._begun_s
        lost = {
            child: "it never sent its part"
            for child in sorted(absent)
            if child in self._round.dead or elapsed_s > self._appear_s[child]
        }
        for child, stream in awaited.items():
            stall_s = STALL_S * (2 if self._round.routes.is_relay(self._assignment, child) else 1)
            if stream.idle_s > stall_s:
                lost[child] = f"nothing moved for {stall_s:.0f} s"
        if self._is_over_for_laggards(elapsed_s, len(laggards)):
            lost.update(dict.fromkeys(sorted(laggards), "it is far slower than the others"))
        return lost

    def _is_over_for_laggards(self, elapsed_s: float, laggards: int) -> bool:
        if 2 * laggards >= len(self._children):
            self._lag_deadline_s = None
        elif self._lag_deadline_s is None:
            expected_s = EXPECTED_FACTOR * self._round.expected_s
            self._lag_deadline_s = max(elapsed_s + max(LAG_S, 3.0 * elapsed_s), expected_s)
        return self._lag_deadline_s is not None and elapsed_s > self._lag_deadline_s

    def _times_to_appear(self) -> dict[int, float]:
        """How long each may take to open its stream: the plan may have come to it later, and it may have to dial."""
        round = self._round
        members = {child: round.members[child] for child in self._children}
        trips = {c: round.node.round_trip_s(m) or 0.0 for c, m in members.items() if round.node.is_connected(m)}
        longest = max(trips.values(), default=0.0)
        return {c: APPEAR_S + 2 * trips[c] if c in trips else APPEAR_S + DIAL_S + 4 * longest for c in self._children}


# ---- When the work of a slow aggregator is worth moving to others.
#
# A member judges by what it sees itself: the bytes that it still lacks from an aggregator, and the rate at which that
# one delivered so far, give the seconds that are left. If half of the aggregators are done, their rate together tells
# how long the same bytes would take there, after a repair. Moving pays if
#
#     left / rate > 2 * (REPAIR_S + left / rate of those that are done),   and at least `LEAST_GAIN_S` are saved.
#
# A plan that expected the round to take this long is not overruled: slow links are in its reckoning. A silent member
# is not slow: either it is heard again soon, or it is given up, and until then others may have to wait for it. So no
# member is called slow meanwhile, and what was delivered before a repair, and the time that it took, do not count
# after it.


REPAIR_S: Final = 0.5
LEAST_GAIN_S: Final = 2.0
LOOK_PERIOD_S: Final = 0.5
LOOK_SHARE: Final = 0.05
"""Progress is looked at so often, or after this share of the round, if that is longer."""

EARLIEST_S: Final = 2.0
OVERDUE: Final = 1.25
"""An aggregator is on time up to so many times the predicted duration of the round."""


@loop_bound
class StragglerDetector:
    """Watches the progress of a round at one member."""

    def __init__(self, round: Round) -> None:
        self._round = round
        self._looked_s = float("-inf")
        self._term, self._since_s = 0, round.started_s
        self._left_then: Counter[int] = Counter()
        self._done_s: dict[int, float] = {}
        self._slow: tuple[int, ...] = ()
        self._told: set[int] = set()
        self._votes: dict[int, set[int]] = {}

    def news(self) -> tuple[int, ...]:
        """Aggregators that are slow and were not named before."""
        fresh = tuple(member for member in self._look() if member not in self._told)
        self._told.update(fresh)
        return fresh

    def agrees(self, sender: int, member: int) -> bool:
        """Whether `member`, which `sender` calls slow, is slow for this member too, or for more than half of all."""
        voters = self._votes.setdefault(member, set())
        voters.add(sender)
        return member in self._look() or 2 * len(voters) > len(self._round.alive())

    def _look(self) -> tuple[int, ...]:
        now = asyncio.get_running_loop().time()
        if now - self._looked_s >= max(LOOK_PERIOD_S, LOOK_SHARE * self._round.expected_s):
            self._looked_s = now
            self._slow = () if self._round.silent() else self._judge(now)
        return self._slow

    def _judge(self, now: float) -> tuple[int, ...]:
        round = self._round
        total: Counter[int] = Counter()
        left: Counter[int] = Counter()
        for (term, _), assignment in round.assignments.items():
            if not term and not round.is_broken(assignment):  # a repair is not repaired for this
                sizes = [(round.chunks[i].upload_bytes, round.have[i]) for i in assignment.chunks]
                total[assignment.aggregator] += sum(size for size, _ in sizes)
                left[assignment.aggregator] += sum(size for size, have in sizes if not have)
        done = [member for member in total if not left[member]]
        for member in done:
            self._done_s.setdefault(member, now - round.started_s)
        if self._term != round.term:
            self._term, self._since_s, self._left_then = round.term, now, left
        elapsed_s = now - self._since_s
        too_early = elapsed_s < max(EARLIEST_S, OVERDUE * round.expected_s)
        if too_early or not done or 2 * len(done) < len(total):
            return ()
        others_rate = sum(total[member] for member in done) / max(self._done_s[member] for member in done)
        slow = []
        for member in sorted(total.keys() - set(done)):
            delivered = (self._left_then or total)[member] - left[member]
            remaining_s = left[member] * elapsed_s / max(1, delivered)
            moved_s = REPAIR_S + left[member] / others_rate
            if remaining_s > 2.0 * moved_s and remaining_s - moved_s > LEAST_GAIN_S:
                slow.append(member)
        return tuple(slow)
