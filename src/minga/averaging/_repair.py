"""What happens when an aggregator or a relay is lost in the middle of a round, or turns out to be far too slow.

Its part is not lost with it: every member still holds its local vector, and some members may already have some of the
reduced chunks. One living member coordinates, the first in the order of the plan (the leader, as a rule):

    member       ── Lost{who} ──▶ coordinator       I hear nothing more from this one, or it holds all others up
    coordinator  ── alive? ─────▶ the accused       a short question; if it answers, only a link is broken
    coordinator  ── Freeze ─────▶ every member      take no more from it; which chunks do you have?
    coordinator  ── Repair ─────▶ every member      chunks that someone has are fetched from there,
                                                    the others are reduced again by other members, without relays

Freezing before deciding makes it impossible that one member applies a chunk of the lost aggregator while the others
reduce it anew. Repairs add up: each carries all assignments made so far and a higher term, so a coordinator that dies
as well is replaced by the next in order, who asks again and keeps what was already assigned to living members.
Without a quorum of the plan's members the round is aborted instead: then this is the smaller side of a split.

The work of a member that lives can be *revoked*: it stays in the round with its samples, but all that goes through it
and is not finished is done by others. So it is with those that are too slow (`_slowness` says when), and where only
the link between a root and a relay is broken, for then nobody else can help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from minga.averaging._exchange import exchange, fetch
from minga.averaging._messages import MAX_TERM, Assignment, Done, Freeze, Holding, Lost, Repair
from minga.averaging._ranking import has_quorum
from minga.averaging._reducer import Reducer
from minga.averaging._round import Round, unpack_bitmap
from minga.averaging._slowness import Slowness
from minga.core._errors import ProtocolError, RejectedError, RemoteError
from minga.network._node import CALL_TIMEOUT_S

LOST, ALIVE, FREEZE, REPAIR = "round.lost", "round.alive", "round.freeze", "round.repair"
ALIVE_PATIENCE_S = 0.5
REPAIR_TIMEOUT_S = 4.0 * CALL_TIMEOUT_S
"""Seconds for a coordinator to mend the round: it asks and tells all members, some of whom may not answer in time."""
TERMS_AHEAD = 64
"""By how much a coordinator's term may exceed what a member has seen: it asks again after each refusal."""


