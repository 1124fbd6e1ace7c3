"""One attempt at one step: from everybody's gradient to an aggregate that nobody has to take on trust.

    COMMIT   where I stand, the Merkle root of my gradient's parts     barrier
             parts travel to their aggregators, which clip them to a mean
    RESULT   digest of my aggregate, commitment to a secret            barrier
             aggregates travel, and at the same time
    REVEAL   my secret: all of them are the coin                       barrier
    CLAIMS   projections of my clipped differences, and their norms    barrier
    CONFIRM  all heard the same; which parts in doubt I cannot get     barrier, checks
    CHECK    only if there is a doubt: all heard the same of that      barrier, parts in doubt are computed again

The order is what makes lies expensive: gradients are fixed before anybody sees another's, aggregates before anybody
knows in which directions they will be looked at. Whatever goes wrong ends the attempt with a `AttemptFailed`, which
says who goes and why; all honest members come to the same one, ban, and try again with those who are left and the same
gradients. For all to come to the same one, what follows from the words of a phase is done only after the next phase, in
which all say what they heard: a member that tells some another thing than others cannot part them. Only a member named
by most as having said two different things goes at once, since as long as it stays nobody says anything but
commitments. So nothing is ever applied that did not pass the checks of all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec
import torch

from minga.core.aio import Signal
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.security.accountability.rulings import (
    Ruling,
    decide,
    open_complaint,
    place_of_most,
    who_stands_elsewhere,
)
from minga.security.messaging.spread import Deliveries, PartCollector, StatementGossip, meanwhile
from minga.security.messaging.voting import ContradictionError, DivergedError, OutvotedError, ReliableBroadcast
from minga.security.parts.equal_parts import digest_of, encoded, value_to_bytes
from minga.security.parts.part_store import PartStore
from minga.security.protocol.attempt_record import AttemptRecord, Terms, who_leaves
from minga.security.protocol.behaviour import KEPT_STEPS, Behaviour
from minga.security.protocol.protocol_state import StepProgress
from minga.security.protocol.statements import (
    Body,
    Claims,
    Commit,
    Confirm,
    Phase,
    Result,
    Revealed,
    Slot,
    Statement,
    phase_digest,
)
from minga.security.protocol.step_math import StepMath
from minga.security.randomness.coin import Reveal
from minga.security.robust.rows import NonFiniteRowsError
from minga.security.verification.claims import PartClaim

# ---- The history of attempts: the one that is under way, and those that passed in the last steps.
#
# Others may be one attempt ahead of this member, ask it for bytes of any of these attempts, and still vote on phases
# that it is done with.


EXPECT_S = 5.0
"""Seconds that a member that is ahead waits until this member gets to its attempt."""


class AttemptHistory:
    """Of one member; `progress` says at which step it is."""

    def __init__(self, progress: StepProgress) -> None:
        self.passed: dict[int, AttemptRecord] = {}
        """The last attempts of past steps."""
        self._progress = progress
        self._current: AttemptRecord | None = None
        self._broadcasts: deque[ReliableBroadcast] = deque(maxlen=KEPT_STEPS)
        """Of the last attempts: others may still vote on their phases."""
        self._began = Signal()

    def begin(self, record: AttemptRecord, broadcast: ReliableBroadcast) -> None:
        """An attempt is under way; the one before it passed, or is over."""
        self._close_failed()
        self._current = record
        self._broadcasts.append(broadcast)
        self._began.fire()

    def under_way(self, step: int) -> Terms | None:
        """The last attempt at a step that this member began, if that was its last attempt of all."""
        current = self._current
        return current.terms if current is not None and current.terms.step == step else None

    def forget_before(self, step: int) -> None:
        """Drop those that passed in earlier steps."""
        for old in [old for old in self.passed if old < step]:
            self.passed.pop(old).store.close()

    def close(self) -> None:
        """All of them are over: this member begins no other one."""
        self._close_failed()
        for record in self.passed.values():
            record.store.close()

    def answer(self, vote: Statement) -> None:
        """A member voted."""
        for broadcast in self._broadcasts:
            broadcast.answer(vote)

    def is_expected(self, slot: Slot) -> bool:
        """Whether to keep what is said in a slot: nobody is more than one attempt ahead, so nobody can make this peer
        keep more than a few statements.
        """
        step = self._progress.step
        if slot.step in self.passed:
            return slot.attempt <= self.passed[slot.step].terms.attempt
        if slot.step == step:
            reached = self.under_way(step)
            return slot.attempt <= (reached.attempt if reached else 0) + 1
        return slot.step == step + 1 and slot.attempt <= 1

    async def find(self, step: int, attempt: int) -> tuple[PartStore, tuple[PeerId, ...]] | None:
        """The store of an attempt, which this member may be about to begin, and its members by rank."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + EXPECT_S
        while True:
            for record in (*self.passed.values(), *([self._current] if self._current else ())):
                if (record.terms.step, record.terms.attempt) == (step, attempt):
                    return record.store, record.terms.members
            left_s = until_s - loop.time()
            if step < self._progress.step or left_s <= 0:
                return None
            await self._began.wait(left_s)

    # ---- inner workings

    def _close_failed(self) -> None:
        current = self._current
        if current is not None and current is not self.passed.get(current.terms.step):
            current.store.close()


