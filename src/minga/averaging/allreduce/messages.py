"""What the members of a round say to each other to reduce a vector, to repair the round and to commit its result.

The plan, with which a round begins, is one of `minga.averaging.messages`; bounds are checked as there.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from minga.averaging.messages import (
    MAX_CHUNKS,
    MAX_MEMBERS,
    MAX_PARTS,
    MAX_SITES,
    MAX_TERM,
    Index,
    Members,
    Offset,
    RoundId,
    Samples,
)

PART, FETCH = "round.part", "round.fetch"
LOST, ALIVE, FREEZE, REPAIR = "round.lost", "round.alive", "round.freeze", "round.repair"
HOLD = "round.hold"

AssignmentKey = tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_TERM)], Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARTS)]]


class PartHello(msgspec.Struct, frozen=True):
    """Opens the stream between a member and the root or relay that it sends an assignment to: which assignment of
    which round, and the sender's weight (samples behind its vector; 0 sends nothing and only receives).

    A relay has no weight here: it tells with each chunk how many samples of its site are behind that.
    """

    round_id: RoundId
    assignment: AssignmentKey
    weight: Samples | None


class ChunkWeight(msgspec.Struct, frozen=True, array_like=True):
    """Relay to root, before each chunk: the samples behind its mean; with 0 there is no chunk to follow.

    Before the last chunk it says of which members of its site they are: `behind` has pairs of member and samples.
    """

    weight: Samples
    behind: Annotated[tuple[tuple[Index, Samples], ...], msgspec.Meta(max_length=MAX_MEMBERS)] = ()


class CountedMembers(msgspec.Struct, frozen=True, array_like=True):
    """Before each chunk of a mean, whoever sends it, in rounds whose uploads leave something out: the members whose
    chunks are in it, one bit for each member of the plan, lowest bit first. Empty is not known to who holds it.
    """

    members: Annotated[bytes, msgspec.Meta(max_length=-(-MAX_MEMBERS // 8))]


class Lost(msgspec.Struct, frozen=True):
    """Member to coordinator: nothing more comes from the `lost` (indices into the plan), and others should take over
    what the `slow` have left. `by`: it was member `by` who said so, and who does not reach the coordinator.
    """

    round_id: RoundId
    lost: Members
    slow: Members = ()
    by: Index | None = None


class Alive(msgspec.Struct, frozen=True):
    """Coordinator to member: are you still in this round? Who was restarted meanwhile lives, but is not."""

    round_id: RoundId


class RoundState(msgspec.Struct, frozen=True):
    """Member to coordinator: the term whose result it holds and the one that it knows to be committed, None if none."""

    held: Annotated[int, msgspec.Meta(ge=0, le=MAX_TERM)] | None = None
    committed: Annotated[int, msgspec.Meta(ge=0, le=MAX_TERM)] | None = None


class Assignment(msgspec.Struct, frozen=True):
    """Chunks (global numbers) of which member `aggregator` makes the result; `key` = (repair term, position) is unique
    in it. `relays` has a member for each of the plan's sites, as those of a part; none if all members send to the
    aggregator. In a repair it is the aggregator where a site has no relay left.
    """

    key: AssignmentKey
    aggregator: Index
    chunks: Annotated[tuple[Offset, ...], msgspec.Meta(max_length=MAX_CHUNKS)]
    relays: Annotated[tuple[Index, ...], msgspec.Meta(max_length=MAX_SITES)] = ()


class Freeze(msgspec.Struct, frozen=True):
    """Coordinator to member: take no more from `dead`, nor what went through the `revoked`; tell me what you hold."""

    round_id: RoundId
    term: Annotated[int, msgspec.Meta(ge=1, le=MAX_TERM)]
    dead: Members
    revoked: Members


class ChunkMap(msgspec.Struct, frozen=True):
    """Member to coordinator: bitmap of the chunks whose reduced values it has, the repairs it knows of, and the
    members that repairs went on without: what these hold may be of an assignment that was replaced.
    """

    bitmap: Annotated[bytes, msgspec.Meta(max_length=MAX_CHUNKS // 8)]
    term: Annotated[int, msgspec.Meta(ge=0, le=MAX_TERM)]
    assignments: tuple[Assignment, ...]
    dead: Members = ()


class Repair(msgspec.Struct, frozen=True):
    """Coordinator to member: all assignments added so far, and who holds which chunk that need not be reduced again."""

    round_id: RoundId
    term: Annotated[int, msgspec.Meta(ge=1, le=MAX_TERM)]
    dead: Members
    revoked: Members
    assignments: tuple[Assignment, ...]
    holders: Annotated[tuple[tuple[Index, tuple[Offset, ...]], ...], msgspec.Meta(max_length=MAX_MEMBERS)]


class FetchChunks(msgspec.Struct, frozen=True):
    """Ask a member for reduced chunks; it answers each as soon as it has it: as its codec has it if that is shorter and
    gives the same values bit for bit, else as float32.
    """

    round_id: RoundId
    chunks: Annotated[tuple[Offset, ...], msgspec.Meta(max_length=MAX_CHUNKS)]


class Hold(msgspec.Struct, frozen=True):
    """Member to coordinator: the `members` have the whole reduced vector, as it is in term `term`."""

    round_id: RoundId
    term: Annotated[int, msgspec.Meta(ge=0, le=MAX_TERM)]
    members: Members


class Committed(msgspec.Struct, frozen=True):
    """Coordinator to member: a quorum held the result of term `term`, so it counts; apply it."""

    term: Annotated[int, msgspec.Meta(ge=0, le=MAX_TERM)]


class Done(msgspec.Struct, frozen=True):
    """An empty, friendly answer."""
