"""The member that mends a round: it finds out what is lost, and spreads the work among the others; see `repair.py`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from weakref import WeakMethod

from msgspec.structs import replace

from minga.averaging.allreduce.messages import Alive, Assignment, ChunkMap, Done, Freeze, Lost, Repair, RoundState
from minga.averaging.allreduce.round import Round, StragglerDetector, unpack_bitmap
from minga.averaging.allreduce.routes import RepairWay, is_way, repair_ways
from minga.averaging.messages import MAX_TERM
from minga.core.aio import racing
from minga.core.errors import RejectedError, RemoteError
from minga.core.events.averaging import RoundRepaired
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound

LOST, ALIVE, FREEZE, REPAIR = "round.lost", "round.alive", "round.freeze", "round.repair"
ALIVE_PATIENCE_S = 0.5
FREEZE_TIMEOUT_S = 10.0
TERMS_AHEAD = 64
"""By how much a coordinator's term may exceed what a member has seen. So often it asks again, with a higher one, if a
member says that it has promised itself to another repair; then it goes on without that one."""


@loop_bound
class Coordinator:
    """What a member does when it is the first of the living in the order of the plan, and others report to it.

    `apply` is how a member takes on a repair. It is held weakly: what repairs a round holds this coordinator, and with
    the round tensors as large as the vector, which must not wait for the garbage collector when the round is over.
    """

    def __init__(
        self, round: Round, stragglers: StragglerDetector, apply: WeakMethod[Callable[[int, Repair], None]]
    ) -> None:
        self._round, self._stragglers, self._apply = round, stragglers, apply
        self._lock = asyncio.Lock()
        self._repaired: set[int] = set()
        self._holders: dict[int, int] = {}  # who gives a chunk to the others

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
        await self.coordinate(sender, request)

    async def coordinate(self, sender: int, request: Lost) -> None:
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

        if (apply := self._apply()) is not None:
            apply(round.me, repair)
        # A revoked holder is slow: giving it once is enough, the others ask here.
        sources = ((round.me if holder in round.revoked else holder, chunks) for holder, chunks in repair.holders)
        repair = replace(repair, holders=tuple(sources))
        await asyncio.gather(*(tell(i) for i in holdings if i != round.me))


def responsible(assignments: Mapping[tuple[int, int], Assignment]) -> dict[int, Assignment]:
    """For each chunk the assignment that is to bring it: later terms overrule earlier ones."""
    return {index: assignments[key] for key in sorted(assignments) for index in assignments[key].chunks}


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
