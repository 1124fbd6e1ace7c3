"""What peers say to each other to form a group, up to its plan.

Every number that arrives is bounded by its type; whatever relates two messages (a part that overlaps another, a
member that is listed twice) is checked where the message is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated

import msgspec

from minga.network.interface import Address, PeerId

MAX_MEMBERS = 1000
"""So that a plan fits into a message, whatever addresses its members tell."""
MAX_PARTS = 4096
MAX_SITES = 256
MAX_STEP = 1 << 48
MAX_SAMPLES = 1 << 40
MAX_CHUNKS = 1 << 17
MAX_TERM = 1000
MAX_BALLOT = 1 << 32
MAX_INTERVAL = 1 << 30
MAX_SCORE = 1e30
MAX_PLAN_BYTES = 1 << 20
MAX_JOIN_NOTE_BYTES, MAX_PLAN_NOTE_BYTES = 1 << 10, 1 << 15
LONGEST_S = 1e9
MAX_GROUPS = 256
MAX_FIRST = 32
MAX_LEARNING_RATE = 1e9

Step = Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP)]
Samples = Annotated[int, msgspec.Meta(ge=0, le=MAX_SAMPLES)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=LONGEST_S)]
Rate = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=MAX_MEMBERS)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
RoundId = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Fingerprint = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Peer = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Members = Annotated[tuple[Index, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
OrderIds = Annotated[tuple[Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")], ...], msgspec.Meta(max_length=64)]
LearningRate = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_LEARNING_RATE)]
LearningRates = Annotated[tuple[LearningRate, ...], msgspec.Meta(max_length=MAX_GROUPS)]
First = Annotated[tuple[Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)], ...], msgspec.Meta(max_length=MAX_FIRST)]
Ballot = Annotated[int, msgspec.Meta(ge=0, le=MAX_BALLOT)]


class PeerScore(msgspec.Struct, frozen=True, array_like=True):
    """How good the parameters of one peer are by its own word: the lower the `value` is, the better.

    One that is `early` is of too few micro-batches to be compared; it counts where no member has another.
    """

    value: Annotated[float, msgspec.Meta(ge=-MAX_SCORE, le=MAX_SCORE)]
    early: bool = False


class Report(msgspec.Struct, frozen=True):
    """How far one peer is within the step.

    `samples` accumulated so far; `rate` in samples per second; the micro-batch under way has `micro_batch` samples
    (0 when none is, or nothing is known of them), began `busy_s` seconds ago and takes `micro_batch_s` seconds as a
    rule. `parked`: this peer stopped at a boundary because it has as many samples as its `limit` (None: it has none)
    says; its next micro-batch would have `micro_batch` samples. In runs whose rounds take the contribution of the best
    member alone, `score` says how good this one's would be (None: it has nothing to give). The organiser's says which
    learning `rates` its program's loop set, one for each parameter group, if these are others than the run has. In a
    peer's first steps `first` is a sketch of the gradient of its first micro-batch: who draws the same samples has it,
    too.
    """

    samples: Samples = 0
    rate: Rate = 0.0
    micro_batch: Samples = 0
    busy_s: Seconds = 0.0
    micro_batch_s: Seconds = 0.0
    parked: bool = False
    limit: Samples | None = None
    score: PeerScore | None = None
    rates: LearningRates = ()
    first: First = ()


class Accepted(msgspec.Struct, frozen=True):
    """The result that a peer held in an attempt at a step which it then gave up: another peer may have applied it.

    It is that of round `round_id`, held in term `term` of the attempt with number `ballot` that `leader` led. Equal
    results have the same `fingerprint`. `orders` and `rates` are those of its plan.
    """

    ballot: Annotated[int, msgspec.Meta(ge=1, le=MAX_BALLOT)]
    leader: Peer
    term: Annotated[int, msgspec.Meta(ge=0, le=MAX_TERM)]
    round_id: RoundId
    fingerprint: Fingerprint
    orders: OrderIds = ()
    rates: LearningRates = ()

    @property
    def order(self) -> tuple[int, str, int]:
        """What is compared to find the latest."""
        return self.ballot, self.leader, self.term


class Join(msgspec.Struct, frozen=True, omit_defaults=True):
    """A peer asks to be in the group of `step`.

    `layout` is the fingerprint of its vector, `aggregates` whether all can reach it, `computes` whether it has samples
    to give at all, `upload` and `download` its own estimate of its link in bytes per second (None: unknown), which it
    carries at least if that was not `shown`. `suspects` are the peers before this leader in the ranking from which it
    hears nothing, `seats` how many members have joined the sender itself (two leaders of one step settle by this who
    goes on), -1 for a newcomer that looks around, `previous` the fingerprint of the reduced vector that led to `step`,
    empty if its state came in another way, `batch` the target batch size that the last plan named for `step`, 0 if the
    sender has not had that plan. With `ballot` the sender promises this leader to hold no result of an attempt at the
    step with a lower number from now on (0: it has no vote), and `accepted` is what it held in the latest one.
    `epoch` is that of the organisers' last regroup which the sender followed; leaders take no peer of another one.
    `history` stands for all rounds that led to the sender's state; leaders take no peer with another one.
    `note` is what the sender has for the other members besides, see `minga.averaging.group.RoundNotes`.
    """

    step: Step
    layout: Fingerprint
    address: Address
    aggregates: bool
    computes: bool
    upload: Rate | None
    download: Rate | None
    report: Report
    upload_shown: bool = True
    download_shown: bool = True
    suspects: Annotated[tuple[Peer, ...], msgspec.Meta(max_length=64)] = ()
    seats: Annotated[int, msgspec.Meta(ge=-1, lt=MAX_MEMBERS)] = 0
    previous: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{32})?\Z")] = ""
    batch: Samples = 0
    ballot: Ballot = 0
    accepted: Accepted | None = None
    epoch: Epoch = 0
    history: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{32})?\Z")] = ""
    note: Annotated[bytes, msgspec.Meta(max_length=MAX_JOIN_NOTE_BYTES)] = b""


class Update(msgspec.Struct, frozen=True):
    """Member to leader: a newer report, and the number that it promised to this leader by now."""

    report: Report
    ballot: Ballot = 0


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Leader to member: this attempt has a higher number than the one you promised me; promise it, and say so."""

    ballot: Annotated[int, msgspec.Meta(ge=1, le=MAX_BALLOT)]


