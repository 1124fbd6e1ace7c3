"""What happens when an aggregator or a relay is lost in the middle of a round, or turns out to be far too slow.

Its part is not lost with it: every member still holds its local vector, and some members may already have some of the
reduced chunks. One living member coordinates, the first in the order of the plan (the leader, as a rule):

    member       ── Lost{who} ──▶ coordinator       I hear nothing more from this one, or it holds all others up
    coordinator  ── alive? ─────▶ the accused       still in this round? If it answers, only a link is broken
    coordinator  ── Freeze ─────▶ every member      take no more from it; which chunks do you have?
    coordinator  ── Repair ─────▶ every member      chunks that a member has are fetched from it, the others are
                                                    reduced again by other members, both as `routes.py` says

Freezing before deciding makes it impossible that one member applies a chunk of the lost aggregator while the others
reduce it anew. Repairs add up: each carries all assignments made so far and a higher term, so a coordinator that dies
as well is replaced by the next in order, who asks again and keeps what was already assigned to living members.
Without a quorum of the plan's members the round is aborted instead: then this is the smaller side of a split.

The work of a member that lives can be *revoked*: it stays in the round with its samples, but all that goes through it
and is not finished is done by others. So it is with those that are too slow (`round.py` says when), and where only
the link between a root and a relay is broken, for then nobody else can help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from weakref import WeakMethod

from minga.averaging.allreduce.commit import QuorumCommit
from minga.averaging.allreduce.coordinator import LOST, TERMS_AHEAD, Coordinator, exist, is_valid, responsible
from minga.averaging.allreduce.messages import Assignment, ChunkMap, Done, Freeze, Lost, Repair
from minga.averaging.allreduce.reducer import Reducer
from minga.averaging.allreduce.round import Round, StragglerDetector
from minga.averaging.allreduce.routes import FetchWays
from minga.averaging.allreduce.sender import exchange, fetch
from minga.core.aio import racing
from minga.core.errors import ProtocolError, RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.rpc.node import CALL_TIMEOUT_S

REPAIR_TIMEOUT_S = 4.0 * CALL_TIMEOUT_S
"""Seconds for a coordinator to mend the round: it asks and tells all members, some of whom may not answer in time."""
REPORT_PAUSE_S = 0.25
FROZEN_S, LONGEST_FROZEN_S = 1.0, 20.0
"""Seconds that a frozen member waits for the repair before it asks the coordinator whether that lives, and at most: a
coordinator that freezes a round and does not mend it is none. It has to wait for members that do not answer it itself.
"""
PATIENCE_S = 30.0
"""Seconds in which nothing of a chunk comes from the member that is to give it, after which a coordinator asks another
one. Others wait as much longer as the round was foreseen to take, for whom they ask may have to fetch it first."""
COORDINATORS = 3
"""Of so many members, the first in the order of the plan, each may soon have to mend the round. A client connects to
them when it begins: they could not dial it, and it may notice later than they do that it should report to them."""


@loop_bound
class Repairer:
    """Starts the work of a round at one member and mends it when aggregators are lost."""

    def __init__(self, round: Round) -> None:
        self._round = round
        self._reducers: dict[tuple[int, int], Reducer] = {}
        self._fetches: dict[asyncio.Task[None], tuple[int, tuple[int, ...]]] = {}  # from whom, and which chunks
        self._frozen = 0, 0.0  # a promised term, and since when this member waits for its repair
        self._stragglers = StragglerDetector(round)
        self.coordinator = Coordinator(round, self._stragglers, WeakMethod(self.apply))
        self.commit = QuorumCommit(round)

    def start(self) -> None:
        """Begin with the plan's own parts, or with the result that it adopts."""
        round = self._round
        self._begin(round.assignments.values())
        round.spawn(self.commit.run(), frozenset())
        if round.plan.adopts:
            round.spawn(self._adopt(), frozenset())
        if not round.plan.members[round.me].aggregates:
            for member in range(min(COORDINATORS, round.me)):
                round.spawn(self._be_reachable(member), frozenset({member}))

    def reducer(self, key: tuple[int, int]) -> Reducer | None:
        """This member's reducer of an assignment, if it has that assignment."""
        return self._reducers.get(key)

    @property
    def is_serving(self) -> bool:
        """Whether others are still taking over what this member made."""
        return any(reducer.is_serving for reducer in self._reducers.values())

    async def run(self) -> None:
        """Work until this member has the whole vector and it is committed, or the round is aborted."""
        round = self._round
        while not round.is_done and not round.aborted:
            if slow := self._stragglers.news():
                round.spawn(self._report(slow), frozenset())  # the round may well get done meanwhile
            useless = self._useless()
            if useless or self._lacks_help():
                async with racing([self._report(tuple(sorted(useless))), round.over.wait()]) as ends:
                    await next(ends)
                if self._lacks_help():  # nobody can help at present
                    await round.changed.wait(REPORT_PAUSE_S)
                    round.bury_idle()
            else:
                await round.changed.wait(FROZEN_S)
                round.bury_idle()
                if round.promised > round.term and self._frozen_s() > FROZEN_S:
                    await self._report(())  # if the coordinator of the repair is gone, another one has to begin anew
                    if self._frozen_s() > LONGEST_FROZEN_S and round.alive()[0] != round.me:
                        round.mark_dead(round.alive()[0], "it froze the round, and does not mend it")

    # ---- any member

    def _frozen_s(self) -> float:
        """For how many seconds this member has waited for the repair for which it was frozen."""
        now = asyncio.get_running_loop().time()
        if self._frozen[0] != self._round.promised:
            self._frozen = self._round.promised, now
        return now - self._frozen[1]

    async def _adopt(self) -> None:
        """Fetch the adopted result from one of its holders."""
        round, everything = self._round, tuple(range(len(self._round.chunks)))
        holders = round.plan.holders
        for turn in range(len(holders)):
            fetching = fetch(round, holders[(round.me + turn) % len(holders)], everything)
            if fetching is not None:
                await asyncio.wait([fetching])
        if not round.is_complete:
            round.abort("no member that holds the adopted result could be reached")

    async def _be_reachable(self, member: int) -> None:
        await self._round.node.connection(self._round.members[member])

    def _orphans(self) -> tuple[int, ...]:
        """Chunks that this member lacks, from aggregators that are gone, and that nobody is bringing."""
        round = self._round
        if not round.dead and not round.revoked:
            return ()
        bringing = responsible(round.assignments)
        return tuple(
            index
            for index, assignment in sorted(bringing.items())
            if not round.have[index] and index not in round.fetching and round.is_broken(assignment)
        )

    def _lacks_help(self) -> bool:
        """Whether something here goes on only when the coordinator knows the lost members."""
        return bool(self._orphans()) or any(reducer.is_stuck for reducer in self._reducers.values())

    def _useless(self) -> set[int]:
        """Whose work others should take over, from the point of view of a root: relays', or its own.

        A lost member is reported as lost: the root that it left alone is good for other parts.
        """
        round, useless = self._round, set[int]()
        for key, reducer in self._reducers.items():
            if not round.is_broken(round.assignments[key]):
                useless |= reducer.useless_relays
                if reducer.is_stuck:
                    useless.add(round.me)
        return useless - round.revoked

    def _begin(self, assignments: Iterable[Assignment]) -> None:
        round = self._round
        for assignment in list(assignments):
            relays = round.routes.is_relay(assignment, round.me)
            if relays or assignment.aggregator == round.me:
                self._reducers[assignment.key] = Reducer(round, assignment)
            if assignment.aggregator != round.me and not round.is_broken(assignment):
                relay = self._reducers[assignment.key] if relays else None
                round.spawn(exchange(round, assignment, relay), round.routes.hops(assignment))
        round.changed.fire()

    async def _report(self, slow: tuple[int, ...] = ()) -> None:
        """Tell the present coordinator which members are lost or slow; coordinate if it is this member.

        What the coordinator's repair did not cover (only our own link is broken) is then fetched from it.
        """
        round = self._round
        coordinator = round.alive()[0]
        request = Lost(round.plan.round_id, tuple(sorted(round.dead)), slow)
        if coordinator == round.me:
            await self.coordinator.coordinate(round.me, request)
            return
        try:
            await round.node.call(round.members[coordinator], LOST, request, Done, timeout_s=REPAIR_TIMEOUT_S)
        except RemoteError as error:
            if isinstance(error, RejectedError) and error.code == RefusalCode.GIVEN_UP:
                round.abort(error.message)
            else:  # it cannot be reached, never got the plan, or gave the round up for itself: the next in order can
                round.mark_dead(coordinator, error.message)
        else:
            self._ask(coordinator, self._orphans(), is_last_resort=True)

    def freeze(self, sender: int, request: Freeze) -> ChunkMap:
        """Take no more from the dead, and say what is here.

        Raises `ProtocolError` if the sender cannot be the coordinator, and `RejectedError` if there is a newer one.
        """
        round = self._round
        self._check_order(sender, request.term, request.dead)
        if request.term <= round.promised:
            raise RejectedError(f"a repair of term {round.promised} is under way", code=RefusalCode.TERM)
        round.promised = request.term
        self._give_up(request.dead, request.revoked, request.term)
        added = tuple(a for key, a in round.assignments.items() if key[0] > 0)
        round.changed.fire()
        return ChunkMap(round.bitmap(), round.term, added, tuple(sorted(round.given_up)))

    def apply(self, sender: int, repair: Repair) -> None:
        """Take on what a coordinator decided. Raises `ProtocolError` if the sender cannot be the coordinator."""
        round = self._round
        if sender != round.me:
            self._check_order(sender, repair.term, repair.dead)
        if round.aborted or repair.term <= round.term or repair.term < round.promised:
            return
        round.term = round.promised = repair.term
        round.changed.fire()
        self._give_up(repair.dead, repair.revoked, repair.term)
        fresh = [a for a in repair.assignments if a.key not in round.assignments and is_valid(round, a, repair.term)]
        round.assignments.update({a.key: a for a in fresh})
        self._begin(fresh)
        self._fetch(sender, repair)

    def _fetch(self, sender: int, repair: Repair) -> None:
        """Ask for the chunks that a repair found, and no more where an earlier one said something else.

        The first in the order of the plan ask the holders themselves: the others turn to them for what they cannot get
        elsewhere, so they must not wait for any of those. All members answer in the order of the chunks. So members
        that go by one repair, and ask for chunks in one order, never wait for each other in a circle.
        """
        round, first = self._round, self._round.alive()[:COORDINATORS]
        idle = {*repair.dead, *repair.revoked}
        able = {i for i, member in enumerate(round.plan.members) if member.aggregates and i not in idle}
        ways = FetchWays(round.plan, round.me, able)
        known = {
            chunk: holder
            for holder, chunks in repair.holders
            if holder < len(round.members) and exist(round, chunks)
            for chunk in chunks
        }
        sources = dict[int, list[int]]()
        for chunk in sorted(known):
            source = known[chunk] if round.me in first else ways.source(known[chunk], chunk)
            sources.setdefault(sender if source in round.dead else source, []).append(chunk)
        asked = {chunk: source for source, chunks in sources.items() for chunk in chunks}
        for task, (source, chunks) in list(self._fetches.items()):
            lacking = [chunk for chunk in chunks if not round.have[chunk]]
            if any(source not in (sender, asked.get(chunk), known.get(chunk)) for chunk in lacking):
                task.cancel()
                for chunk in chunks:
                    round.fetching.pop(chunk, None)
        for source, listed in sources.items():
            self._ask(source, tuple(listed))

    def _ask(self, source: int, chunks: tuple[int, ...], *, is_last_resort: bool = False) -> None:
        """Ask a member for chunks. Only a coordinator takes one that says nothing for lost, or a member the one to whom
        it turns as the last resort; others turn to the coordinator then.
        """
        round = self._round
        coordinator = round.alive()[0]
        if source == round.me:
            return
        if is_last_resort or source == coordinator:
            task = fetch(round, source, chunks)
        elif round.me == coordinator:
            task = fetch(round, source, chunks, PATIENCE_S)
        else:
            task = fetch(round, source, chunks, PATIENCE_S + round.expected_s, buries=False)
        if task is not None:
            self._fetches[task] = source, chunks
            task.add_done_callback(lambda ended: self._fetches.pop(ended, None))

    def _give_up(self, dead: Iterable[int], revoked: Iterable[int], term: int) -> None:
        known = range(len(self._round.members))
        self._round.give_up(dead)
        for member in revoked:
            if member in known:
                self._round.revoke(member, term)

    def _check_order(self, sender: int, term: int, dead: Iterable[int]) -> None:
        """The coordinator is the first of the living in the order of the plan, and counts its repairs one by one."""
        round = self._round
        is_first = set(range(sender)) <= set(dead)
        if sender > round.me or not is_first or round.me in dead or term >= round.next_term + TERMS_AHEAD:
            raise ProtocolError("it is not for it to repair this round", peer=round.members[sender], phase="repair")
