"""Agreement on who said what in a phase.

Theory of operation. A phase is over for a member when it has everybody's statements. If a statement is missing after a
while, the member first asks all others for it; so an author that tells only some is heard by all. If nobody has it, the
member votes: it signs whom it heard, once and for all. Who has heard everybody answers each vote with an own one; who
still waits votes as soon as more than half of the members have. So hasty votes of hostile members cut nobody's waiting
short, which would make all vote for what little they heard by then. Nobody goes on without most others, however long
that takes: where a cut leaves no majority all wait, and go on together when it heals. A statement counts if more than
half of all members heard it, and is then fetched from them; all others do not count. While more than half of the
members are honest and messages between them arrive within the patience, they all come to the same decision, except in
the moment in which a late statement reaches half of them: those who then decide otherwise find that out by the digests
in the next phase, where the majority goes on.

A member that is proven to have said two different things spoils the attempt: a member that learns of it is silent, so
that nobody else can complete a phase, and everybody waits long enough for the proof to arrive. All begin another
attempt, in whose commitments they name whom they can prove guilty. Who has completed the last phase is not disturbed
any more; for what becomes known then there is the next step. So who learns of it in a phase first asks the others for
what is missing: else those who gave up the last phase and those who completed it might be too few to go on, both.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from minga.core.errors import ProtocolError, RemoteError
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.security.messaging.spread import StatementGossip
from minga.security.parts.transfer_limits import WaitPolicy, wait_for_all
from minga.security.protocol.statements import Heard, Phase, Slot, Statement, read


class OutvotedError(RemoteError):
    """Most others decided otherwise than this peer could; it needs their state."""


class DivergedError(OutvotedError):
    """After the same step most others have another state than this peer."""


class ContradictionError(RemoteError):
    """A member said two different things; the attempt is void."""


@loop_bound
class ReliableBroadcast:
    """Collects the statements of one attempt among its `members` (by rank)."""

    def __init__(self, gossip: StatementGossip, members: tuple[PeerId, ...], me: PeerId, patience: WaitPolicy) -> None:
        self.patience = patience
        self._gossip, self._members, self._me = gossip, members, me
        self.left: frozenset[PeerId] = frozenset()
        """Members that said goodbye instead of committing themselves: they have no vote, and are not counted."""
        self._complete: dict[Slot, Slot] = {}
        """The phases that this member is done with, by the slots of the votes on them."""

    async def collect(
        self, slot: Slot, is_sound: Callable[[Statement], bool], excused: AbstractSet[PeerId] = frozenset()
    ) -> dict[PeerId, Statement]:
        """The statements that count in a slot, by author; a member that is not there was heard by too few, or is
        `excused`.

        What is not sound counts as not said. Raises `OutvotedError` if most others went on without this member, or what
        most heard cannot be had, and `ContradictionError` if a member is missing that may know of equivocation.
        """
        slots, vote_slot = self._gossip.slots, slot.vote
        await self._wait(
            lambda: [] if self._is_voted(slot) or self._is_spoiled(slot) else self._missing(slot, is_sound, excused),
            excused,
            lambda missing, _: self._ask(slot, missing),
        )
        if self._is_spoiled(slot) and (missing := self._missing(slot, is_sound, excused)):
            await self._gossip.pull(slot, missing, self._members, self.patience.leeway_s)
        if self._is_spoiled(slot) and self._missing(slot, is_sound, excused):
            raise ContradictionError("it said two different things", peer=self.equivocators[0], round=slot.step)
        if slots.of(vote_slot) or self._missing(slot, is_sound, excused):
            said = await self._vote(slot, is_sound, excused)  # others may have decided before the last statement came
        else:
            self._complete[vote_slot] = slot
            said = {peer: slots.of(slot)[peer] for peer in self._members if peer not in excused}
        if 2 * len(said) <= len(self.voters):
            raise OutvotedError("most others went on without this peer: no majority was heard", round=slot.step)
        return said

    @property
    def voters(self) -> list[PeerId]:
        """Members that did not leave."""
        return [peer for peer in self._members if peer not in self.left]

    @property
    def equivocators(self) -> tuple[PeerId, ...]:
        """Members who are proven to have said two different things."""
        return tuple(peer for peer in self._members if peer in self._gossip.proofs)

    def _is_spoiled(self, slot: Slot) -> bool:
        """Commitments are heard to their end, for that is where proofs are named."""
        return slot.phase is not Phase.COMMIT and bool(self.equivocators)

    def _is_voted(self, slot: Slot) -> bool:
        """Whether most members voted, so that an honest one has waited as long as is due; fewer may be in a hurry."""
        votes, voters = self._gossip.slots.of(slot.vote), self.voters
        return 2 * sum(peer in votes for peer in voters) > len(voters)

    def answer(self, vote: Statement) -> None:
        """A member voted: vote too, if this member is done with that phase."""
        done = self._complete.get(vote.slot)
        if done is not None and self._me not in self._gossip.slots.of(vote.slot):
            self._tell_vote(done)

    async def _ask(self, slot: Slot, missing: Sequence[PeerId]) -> None:
        """Ask all for what is missing, and each of them for votes before: who missed the one may have missed the other,
        and would take for heard by all what others have voted on as not heard.
        """

        async def ask(peer: PeerId) -> None:
            await self._gossip.pull(slot.vote, self._members, [peer])
            await self._gossip.pull(slot, missing, [peer])

        await asyncio.gather(*map(ask, self._members))

    def _missing(self, slot: Slot, is_sound: Callable[[Statement], bool], excused: AbstractSet[PeerId]) -> list[PeerId]:
        heard = self._gossip.slots.of(slot)
        for author in [author for author, statement in heard.items() if not is_sound(statement)]:
            self._gossip.slots.drop(slot, author)  # others may have got something better
        return [peer for peer in self._members if peer not in heard and peer not in excused]

    def _tell_vote(self, slot: Slot) -> None:
        heard = self._gossip.slots.of(slot)
        statements = tuple((rank, heard[peer].digest) for rank, peer in enumerate(self._members) if peer in heard)
        self._gossip.say(slot.vote, Heard(statements), self._members)

    async def _vote(
        self, slot: Slot, is_sound: Callable[[Statement], bool], excused: AbstractSet[PeerId]
    ) -> dict[PeerId, Statement]:
        votes, vote_slot, tally = self._gossip.slots.of, slot.vote, VoteTally(self._members, self.voters)
        self._missing(slot, is_sound, excused)
        if self._me not in votes(vote_slot):
            self._tell_vote(slot)
        self._complete[vote_slot] = slot  # its vote is given, whatever comes

        def undecided() -> list[PeerId]:
            """Whose votes may still matter: nobody's, once most heard everybody."""
            tally.count(votes(vote_slot))
            if tally.heard.keys() | excused >= set(self._members):
                return []
            return [peer for peer in self._members if peer not in votes(vote_slot) and peer not in excused]

        await self._wait(undecided, excused, lambda silent, _: self._gossip.pull(vote_slot, silent, self._members))
        return await self._fetch(slot, {peer: digest for peer, digest in tally.heard.items() if peer not in excused})

    async def _wait(
        self,
        missing: Callable[[], Sequence[PeerId]],
        excused: AbstractSet[PeerId],
        ask: Callable[[Sequence[PeerId], float], Awaitable[None]],
    ) -> None:
        """For most members without end, for the last ones of them not so long; nobody waits for those `excused`, who
        make no majority either. All who left are among these.
        """
        total = len(self._members) + len(self.left) - 2 * len(excused)  # most of the voters have to come
        await wait_for_all(missing, total, self._gossip.slots.changed, ask, self.patience, gives_up=False)

    async def _fetch(self, slot: Slot, right: Mapping[PeerId, bytes]) -> dict[PeerId, Statement]:
        """What most heard, as far as this member has it or can get it."""
        said = self._gossip.slots.of(slot)
        if lacking := [peer for peer, digest in right.items() if peer not in said or said[peer].digest != digest]:
            await self._gossip.pull(slot, lacking, self._members, self.patience.leeway_s)
        said = self._gossip.slots.of(slot)
        if any(peer not in said for peer in right):
            raise OutvotedError("most heard a member that no member lets this peer hear", round=slot.step)
        return {peer: said[peer] for peer in self._members if peer in right}


class VoteTally:
    """Counts votes on `members` by rank, the first one of each of the `voters`."""

    def __init__(self, members: Sequence[PeerId], voters: Sequence[PeerId]) -> None:
        self.heard: dict[PeerId, bytes] = {}
        """Whom more than half of the voters heard, and the digest of what; more votes add to it and change nothing."""
        self._members, self._voters, self._counts = members, voters, Counter[tuple[int, bytes]]()
        self._counted = set[PeerId]()

    def count(self, votes: Mapping[PeerId, Statement]) -> None:
        """Add those that were not there before."""
        new = [voter for voter in self._voters if voter in votes and voter not in self._counted]
        self._counted.update(new)
        for entry in (entry for voter in new for entry in _heard(votes[voter], len(self._members))):
            self._counts[entry] += 1
            if 2 * self._counts[entry] > len(self._voters):
                self.heard[self._members[entry[0]]] = entry[1]


def _heard(vote: Statement, count: int) -> tuple[tuple[int, bytes], ...]:
    """Whom a voter heard, each once; nobody if the vote is malformed."""
    try:
        statements = read(vote, Heard).statements
    except ProtocolError:
        return ()
    ranks = {rank for rank, _ in statements if rank < count}
    return statements if len(ranks) == len(statements) else ()