class Repairer:
    """Starts the work of a round at one member and mends it when aggregators are lost."""

    def __init__(self, round: Round) -> None:
        self._round = round
        self._reducers: dict[tuple[int, int], Reducer] = {}
        self._lock = asyncio.Lock()
        self._repaired: set[int] = set()
        self._promised = 0
        self._slowness = Slowness(round)

    def start(self) -> None:
        """Begin with the plan's own parts."""
        self._begin(self._round.assignments.values())

    def reducer(self, key: tuple[int, int]) -> Reducer | None:
        """This member's reducer of an assignment, if it has that assignment."""
        return self._reducers.get(key)

    @property
    def is_done(self) -> bool:
        """Whether this member has the whole vector, and nobody can make it undone."""
        return self._round.is_complete and all(reducer.is_final for reducer in self._reducers.values())

    async def run(self) -> None:
        """Work until this member has the whole vector, or the round is aborted."""
        round = self._round
        while not self.is_done and not round.aborted:
            if slow := self._slowness.news():
                round.spawn(self._report(slow), frozenset())  # the round may well get done meanwhile
            if self._orphans() or self._is_unsettled():
                await self._report()
            else:
                await round.changed.wait(1.0)
                round.bury_idle()

    # ---- any member

    def _orphans(self) -> tuple[int, ...]:
        """Chunks that this member lacks, from aggregators that are gone, and that nobody is bringing."""
        round = self._round
        if not round.dead and not round.revoked:
            return ()
        responsible = _responsible(round.assignments)
        return tuple(
            index
            for index, assignment in sorted(responsible.items())
            if not round.have[index] and index not in round.fetching and round.is_broken(assignment)
        )

    def _is_unsettled(self) -> bool:
        """Whether this root lost members, and the coordinator has not been told yet."""
        lost_more = not self._round.dead.keys() <= self._round.settled
        return lost_more and any(reducer.is_stuck for reducer in self._reducers.values())

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
        """Tell the coordinator, whoever that is by now, who is lost or slow; coordinate if it is this member.

        What the coordinator's repair did not cover (only our own link is broken) is then fetched from it.
        """
        round = self._round
        coordinator = round.alive()[0]
        request = Lost(round.plan.round_id, tuple(sorted(round.dead)), slow)
        if coordinator == round.me:
            await self.coordinate(round.me, request)
            round.settled.update(request.lost)
            return
        try:
            await round.node.call(round.members[coordinator], LOST, request, Done, timeout_s=REPAIR_TIMEOUT_S)
            round.settled.update(request.lost)
        except RejectedError as error:
            round.abort(error.message)
        except RemoteError as error:
            round.bury(coordinator, error.message)
        else:
            if orphans := self._orphans():
                await fetch(round, coordinator, orphans)

    def freeze(self, sender: int, request: Freeze) -> Holding:
        """Take no more from the dead, and say what is here.

        Raises `ProtocolError` if the sender cannot be the coordinator, and `RejectedError` if there is a newer one.
        """
        round = self._round
        self._check_order(sender, request.term, request.dead)
        if request.term <= self._promised:
            raise RejectedError(f"a repair of term {self._promised} is under way", code="term")
        self._promised = request.term
        self._give_up(request.dead, request.revoked)
        added = tuple(a for key, a in round.assignments.items() if key[0] > 0)
        return Holding(round.bitmap(), round.term, added)

    def apply(self, sender: int, repair: Repair) -> None:
        """Take on what a coordinator decided. Raises `ProtocolError` if the sender cannot be the coordinator."""
        round = self._round
        if sender != round.me:
            self._check_order(sender, repair.term, repair.dead)
        if repair.term <= round.term or repair.term < self._promised:
            return
        round.term = self._promised = repair.term
        self._give_up(repair.dead, repair.revoked)
        fresh = [a for a in repair.assignments if a.key not in round.assignments and _is_valid(round, a, repair.term)]
        round.assignments.update({a.key: a for a in fresh})
        self._begin(fresh)
        for holder, chunks in repair.holders:
            if holder != round.me and holder < len(round.members) and _exist(round, chunks):
                round.spawn(fetch(round, holder, chunks), frozenset({holder}))

    def _give_up(self, dead: Iterable[int], revoked: Iterable[int]) -> None:
        known = range(len(self._round.members))
        self._round.settled.update(set(dead).intersection(known), set(revoked).intersection(known))
        for member in dead:
            if member in known:
                self._round.bury(member, "given up by the coordinator")
        for member in revoked:
            if member in known:
                self._round.revoke(member)

    def _check_order(self, sender: int, term: int, dead: Iterable[int]) -> None:
        """The coordinator is the first of the living in the order of the plan, and counts its repairs one by one."""
        round = self._round
        known = max(round.term, self._promised)
        if sender > round.me or round.me in dead or term > known + TERMS_AHEAD:
            raise ProtocolError("it is not for it to repair this round", peer=round.members[sender], phase="repair")

    # ---- the coordinator

    async def coordinate(self, sender: int, request: Lost) -> None:
        """Find out what is left of the work of lost and slow members and spread it among the others."""
        async with self._lock:
            round = self._round
            if sender in round.dead:
                raise RejectedError("it was given up in this round", code="given_up")
            known = set(range(len(round.members)))
            accused = (set(request.lost) & known) - {round.me} - self._repaired
            lost = await self._gone(accused)
            revoked = self._to_revoke(sender, accused - lost, set(request.slow) & known)
            if round.aborted or not (lost or revoked):
                return
            for member in sorted(lost):
                round.bury(member, "it does not answer the coordinator either")
            if round.alive()[0] != round.me:  # who asks here hears nothing from the coordinator: `run` reports to it
                return
            for member in sorted(revoked):
                round.revoke(member)
            await self._repair()
            self._repaired |= lost
            round.settled |= lost | revoked

    async def _repair(self) -> None:
        round = self._round
        while not round.aborted:
            term = max(round.term, self._promised) + 1
            if term > MAX_TERM:
                round.abort("it took too many repairs")
                return
            given_up = round.dead.keys() | round.revoked  # if more are lost meanwhile, all have to freeze for these too
            holdings = await self._freeze_everyone(term)
            if not has_quorum({round.members[i] for i in holdings}, round.members):
                round.abort("too few members of the group are left")
            elif set(holdings) == set(round.alive()) and given_up == round.dead.keys() | round.revoked:
                await self._announce(self._decide(term, holdings), holdings)
                return

    def _to_revoke(self, sender: int, answering: set[int], slow: set[int]) -> set[int]:
        """Whose work others must take over although they live: between root and relay there is no way around a broken
        link, and those that are slow in the eyes of this member, or of more than half, hold all up.
        """
        round = self._round
        revoked = {member for member in slow if self._slowness.agrees(sender, member)}
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
        round = self._round

        async def answers(member: int) -> bool:
            try:
                async with asyncio.timeout(ALIVE_PATIENCE_S):
                    await round.node.call(round.members[member], ALIVE, Done(), Done)
            except (RemoteError, TimeoutError):
                return False
            return True

        asked = sorted(lost - set(round.dead))
        answers_of = await asyncio.gather(*(answers(member) for member in asked))
        return lost - {member for member, answer in zip(asked, answers_of, strict=True) if answer}

    async def _freeze_everyone(self, term: int) -> dict[int, Holding]:
        round = self._round
        request = Freeze(round.plan.round_id, term, tuple(sorted(round.dead)), tuple(sorted(round.revoked)))
        added = tuple(a for key, a in round.assignments.items() if key[0] > 0)
        holdings = {round.me: Holding(round.bitmap(), round.term, added)}
        self._promised = term

        async def ask(member: int) -> None:
            try:
                holdings[member] = await round.node.call(round.members[member], FREEZE, request, Holding)
            except RemoteError as error:
                if isinstance(error, RejectedError) and error.code == "term":
                    await asyncio.sleep(0.05)  # another coordinator is at work; ask again with a higher term
                    return
                round.bury(member, error.message)

        await asyncio.gather(*(ask(i) for i in round.alive() if i != round.me))
        return holdings

    def _decide(self, term: int, holdings: dict[int, Holding]) -> Repair:
        """Who fetches what from whom, and who reduces what no living member has or is about to have."""
        round = self._round
        known = dict(round.assignments)
        for holding in holdings.values():
            for assignment in holding.assignments:
                if _is_valid(round, assignment, term - 1):
                    known.setdefault(assignment.key, assignment)
        maps = {i: unpack_bitmap(h.bitmap, len(round.chunks)) for i, h in sorted(holdings.items())}
        responsible = _responsible(known)
        held: dict[int, list[int]] = {}
        orphans: list[int] = []
        for index in range(len(round.chunks)):
            hops = round.routes.hops(responsible[index])
            if hops <= holdings.keys() and hops.isdisjoint(round.revoked):
                continue
            holders_of = [i for i, have in maps.items() if have[index]]
            if not holders_of:
                orphans.append(index)
            else:
                held.setdefault(min(holders_of, key=lambda i: (i in round.revoked, i)), []).append(index)
        aggregators = [i for i in sorted(holdings) if round.plan.members[i].aggregates]
        workers = [i for i in aggregators if i not in round.revoked] or aggregators or [round.me]
        shares = [(worker, tuple(orphans[k :: len(workers)])) for k, worker in enumerate(workers)]
        fresh = [Assignment((term, k), worker, share) for k, (worker, share) in enumerate(shares) if share]
        added = [known[key] for key in sorted(known) if key[0] > 0] + fresh
        holders = tuple((holder, tuple(chunks)) for holder, chunks in sorted(held.items()))
        for holder, chunks in holders:
            if holder in round.revoked and holder != round.me:  # it is slow: once is enough, the others ask here
                round.spawn(fetch(round, holder, chunks), frozenset({holder}))
        holders = tuple((round.me if holder in round.revoked else holder, chunks) for holder, chunks in holders)
        dead, revoked = tuple(sorted(round.dead)), tuple(sorted(round.revoked))
        return Repair(round.plan.round_id, term, dead, revoked, tuple(added), holders)

    async def _announce(self, repair: Repair, holdings: dict[int, Holding]) -> None:
        round = self._round
        round.node.events.emit("round.repaired", step=round.plan.step, term=repair.term, lost=len(repair.dead))

        async def tell(member: int) -> None:
            try:
                await round.node.call(round.members[member], REPAIR, repair, Done)
            except RemoteError as error:
                round.bury(member, error.message)

        self.apply(round.me, repair)
        await asyncio.gather(*(tell(i) for i in holdings if i != round.me))


def _responsible(assignments: Mapping[tuple[int, int], Assignment]) -> dict[int, Assignment]:
    """For each chunk the assignment that is to bring it: later terms overrule earlier ones."""
    return {index: assignments[key] for key in sorted(assignments) for index in assignments[key].chunks}


def _is_valid(round: Round, assignment: Assignment, last_term: int) -> bool:
    """Whether an assignment can come out of a repair of at most that term: the plan's own ones are never replaced."""
    worker = assignment.aggregator
    if not 0 < assignment.key[0] <= last_term or worker >= len(round.members) or assignment.relays:
        return False
    return (worker == round.me or round.plan.members[worker].aggregates) and _exist(round, assignment.chunks)


def _exist(round: Round, chunks: tuple[int, ...]) -> bool:
    return len(set(chunks)) == len(chunks) and all(index < len(round.chunks) for index in chunks)
