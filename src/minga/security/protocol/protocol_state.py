"""All that a member has to know to go on at a step, besides the model.

Each commitment holds its digest, so most members confirm it; and at the beginning of each step every member signs it
(phase STANDING) for those who come later. Whatever enters a decision of the members is in here: somebody who was not
there decides like those who were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import msgspec
from blake3 import blake3

from minga.network.interface import PeerId
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.members import (
    MAX_BANS,
    MAX_CHARGES,
    MAX_FORMER,
    Ban,
    Candidate,
    Members,
    PendingAccusations,
    charges,
)
from minga.security.protocol.statements import MAX_CANDIDATES, MAX_MEMBERS, Accusation, Digest, Peer, Peers, Step
from minga.security.randomness.coin import derive
from minga.security.verification.norm_bound import REMEMBERED_STEPS, DispersionHistory, StepBound

_LABEL = b"minga secure standing 1"

Norm = Annotated[float, msgspec.Meta(ge=0.0, le=1e300)]
Stop = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Norms = Annotated[tuple[Norm, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
Stops = Annotated[tuple[Stop, ...], msgspec.Meta(max_length=MAX_MEMBERS)]


class ProtocolState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Where the members are before `step`: who they are, the coin of the last step, and what they remember.

    `voters` were the members of the last attempt of the last step by rank, `aggregates` the digests of what they handed
    out (None where a part has no elements); `distances` and `lengths` are those of `DispersionHistory` and `StepBound`.
    """

    step: Step
    members: Peers
    coin: Digest
    candidates: Annotated[tuple[Candidate, ...], msgspec.Meta(max_length=MAX_CANDIDATES)] = ()
    bans: Annotated[tuple[Ban, ...], msgspec.Meta(max_length=MAX_BANS)] = ()
    former: Annotated[tuple[tuple[Peer, Step], ...], msgspec.Meta(max_length=MAX_FORMER)] = ()
    charges: Annotated[tuple[PendingAccusations, ...], msgspec.Meta(max_length=MAX_CHARGES)] = ()
    voters: Peers = ()
    aggregates: Annotated[tuple[Digest | None, ...], msgspec.Meta(max_length=MAX_MEMBERS)] = ()
    distances: Annotated[tuple[tuple[Stops, Norms], ...], msgspec.Meta(max_length=REMEMBERED_STEPS)] = ()
    lengths: Annotated[tuple[Norm, ...], msgspec.Meta(max_length=REMEMBERED_STEPS)] = ()

    @classmethod
    def first(cls, run_id: str, founders: Iterable[PeerId]) -> ProtocolState:
        """That of a run which begins."""
        return cls(0, tuple(sorted(set(founders))), derive(bytes(32), "first coin", run_id))

    @property
    def digest(self) -> bytes:
        """32 bytes that stand for all of it."""
        return blake3(_LABEL + msgspec.msgpack.encode(self)).digest()

    @property
    def membership(self) -> Members:
        """The list of members at this step."""
        former = {PeerId(peer): step for peer, step in self.former}
        return Members(map(PeerId, self.members), self.candidates, self.bans, former)

    def check(self) -> None:
        """Raise `ValueError` unless its parts belong together."""
        if not self.members or list(self.members) != sorted(set(self.members)):
            raise ValueError("members must be given once each, in the order of their ids")
        if {candidate.peer for candidate in self.candidates} & {*self.members}:
            raise ValueError("a peer is either a member or a candidate")
        if len(self.voters) != len(self.aggregates):
            raise ValueError("each member of the last step has an aggregate or none")
        history = DispersionHistory()
        for stops, norms in self.distances:
            history.add(stops, norms)


class StepProgress:
    """What changes from step to step at a member; begins with a `standing`, and gives the present one."""

    def __init__(self, standing: ProtocolState) -> None:
        self.take(standing)

    def take(self, standing: ProtocolState) -> None:
        """Stand there from now on."""
        self.step, self.coin, self.membership = standing.step, standing.coin, standing.membership
        self.charges, self.aggregates = standing.charges, standing.aggregates
        self.voters = tuple(map(PeerId, standing.voters))
        self.bound, self.history = StepBound(standing.lengths), DispersionHistory()
        for stops, norms in standing.distances:
            self.history.add(stops, norms)

    def take_outcome(self, record: AttemptRecord, counts: Callable[[PeerId, Accusation], bool]) -> None:
        """Go on after a step that this member took; the membership, the bound and the history have done so already.

        `counts` says which of the accusations of that step are looked into.
        """
        self.charges = charges(record, self.voters, counts)
        self.step, self.coin, self.voters = self.step + 1, record.randomness, record.terms.members
        self.aggregates = tuple(record.store.value_digests.get(part) for part in range(len(self.voters)))

    @property
    def standing(self) -> ProtocolState:
        """As it is now; changes within a step whenever a member has to leave."""
        membership = self.membership
        return ProtocolState(
            self.step,
            membership.members,
            self.coin,
            tuple(sorted(membership.candidates.values(), key=lambda candidate: candidate.peer)),
            tuple(ban for _, ban in sorted(membership.bans.items())),
            tuple(sorted(membership.former.items())),
            self.charges,
            self.voters,
            self.aggregates,
            self.history.steps,
            self.bound.lengths,
        )