# ---- A phase: everybody says one thing, hears what all others say, and compares what was heard.
#
# Theory of operation. In each phase but the first every member also says by what digest it knows the phase before.
# Where these differ, a member told some members another thing than others, in that phase or in the votes on it; both
# of its statements are then fetched, and prove it. An attempt in which that happened is void, see
# `minga.security.messaging.voting`.
#
# So whatever follows from the words of a phase, be it that a member said nothing in it, waits for the end of the next:
# then all know the same (`minga.security.accountability.rulings`). Who was silent in the last phase of all does not
# matter for what is applied; members say in the commitments of the next step of whom they heard nothing, and most
# decide.


class AttemptFailed(Exception):
    """An attempt failed: who has to go, as the transcript in `record` shows, by the numbers of `parts` if there are
    any.
    """

    def __init__(self, record: AttemptRecord, gone: Ruling, parts: Sequence[int] = ()) -> None:
        self.record, self.gone, self.parts = record, gone, tuple(parts)
        super().__init__(f"{len(gone)} members have to go")


@loop_bound
class PhaseExchange:
    """One member's words in one attempt, and what it understands of the others', which it notes in `record`."""

    def __init__(
        self, record: AttemptRecord, gossip: StatementGossip, broadcast: ReliableBroadcast, behaviour: Behaviour
    ) -> None:
        self._record, self._terms = record, record.terms
        self._gossip, self._broadcast, self._behaviour = gossip, broadcast, behaviour
        self._before = Slot(record.terms.step, record.terms.attempt, Phase.COMMIT)
        self.seen = b""
        """The digest of the last phase, as this member knows it."""
        self.excused: set[PeerId] = set()
        """Members that nobody waits for any more, since they have to go when the next phase is over."""

    async def hold(self, phase: Phase, own: Body | None, *, is_last: bool = False) -> None:
        """Say one thing (nothing if `own` is None) and understand what the others say; after the last phase of an
        attempt nobody waits for this member any more.

        What makes no sense counts as nothing. Raises `AttemptFailed` if a member has to go by the words of the phase
        before, and `ContradictionError` if a member said different things to different members.
        """
        slot, members = Slot(self._terms.step, self._terms.attempt, phase), self._terms.members
        for words, receivers in self._behaviour.tells(slot, own, members) if own is not None else ():
            self._gossip.say(slot, words, receivers)
        known: dict[Statement, Body | None] = {}  # what is missing is asked after each statement that comes

        def understood(statement: Statement) -> Body | None:
            if statement not in known:
                known[statement] = self._terms.understood(statement)
            return known[statement]

        heard = await self._broadcast.collect(slot, lambda statement: understood(statement) is not None, self.excused)
        bodies = {peer: body for peer, statement in heard.items() if (body := understood(statement)) is not None}
        said = {peer: heard[peer] for peer in bodies}  # of whom most heard something that counts this peer may not have
        await self._compare(phase, bodies, is_last=is_last)
        self._record.hear(phase, said, bodies)
        if gone := decide(self._record):
            raise AttemptFailed(self._record, gone)
        silent = tuple(peer for peer in members if peer not in said and peer not in self.excused)
        if is_last:
            self._record.unheard = silent
        self.excused.update(silent)
        self._before, self.seen = slot, phase_digest(said.values())

    async def _compare(self, phase: Phase, bodies: Mapping[PeerId, Body], *, is_last: bool) -> None:
        """Where members know another last phase than this one, a member told them and this one different things."""
        others = [peer for peer, body in bodies.items() if not isinstance(body, Commit) and body.seen != self.seen]
        if others:
            slots, limit_s = (self._before, self._before.vote), self._broadcast.patience.leeway_s
            await asyncio.gather(*(self._gossip.pull(slot, self._terms.members, others, limit_s) for slot in slots))
        proofs = [self._gossip.proofs[peer] for peer in self._broadcast.equivocators]
        if is_last:
            proofs = [proof for proof in proofs if others and proof.one.slot in (self._before, self._before.vote)]
        if proofs and phase is not Phase.COMMIT:
            raise ContradictionError("it said two different things", peer=proofs[0].author, round=self._terms.step)
        if 2 * len(others) > len(self._broadcast.voters):
            raise OutvotedError("most members heard something else than this peer", round=self._terms.step)