class AskView(msgspec.Struct, frozen=True):
    """Leader to member: who took part in the last round before `step`, or if it is named in round `round_id`?"""

    step: Step
    round_id: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{32})?\Z")] = ""


class View(msgspec.Struct, frozen=True):
    """The members of a round, its leader first."""

    members: Annotated[tuple[Peer, ...], msgspec.Meta(min_length=1, max_length=MAX_MEMBERS)]


class Limit(msgspec.Struct, frozen=True, tag="limit"):
    """Leader to member: stop at the end of the first micro-batch with which you have at least so many `samples`, and
    report; go on up to there if you stopped before.
    """

    samples: Samples


class Redirect(msgspec.Struct, frozen=True, tag="redirect"):
    """Leader to member: `leader` leads this step, not I."""

    leader: Address


class GroupMember(msgspec.Struct, frozen=True):
    """One member of a closed group: how to reach it, and whether it can aggregate for all others."""

    address: Address
    aggregates: bool

    @property
    def peer_id(self) -> PeerId:
        """The member's id."""
        return self.address.peer_id


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A slice of the vector, from where the part before it ends to `stop`, which member `root` makes the result of.

    `relays` has one member of each of the plan's sites: see `minga.averaging.solver.division`.
    """

    stop: Offset
    root: Index
    relays: Annotated[tuple[Index, ...], msgspec.Meta(max_length=MAX_SITES)] = ()


class Plan(msgspec.Struct, frozen=True, dict=True, tag="plan"):
    """Who reduces what in one round.

    `members` starts with the leader, the others follow in the order in which they take over from it. `parts` cover the
    vector from element 0 on and go in chunks of about `chunk_bytes` encoded bytes; small parts go in smaller chunks
    (none below 16 KiB), so that each has about `part_chunks` of them at least. `sites` are the groups of members that
    reduce among themselves first. `resting` members are asked not to compute until a later plan does not name them:
    their uploads would cost the others more time than their samples save. `predicted_s` is what the leader expects the
    round to take, None if it knows no rates. `limits` (one for each member, or none at all) are the samples at which
    the members stop in the next step, until its leader says something else, `next_batch` is its target batch size.

    The attempt at the step has the number `ballot`. `electorate` members of the last round have a vote, of which the
    `voters` are here and `tie_breaker` decides between halves (see `Electorate`); 0 in a first round, in which all
    vote. A plan may take over the result of an earlier attempt, round `adopts`, instead of reducing anew: then the
    `holders` have it, and the `view`, its members, is what counts for the next step. `orders` are the organisers'
    amendments by which all members take this step, with an adopted result those of the attempt that made it. So are
    `rates`, the learning rates of the parameter groups as the organiser's loop set them (none: those of the state).
    After a step whose number `averages_every` divides, the members average their parameters, too; 0 is never.

    The first micro-batches of the `twins` gave one gradient, as far as they say: with equal seeds peers draw equal
    samples.

    The `contributors` are the members that are expected to give something to the mean. With `scores` (one for each
    member; None where one has nothing to give) the round has one contributor, the member with the best, and all others
    give nothing: see `minga.averaging.planning.best_contributor`.
    """

    round_id: RoundId
    step: Step
    members: Annotated[tuple[GroupMember, ...], msgspec.Meta(min_length=1, max_length=MAX_MEMBERS)]
    parts: Annotated[tuple[Part, ...], msgspec.Meta(min_length=1, max_length=MAX_PARTS)]
    chunk_bytes: Annotated[int, msgspec.Meta(ge=1024, le=1 << 24)]
    part_chunks: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    sites: Annotated[
        tuple[Annotated[tuple[Index, ...], msgspec.Meta(min_length=2, max_length=MAX_MEMBERS)], ...],
        msgspec.Meta(max_length=MAX_SITES),
    ] = ()
    resting: Members = ()
    predicted_s: Seconds | None = None
    limits: Annotated[tuple[Samples, ...], msgspec.Meta(max_length=MAX_MEMBERS)] = ()
    next_batch: Samples = 0
    ballot: Annotated[int, msgspec.Meta(ge=1, le=MAX_BALLOT)] = 1
    voters: Members = ()
    electorate: Annotated[int, msgspec.Meta(ge=0, le=MAX_MEMBERS)] = 0
    tie_breaker: Index | None = None
    adopts: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{32})?\Z")] = ""
    holders: Members = ()
    view: Annotated[tuple[Peer, ...], msgspec.Meta(max_length=MAX_MEMBERS)] = ()
    orders: OrderIds = ()
    averages_every: Annotated[int, msgspec.Meta(ge=0, le=MAX_INTERVAL)] = 0
    contributors: Members = ()
    scores: Annotated[tuple[PeerScore | None, ...], msgspec.Meta(max_length=MAX_MEMBERS)] = ()
    rates: LearningRates = ()
    twins: Members = ()

    @cached_property
    def ids(self) -> tuple[PeerId, ...]:
        """The ids of the members, in their order."""
        return tuple(member.peer_id for member in self.members)

    def rank_of(self, peer: PeerId) -> int:
        """The place of a member among the members. Raises `ValueError` for another peer."""
        return self.ids.index(peer)

    def may_relay(self, relay: int, site: Sequence[int], root: int) -> bool:
        """Whether a member can reduce for a site on the way to `root`: it is of that site, can aggregate, and does not
        stand beside the root there.
        """
        return relay in site and self.members[relay].aggregates and (relay == root or root not in site)

    @property
    def result_id(self) -> str:
        """The id of the round whose result this one ends with."""
        return self.adopts or self.round_id

    @property
    def succession(self) -> tuple[PeerId, ...]:
        """Who decides the next step if this round is committed: the members that made its result, the leader first."""
        return tuple(PeerId(peer) for peer in self.view) or self.ids


class SignedPlan(msgspec.Struct, frozen=True, tag="signed_plan", omit_defaults=True):
    """Leader to member: the group is closed. `signature` is the leader's, of the bytes of `plan`.

    These are the msgpack of a `Plan`, of a large group `packed`: compressed by zlib, from at most `MAX_PLAN_BYTES`. The
    `note` is no part of what the leader signs: `minga.averaging.group.RoundNotes` says what it is.
    """

    plan: Annotated[bytes, msgspec.Meta(max_length=MAX_PLAN_BYTES)]
    signature: Annotated[bytes, msgspec.Meta(max_length=64)]
    note: Annotated[bytes, msgspec.Meta(max_length=MAX_PLAN_NOTE_BYTES)] = b""
    packed: bool = False


FromLeader = Limit | Redirect | SignedPlan | Prepare
