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
from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from minga.averaging.allreduce.commit import QuorumCommit
from minga.averaging.allreduce.messages import (
    ALIVE,
    FREEZE,
    LOST,
    REPAIR,
    Alive,
    Assignment,
    ChunkMap,
    Done,
    Freeze,
    Lost,
    Repair,
    RoundState,
)
from minga.averaging.allreduce.reducer import Reducer
from minga.averaging.allreduce.round import Round, StragglerDetector, unpack_bitmap
from minga.averaging.allreduce.routes import FetchWays, RepairWay, is_way, repair_ways, responsible
from minga.averaging.allreduce.sender import exchange, fetch
from minga.averaging.messages import MAX_TERM
from minga.core.aio import racing
from minga.core.errors import ProtocolError, RejectedError, RemoteError
from minga.core.events.averaging import RoundRepaired
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.rpc.node import CALL_TIMEOUT_S

ALIVE_PATIENCE_S = 0.5
FREEZE_TIMEOUT_S = 10.0
TERMS_AHEAD = 64
"""By how much a coordinator's term may exceed what a member has seen. So often it asks again, with a higher one, if a
member says that it has promised itself to another repair; then it goes on without that one."""
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
        self._lock = asyncio.Lock()  # while this member coordinates
        self._repaired: set[int] = set()
        self._holders: dict[int, int] = {}  # who gives a chunk to the others
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
            await self._coordinate(round.me, request)
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

    # ---- the coordinator: the first of the living in the order of the plan, to whom the others report

    async def hear(self, sender: int, request: Lost) -> None:
        """A member reports. If it should have told another one, which it may not reach, that one is told."""
        round = self._round
        while (coordinator := round.alive()[0]) != round.me:
            if coordinator in request.lost and await self._gone({coordinator}):
                round.mark_dead(coordinator, "it does not answer here either")
                continue
            if request.by is not None:
                return
            try:
                await round.node.call(round.members[coordinator], LOST, replace(request, by=sender), Done)
                return
            except RejectedError as error:
                if error.code == RefusalCode.GIVEN_UP:
                    raise  # the sender is to know
                if error.code not in (RefusalCode.ABORTED, RefusalCode.ROUND):
                    return
                round.mark_dead(coordinator, error.message)  # it mends nothing any more: the next in order does
            except RemoteError:  # if it is gone, this member's own work finds out
                return
        await self._coordinate(sender, request)

    async def _coordinate(self, sender: int, request: Lost) -> None:
        """Find out what is left of the work of lost and slow members and spread it among the others.

        What `sender` tells for another member is looked into; but nobody's work is taken away for it, unless this
        member, or more than half of all, find the same.
        """
        async with self._lock:
            round = self._round
            if (sender if request.by is None else request.by) in round.dead:
                raise RejectedError("it was given up in this round", code=RefusalCode.GIVEN_UP)
            if round.plan.adopts:
                return  # nothing is reduced in this round
            known = set(range(len(round.members)))
            accused = (set(request.lost) & known) - self._repaired
            lost = await self._gone(accused - {round.me})
            slow = (set(request.slow) & known) - round.dead.keys()
            if request.by is None:
                revoked = self._to_revoke(sender, accused - lost, slow)
            else:
                revoked = {member for member in slow - round.revoked if self._stragglers.agrees(sender, member)}
            if round.aborted or not (lost or revoked):
                return
            for member in sorted(lost):
                round.mark_dead(member, "it does not answer the coordinator either")
            for member in sorted(revoked):
                round.revoke(member, round.next_term)
            await self._repair()

    async def _repair(self) -> None:
        round, refusals = self._round, Counter[int]()
        while not round.aborted:
            term = round.next_term
            if term > MAX_TERM:
                round.abort("it took too many repairs")
                return
            given_up = round.dead.keys() | round.revoked  # if more are lost meanwhile, all have to freeze for these too
            holdings = await self._freeze_everyone(term, refusals)
            if not round.electorate.is_quorum(holdings):
                round.abort("too few members of the group are left")
            elif set(holdings) == set(round.alive()) and given_up == round.dead.keys() | round.revoked:
                repair = self._decide(term, holdings)
                self._repaired.update(repair.dead)
                await self._announce(repair, holdings)
                return

    def _to_revoke(self, sender: int, answering: set[int], slow: set[int]) -> set[int]:
        """Whose work others must take over although they live: between root and relay there is no way around a broken
        link; those that are slow in the eyes of this member, or of more than half, hold all up; and some ask for it.
        """
        round = self._round
        revoked = {member for member in slow if member == sender or self._stragglers.agrees(sender, member)}
        own = [a for a in round.assignments.values() if a.aggregator == sender]
        revoked |= {member for member in slow if any(member in assignment.relays for assignment in own)}
        for assignment in round.assignments.values():
            if sender == assignment.aggregator:
                revoked |= answering & set(assignment.relays)
            elif sender in assignment.relays and assignment.aggregator in answering:
                revoked.add(sender)
        return revoked - round.revoked

    async def _gone(self, lost: set[int]) -> set[int]:
        """Those of `lost` that this member regards as gone, too, or that do not answer it at once.

        To the others only a link between others is broken; who lacks it fetches what it needs from here.
        """
        round, question = self._round, Alive(self._round.plan.round_id)

        async def is_buried(member: int) -> bool:
            while member not in round.dead:
                await round.changed.wait()
            return True

        async def is_mute(member: int) -> bool:
            try:
                async with asyncio.timeout(ALIVE_PATIENCE_S):
                    await round.node.call(round.members[member], ALIVE, question, RoundState)
            except (RemoteError, TimeoutError):
                return True
            return False

        async def is_gone(member: int) -> bool:  # this member's own work may well find it out while it asks
            async with racing([is_buried(member), is_mute(member)]) as ends:
                return await next(ends)

        asked = sorted(lost - set(round.dead))
        gone = await asyncio.gather(*(is_gone(member) for member in asked))
        return lost - {member for member, is_lost in zip(asked, gone, strict=True) if not is_lost}

    async def _freeze_everyone(self, term: int, refusals: Counter[int]) -> dict[int, ChunkMap]:
        round = self._round
        request = Freeze(round.plan.round_id, term, tuple(sorted(round.dead)), tuple(sorted(round.revoked)))
        added = tuple(a for key, a in round.assignments.items() if key[0] > 0)
        holdings = {round.me: ChunkMap(round.bitmap(), round.term, added)}
        round.promised = term
        round.changed.fire()
        for member in sorted(round.revoked):  # as all others do: whatever was given to them before is given anew
            round.revoke(member, term)

        async def ask(member: int) -> None:
            try:
                holding = await round.node.call(
                    round.members[member], FREEZE, request, ChunkMap, timeout_s=FREEZE_TIMEOUT_S
                )
            except RemoteError as error:
                is_promised = isinstance(error, RejectedError) and error.code == RefusalCode.TERM
                if is_promised and refusals[member] < TERMS_AHEAD:
                    refusals[member] += 1
                    await asyncio.sleep(0.05)  # another coordinator is at work; ask again with a higher term
                    return
                round.mark_dead(member, error.message)
            else:
                holdings[member] = holding
                round.give_up(holding.dead)

        await asyncio.gather(*(ask(i) for i in round.alive() if i != round.me))
        round.give_up(request.dead)
        return holdings

    def _decide(self, term: int, holdings: dict[int, ChunkMap]) -> Repair:
        """Who fetches what from whom, and who reduces what no living member has or is about to have."""
        round = self._round
        known = dict(round.assignments)
        for holding in holdings.values():
            for assignment in holding.assignments:
                if is_valid(round, assignment, term - 1):
                    known.setdefault(assignment.key, assignment)
        maps = {i: unpack_bitmap(h.bitmap, len(round.chunks)) for i, h in sorted(holdings.items())}
        bringing = responsible(known)
        held: dict[int, list[int]] = {}
        orphans: list[int] = []
        for index in range(len(round.chunks)):
            if round.routes.hops(bringing[index]) <= holdings.keys() and not round.is_broken(bringing[index]):
                continue
            holders_of = [i for i, have in maps.items() if have[index]]
            if not holders_of:
                orphans.append(index)
            else:
                held.setdefault(self._holder(index, holders_of), []).append(index)
        aggregators = [i for i in sorted(holdings) if round.plan.members[i].aggregates]
        workers = [i for i in aggregators if i not in round.revoked] or aggregators
        ways = repair_ways(round.plan, workers) or [RepairWay(round.me)]
        shares = [(way, tuple(orphans[k :: len(ways)])) for k, way in enumerate(ways)]
        fresh = [Assignment((term, k), way.root, share, way.relays) for k, (way, share) in enumerate(shares) if share]
        added = [known[key] for key in sorted(known) if key[0] > 0] + fresh
        holders = tuple((holder, tuple(chunks)) for holder, chunks in sorted(held.items()))
        dead, revoked = tuple(sorted(round.dead)), tuple(sorted(round.revoked))
        return Repair(round.plan.round_id, term, dead, revoked, tuple(added), holders)

    def _holder(self, index: int, holders: list[int]) -> int:
        """Who of those that have a chunk gives it to the others: by turns, or one line would carry all of them."""

        def reluctance(member: int) -> tuple[bool, bool]:
            return member in self._round.revoked, not self._round.plan.members[member].aggregates

        least = min(map(reluctance, holders))
        willing = [member for member in holders if reluctance(member) == least]
        if self._holders.get(index) not in willing:  # the one that is asked already stays it
            self._holders[index] = willing[index % len(willing)]
        return self._holders[index]

    async def _announce(self, repair: Repair, holdings: dict[int, ChunkMap]) -> None:
        round = self._round
        round.node.events.emit(RoundRepaired(step=round.plan.step, term=repair.term, lost=len(repair.dead)))

        async def tell(member: int) -> None:
            try:
                await round.node.call(round.members[member], REPAIR, repair, Done)
            except RemoteError as error:
                round.mark_dead(member, error.message)

        self.apply(round.me, repair)
        # A revoked holder is slow: giving it once is enough, the others ask here.
        sources = ((round.me if holder in round.revoked else holder, chunks) for holder, chunks in repair.holders)
        repair = replace(repair, holders=tuple(sources))
        await asyncio.gather(*(tell(i) for i in holdings if i != round.me))


def is_valid(round: Round, assignment: Assignment, last_term: int) -> bool:
    """Whether an assignment can come out of a repair of at most that term: the plan's own ones are never replaced."""
    worker, known = assignment.aggregator, range(len(round.members))
    if not 0 < assignment.key[0] <= last_term or not all(hop in known for hop in (worker, *assignment.relays)):
        return False
    if not is_way(round.plan, RepairWay(worker, assignment.relays)):
        return False
    if not assignment.chunks:  # nobody is given nothing to do
        return False
    return (worker == round.me or round.plan.members[worker].aggregates) and exist(round, assignment.chunks)


def exist(round: Round, chunks: tuple[int, ...]) -> bool:
    """Whether the round has these chunks, and none is named twice."""
    return len(set(chunks)) == len(chunks) and all(index < len(round.chunks) for index in chunks)
