"""What peers say to each other to form a group and to reduce a vector.

Every number that arrives is bounded by its type; whatever relates two messages (a part that overlaps another, a
member that is listed twice) is checked where the message is used.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from minga.network._interface import Address, PeerId

MAX_MEMBERS = 4096
MAX_SAMPLES = 1 << 40
MAX_CHUNKS = 1 << 17
MAX_TERM = 1000

Step = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
Samples = Annotated[int, msgspec.Meta(ge=0, le=MAX_SAMPLES)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
Rate = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=MAX_MEMBERS)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
RoundId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
Fingerprint = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
Peer = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far one peer is within the step.

    `samples` accumulated so far; `rate` in samples per second; the micro-batch under way has `micro_batch` samples
    (0 when none is), began `busy_s` seconds ago and takes `micro_batch_s` seconds as a rule. `parked`: this peer
    stopped at a boundary because the group is closing.
    """

    samples: Samples = 0
    rate: Rate = 0.0
    micro_batch: Samples = 0
    busy_s: Seconds = 0.0
    micro_batch_s: Seconds = 0.0
    parked: bool = False


class Join(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A peer asks to be in the group of `step`.

    `layout` is the fingerprint of its vector, `bandwidth` its declared rate in bytes per second (None: unknown),
    `suspects` the peers before this leader in the ranking from which it hears nothing, `seats` how many members have
    joined the sender itself (two leaders of one step settle by this who goes on), -1 for a newcomer that looks around,
    `previous` the fingerprint of the reduced vector that led to `step`, empty if its state came in another way.
    """

    step: Step
    layout: Fingerprint
    address: Address
    aggregates: bool
    bandwidth: Rate | None
    report: Report
    suspects: Annotated[tuple[Peer, ...], msgspec.Meta(max_length=64)] = ()
    seats: Annotated[int, msgspec.Meta(ge=-1, lt=MAX_MEMBERS)] = 0
    previous: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")] = ""


class Update(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Member to leader: a newer report."""

    report: Report


class Park(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="park"):
    """Leader to member: the group closes; stop at the end of the current micro-batch and report."""


class Resume(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="resume"):
    """Leader to member: samples were lost on the way, so the group stays open; go on accumulating."""


class Redirect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="redirect"):
    """Leader to member: `leader` leads this step, not I."""

    leader: Address


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One member of a closed group: how to reach it, and whether it can aggregate for all others."""

    address: Address
    aggregates: bool

    @property
    def peer_id(self) -> PeerId:
        """The member's id."""
        return self.address.peer_id


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="plan"):
    """Who reduces what in one round.

    `members` starts with the leader, the others follow in the order in which they take over from it. Member i reduces
    elements `[borders[i], borders[i + 1])` of the vector, in chunks of about `chunk_bytes` encoded bytes.
    """

    round_id: RoundId
    step: Step
    members: Annotated[tuple[Member, ...], msgspec.Meta(min_length=1, max_length=MAX_MEMBERS)]
    borders: Annotated[tuple[Offset, ...], msgspec.Meta(min_length=2, max_length=MAX_MEMBERS + 1)]
    chunk_bytes: Annotated[int, msgspec.Meta(ge=1024, le=1 << 24)]


class SignedPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="signed_plan"):
    """Leader to member: the group is closed. `plan` is the msgpack of a `Plan`, `signature` the leader's."""

    plan: Annotated[bytes, msgspec.Meta(max_length=1 << 20)]
    signature: Annotated[bytes, msgspec.Meta(max_length=64)]


FromLeader = Park | Resume | Redirect | SignedPlan


class PartHello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Opens the stream between a member and an aggregator: which assignment of which round, and the sender's weight
    (samples behind its vector; 0 sends nothing and only receives).
    """

    round_id: RoundId
    assignment: tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_TERM)], Index]
    weight: Samples


class Lost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Member to coordinator: nothing more comes from these members (indices into the plan)."""

    round_id: RoundId
    lost: Annotated[tuple[Index, ...], msgspec.Meta(max_length=MAX_MEMBERS)]


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Chunks (global numbers) that member `aggregator` reduces; `key` = (repair term, position) is unique in it."""

    key: tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_TERM)], Index]
    aggregator: Index
    chunks: Annotated[tuple[Offset, ...], msgspec.Meta(max_length=MAX_CHUNKS)]


class Freeze(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Coordinator to member: take no more from `dead`; tell me what you hold."""

    round_id: RoundId
    term: Annotated[int, msgspec.Meta(ge=1, le=MAX_TERM)]
    dead: Annotated[tuple[Index, ...], msgspec.Meta(max_length=MAX_MEMBERS)]


class Holding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Member to coordinator: bitmap of the chunks whose reduced values it has, and the repairs it knows of."""

    bitmap: Annotated[bytes, msgspec.Meta(max_length=MAX_CHUNKS // 8)]
    term: Annotated[int, msgspec.Meta(ge=0, le=MAX_TERM)]
    assignments: tuple[Assignment, ...]


class Repair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Coordinator to member: all assignments added so far, and who holds which chunk that need not be reduced again."""

    round_id: RoundId
    term: Annotated[int, msgspec.Meta(ge=1, le=MAX_TERM)]
    dead: Annotated[tuple[Index, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
    assignments: tuple[Assignment, ...]
    holders: Annotated[tuple[tuple[Index, tuple[Offset, ...]], ...], msgspec.Meta(max_length=MAX_MEMBERS)]


class Fetch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask a member for reduced chunks, as float32; it answers each as soon as it has it."""

    round_id: RoundId
    chunks: Annotated[tuple[Offset, ...], msgspec.Meta(max_length=MAX_CHUNKS)]


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An empty, friendly answer."""