# ---- One attempt, phase by phase.


class Attempt:
    """This member's part in one attempt; `entropy` gives so many random bytes that nobody else can know."""

    def __init__(
        self,
        record: AttemptRecord,
        gossip: StatementGossip,
        broadcast: ReliableBroadcast,
        deliveries: Deliveries,
        step_math: StepMath,
        behaviour: Behaviour,
        me: PeerId,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._record, self._terms, self._store = record, record.terms, record.store
        self._gossip, self._broadcast, self._deliveries = gossip, broadcast, deliveries
        self._math, self._behaviour = step_math, behaviour
        self._me = self._terms.members.index(me)
        self._exchange = PhaseExchange(record, gossip, broadcast, behaviour)
        self._collector = PartCollector(record, gossip, deliveries, broadcast.patience, self._me)
        self._reveal = Reveal(entropy(32), entropy(32))

    async def run(self, commit: Commit, gradient: torch.Tensor | None) -> AttemptRecord:
        """Take part with a gradient (None as a validator).

        `commit` says where this member stands, and what it accuses whom of and finds of accusations.
        Raises `AttemptFailed`, `ContradictionError`, and `OutvotedError` if most others came to another decision.
        """
        await self._commit(commit, gradient)
        async with self._collector.travelling():
            await self._reduce()
            async with meanwhile(self._collector.values()) as taken:
                await self._toss()
                await taken
        await asyncio.to_thread(self._look_at, list(self._store.values))
        await self._claim()
        await self._confirm()
        return self._record

    # ---- one phase after the other

    async def _commit(self, commit: Commit, gradient: torch.Tensor | None) -> None:
        terms, store, me = self._terms, self._store, self._me
        if gradient is not None:
            parts, tree = await asyncio.to_thread(encoded, terms.division, gradient, store.pool)
            brought = {part: body for part, body in enumerate(parts) if self._behaviour.brings(part)}
            store.put_owners(me, brought, tree)
            self._record.note_sound(me, brought)
            commit = msgspec.structs.replace(commit, root=tree.root)
        commit = msgspec.structs.replace(commit, equivocators=(*commit.equivocators, *self._broadcast.equivocators))
        await self._exchange.hold(Phase.COMMIT, commit)
        self._require_place()
        commits = self._record.commits
        store.roots = {terms.members.index(peer): said.root for peer, said in commits.items() if said.root}
        store.committed.set()

    def _require_place(self) -> None:
        """Nobody waits for members that leave or stand elsewhere than most. Raises `OutvotedError` if this one does, or
        most stand nowhere.
        """
        terms, commits = self._terms, self._record.commits
        right = place_of_most(terms.members, commits)
        if right is None:
            raise OutvotedError("no majority of the members is in the same state", round=terms.step)
        elsewhere = who_stands_elsewhere(terms.members, commits)
        if terms.members[self._me] in elsewhere:
            raise DivergedError("most members are in another state than this peer", round=terms.step)
        self._broadcast.left = who_leaves(commits)
        self._exchange.excused.update(elsewhere | self._broadcast.left)

    async def _reduce(self) -> None:
        """Wait for the parts that this member aggregates, clip them to their mean, and state the result."""
        part, terms = self._me, self._terms
        result = Result(None, 0.0, terms.coin.commitment(terms.members[part], self._reveal), self._exchange.seen)
        if terms.division.numel(part):
            present = [rank for rank in terms.contributors if terms.members[rank] not in self._exchange.excused]
            await self._collector.parts(present)
            rows, mean = await asyncio.to_thread(self._mean, present)
            value, clip = self._behaviour.value(*mean, self._record)
            digest = await asyncio.to_thread(_stated, value, self._store.places[part])
            self._store.value_digests[part] = digest
            silent = tuple(owner for owner in present if owner not in rows)
            result = msgspec.structs.replace(result, value=digest, clip=clip, silent=silent)
        await self._exchange.hold(Phase.RESULT, self._behaviour.result(result))
        results = self._record.results
        self._store.value_digests.update(
            {terms.members.index(peer): result.value for peer, result in results.items() if result.value is not None}
        )
        self._store.stated.set()
        if terms.division.numel(part):
            self._store.put_value(part, self._store.places[part], digest)

    def _mean(self, present: Sequence[int]) -> tuple[Mapping[int, torch.Tensor], tuple[torch.Tensor, float]]:
        """The parts, by owner, that those who are present brought and that mean something, and what all these give.

        Numbers that are none show in the inner products of rows, so all rows are read once less if there are none.
        Raises `OutvotedError` if there is nothing to aggregate.
        """
        rows = self._collector.rows(present, looks_through=False)
        try:
            mean = self._aggregated(rows)
        except NonFiniteRowsError:
            rows = self._collector.rows(present, looks_through=True)
            mean = self._aggregated(rows)
        for owner in rows:
            self._record.note_sound(owner, {self._me: self._store.parts[owner, self._me]})
        return rows, mean

    def _aggregated(self, rows: Mapping[int, torch.Tensor]) -> tuple[torch.Tensor, float]:
        if not rows and self._broadcast.left:  # it validates; the attempt is over once all know who left
            return self._math.aggregate([torch.zeros(self._terms.division.numel(self._me))])
        if not rows:
            raise OutvotedError("nobody brings this peer a part; most others went on", round=self._terms.step)
        return self._math.aggregate([rows[owner] for owner in sorted(rows)])

    async def _toss(self) -> None:
        """Reveal, and hear what others had to reveal; first look for a part that an aggregator could not get."""
        wanted = open_complaint(self._terms.members, self._record.results)
        delivered = wanted if wanted is not None and await self._collector.can_get(*wanted) else None
        own = self._behaviour.reveal(Revealed(self._reveal, self._exchange.seen, delivered))
        await self._exchange.hold(Phase.REVEAL, own)
        self._record.toss()

    def _look_at(self, parts: Sequence[int]) -> None:
        """What this member claims of these parts, and what the others should claim of the one that it aggregated.

        While other parts still come it would take a fifth longer: what comes drives from the cache what this needs.
        """
        record, me = self._record, self._me
        for part in parts:
            record.take_value(part, self._store.values[part])
            if part in record.values:
                self._math.true_claims(record, part, self._terms.contributors if part == me else (me,))

    async def _claim(self) -> None:
        terms, record = self._terms, self._record
        missing = tuple(part for part in terms.division.parts if part not in record.values)
        claims: tuple[PartClaim | None, ...] = ()
        if self._me in terms.contributors:
            claims = tuple(record.true_claims.get((self._me, part)) for part in range(len(terms.members)))
        said = self._behaviour.claims(Claims(claims, self._exchange.seen, missing), record)
        await self._exchange.hold(Phase.CLAIMS, said)

    async def _confirm(self) -> None:
        """Make sure that all have the same claims, and what is needed to compute again what they raise a doubt about:
        then all come to the same end.
        """
        exchange = self._exchange
        doubtful = await self._doubtful()
        wanted = [(part, owner) for part in doubtful for owner in self._terms.contributors]
        lacking = await self._collector.lacking(wanted)
        await exchange.hold(Phase.CONFIRM, Confirm.of(exchange.seen, lacking), is_last=not doubtful)
        if doubtful:
            await exchange.hold(Phase.CHECK, Confirm(exchange.seen), is_last=True)
            await self._compute_again(doubtful, lacking)

    async def _doubtful(self) -> list[int]:
        """The parts that have to be computed again; none if the attempt fails anyway."""
        record, is_heard = self._record, not self._exchange.excused
        is_complete = len(record.values) == len(self._terms.division.parts)
        if not is_heard or not is_complete or any(said.missing for said in record.claims.values()):
            return []
        return await asyncio.to_thread(self._math.doubtful, record)

    async def _compute_again(self, doubtful: Sequence[int], lacking: Sequence[tuple[int, int]]) -> None:
        """The public check: at least half of the members have all bytes, so an honest one has, and hands them out."""
        if lacking and await self._collector.lacking(lacking):
            raise OutvotedError("most others have a part that this peer cannot get", round=self._terms.step)
        gone, parts = Ruling(), []
        for part in doubtful:
            found = await asyncio.to_thread(self._math.recheck, self._record, part)
            if found.keys() - gone.keys():
                parts.append(part)
            gone = {**found, **gone}
        if gone:
            raise AttemptFailed(self._record, gone, parts)


def _stated(value: torch.Tensor, place: memoryview) -> bytes:
    """The digest of an aggregate that goes to its place."""
    value_to_bytes(value, place)
    return digest_of(place)
