"""What the members of a secure run say to each other, and the store of what was said.

Every word that counts is a *statement*: a body in a *slot*, signed by its author. A slot is one phase of one attempt at
one step, and has room for one body of each author; an author of two different ones proves its own guilt. Statements
are told by their authors and passed on by anybody.

Sizes are bounded by the types; whatever relates two statements is checked where it is used.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Annotated, TypeVar

import msgspec
from blake3 import blake3

from minga.core.aio import Signal
from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import ProtocolError
from minga.identity.keys.keys import Identity, verify
from minga.network.interface import PeerId
from minga.security.randomness.coin import Reveal
from minga.security.verification.claims import CLAIM_LIMIT, PartClaim

MAX_MEMBERS = 256
"""Everybody hears from everybody in each phase."""

RANKS_BYTES = MAX_MEMBERS // 8
MAX_BODY_BYTES = 1 << 16
MAX_SHORT_BODY_BYTES = 128
"""Where one or two digests are said, and by strangers: each may leave a word with everybody in each step."""
MAX_ATTEMPTS = 256
MAX_CANDIDATES = 32
"""Also of applicants whom a member names in one step."""
MAX_ACCUSATIONS = 4
"""Of one member in one step: each makes all others compute."""
SIGNING_CONTEXT = b"secure step"

T = TypeVar("T")

Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Peer = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
BodyBytes = Annotated[bytes, msgspec.Meta(max_length=MAX_BODY_BYTES)]
Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
Step = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
Attempt = Annotated[int, msgspec.Meta(ge=0, le=MAX_ATTEMPTS)]
Rank = Annotated[int, msgspec.Meta(ge=0, lt=MAX_MEMBERS)]
Ranks = Annotated[bytes, msgspec.Meta(min_length=RANKS_BYTES, max_length=RANKS_BYTES)]
Peers = Annotated[tuple[Peer, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
MerklePath = Annotated[tuple[Digest, ...], msgspec.Meta(max_length=MAX_MEMBERS.bit_length() - 1)]
"""What proves that a part is among those that its owner committed to, see `minga.security.parts.equal_parts`."""


class Phase(enum.IntEnum):
    """The phases of an attempt, in their order, see `minga.security.step.attempt`; each may be followed by votes on who
    was heard in it, see `minga.security.messaging.voting`. Beside these are what members say to newcomers, and
    candidates to members, both once in a step (attempt 0).
    """

    COMMIT = 1
    RESULT = 2
    REVEAL = 3
    CLAIMS = 4
    CONFIRM = 5
    CHECK = 6
    COMMIT_VOTE = 11
    RESULT_VOTE = 12
    REVEAL_VOTE = 13
    CLAIMS_VOTE = 14
    CONFIRM_VOTE = 15
    CHECK_VOTE = 16
    STANDING = 21
    CANDIDACY = 22

    @property
    def vote(self) -> Phase:
        """The votes on this phase."""
        return Phase[f"{self.name}_VOTE"]


_SHORT_PHASES = frozenset((Phase.STANDING, Phase.CANDIDACY))


class Slot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True, order=True):
    """Where a statement belongs."""

    step: Step
    attempt: Attempt
    phase: Phase

    @property
    def vote(self) -> Slot:
        """Where the votes on this slot belong."""
        return Slot(self.step, self.attempt, self.phase.vote)


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What the peer with the public `key` says in a slot: `body` is the msgpack of that phase's struct, the signature
    covers run, slot and body.

    Raises `ValueError` for a body that is longer than any that its phase has, also where one is decoded from the wire.
    """

    key: Digest
    slot: Slot
    body: BodyBytes
    signature: Signature

    def __post_init__(self) -> None:
        _require_short(self.slot, self.body)

    @property
    def author(self) -> PeerId:
        """Whose statement it is."""
        return PeerId(self.key.hex())

    @property
    def digest(self) -> bytes:
        """32 bytes that stand for the body."""
        return blake3(self.body).digest()


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A statement on its way from its author, whom the connection names.

    Raises `ValueError` for a body that is too long, like `Statement`.
    """

    slot: Slot
    body: BodyBytes
    signature: Signature

    def __post_init__(self) -> None:
        _require_short(self.slot, self.body)

    @classmethod
    def of(cls, statement: Statement) -> Told:
        """Without the author."""
        return cls(statement.slot, statement.body, statement.signature)

    def by(self, author: PeerId) -> Statement:
        """With it again."""
        return Statement(bytes.fromhex(author), self.slot, self.body, self.signature)


class Charge(enum.IntEnum):
    """What a peer may be accused of, so that others can find out whether it is true."""

    GRADIENT = 1
    """What it committed to is not the gradient of its public batch."""
    CLAIMS = 2
    """Its projections or norms of a part are not those of what it sent."""
    WITHHELD = 3
    """A candidate does not hand out what it committed to."""


class Accusation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A validator's finding about what `target` did in the last attempt at `step`; `part` matters for CLAIMS only."""

    step: Step
    target: Peer
    charge: Charge
    part: Rank = 0


class Judgement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What a member found when it looked into the accusation that `accuser` made."""

    accuser: Peer
    accusation: Accusation
    guilty: bool


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Phase COMMIT: where the author stands, and what it is going to send.

    `state`, `standing` and `rules` are the digests of its parameters, of its `ProtocolState` and of the `Rules` that
    it goes by; `root` is that of the Merkle tree of the parts of its gradient as they will be on the wire, None from a
    validator, which has none. `equivocators` are those of whom the author can prove that they said two different
    things; `heard` are the candidates that it heard in time two steps ago and what they committed to, and applicants
    (who commit to None); `unheard` are the members of whom it heard nothing in the last phase of the step before. One
    that `leaves` commits to nothing, says no more, and makes no majority in this attempt.

    Raises `ValueError` where `heard` names a peer twice, also where one is decoded from the wire: of two roots that a
    candidate told, each to some, both could have a majority then.
    """

    state: Digest
    standing: Digest
    rules: Digest
    root: Digest | None
    accusations: Annotated[tuple[Accusation, ...], msgspec.Meta(max_length=MAX_ACCUSATIONS)] = ()
    judgements: Annotated[tuple[Judgement, ...], msgspec.Meta(max_length=64)] = ()
    equivocators: Peers = ()
    heard: Annotated[tuple[tuple[Peer, Digest | None], ...], msgspec.Meta(max_length=2 * MAX_CANDIDATES)] = ()
    unheard: Peers = ()
    leaves: bool = False

    def __post_init__(self) -> None:
        if len({peer for peer, _ in self.heard}) < len(self.heard):
            raise ValueError("it names a candidate twice")

    @property
    def place(self) -> tuple[bytes, bytes, bytes]:
        """What most members must have alike."""
        return self.state, self.standing, self.rules


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Phase RESULT: the digest of the author's aggregate (None if it aggregates nothing) and the radius `clip` that it
    was made with, a commitment to a secret of the coin, and the digest of phase COMMIT as the author knows it. `silent`
    are the ranks whose parts it could get neither from themselves nor through others.
    """

    value: Digest | None
    clip: Annotated[float, msgspec.Meta(ge=0.0, le=CLAIM_LIMIT)]
    coin: Digest
    seen: Digest
    silent: Annotated[tuple[Rank, ...], msgspec.Meta(max_length=MAX_MEMBERS)] = ()


class Revealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Phase REVEAL: what the author's commitment to the coin opens with, and the digest of phase RESULT as it knows it.

    `delivered` answers an aggregator that could not get a part: (aggregator, owner) of the one that all members look
    for, if this member could get it.
    """

    reveal: Reveal
    seen: Digest
    delivered: tuple[Rank, Rank] | None = None


class Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Phase CLAIMS: what the author claims of each of its parts, nothing from a validator; and the digest of phase
    REVEAL as it knows it. `missing` are the parts whose aggregates it could get from nobody; it claims nothing of them.
    """

    claims: Annotated[tuple[PartClaim | None, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
    seen: Digest
    missing: Annotated[tuple[Rank, ...], msgspec.Meta(max_length=MAX_MEMBERS)] = ()


class Confirm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Phase CONFIRM: the digest of phase CLAIMS as the author knows it; if all agree, all check the same numbers.

    `lacking` has the parts that have to be computed again and that the author could get from nobody: for each
    aggregator their owners, one bit for each rank, lowest first, so that there is room for all of them. Where there is
    anything to compute again, phase CHECK follows, which says the same of phase CONFIRM.
    """

    seen: Digest
    lacking: Annotated[tuple[tuple[Rank, Ranks], ...], msgspec.Meta(max_length=MAX_MEMBERS)] = ()

    @classmethod
    def of(cls, seen: bytes, lacking: Iterable[tuple[int, int]] = ()) -> Confirm:
        """With the parts that the author lacks, as (aggregator, owner)."""
        owners: dict[int, int] = {}
        for part, owner in lacking:
            owners[part] = owners.get(part, 0) | 1 << owner
        return cls(seen, tuple((part, bits.to_bytes(RANKS_BYTES, "little")) for part, bits in owners.items()))


class StateClaim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Phase STANDING: the digests of the author's `ProtocolState` and of its parameters at the beginning of a step."""

    standing: Digest
    state: Digest


class Candidacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Phase CANDIDACY: what stands for the gradient that a candidate computed in a step, the root of the Merkle tree of
    its pieces (`minga.security.messaging.gradient_samples`); None from who only applies.
    """

    gradient: Digest | None


Body = Commit | Result | Revealed | Claims | Confirm


class Heard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Votes: whom the author heard in a phase, as ranks and the digests of what they said."""

    statements: Annotated[tuple[tuple[Rank, Digest], ...], msgspec.Meta(max_length=MAX_MEMBERS)]


def state(identity: Identity, run_id: str, slot: Slot, body: msgspec.Struct) -> Statement:
    """Sign what `identity` says in `slot`."""
    encoded = msgspec.msgpack.encode(body)
    return Statement(
        bytes.fromhex(identity.peer_id),
        slot,
        encoded,
        identity.sign(_signed(run_id, slot, encoded), context=SIGNING_CONTEXT),
    )


def is_genuine(statement: Statement, run_id: str) -> bool:
    """Whether the author of a statement signed it, in this run."""
    message = _signed(run_id, statement.slot, statement.body)
    return verify(statement.author, statement.signature, message, context=SIGNING_CONTEXT)


def read(statement: Statement, body_type: type[T]) -> T:
    """The body of a statement. Raises `ProtocolError`, in the author's name, if it is malformed."""
    try:
        return decode_msgpack(statement.body, body_type)
    except DECODING_ERRORS as error:
        raise ProtocolError(
            f"malformed: {error}", peer=statement.author, round=statement.slot.step, phase=statement.slot.phase.name
        ) from error


def _require_short(slot: Slot, body: bytes) -> None:
    if slot.phase in _SHORT_PHASES and len(body) > MAX_SHORT_BODY_BYTES:
        raise ValueError(f"a body of {len(body)} bytes in phase {slot.phase.name}: {MAX_SHORT_BODY_BYTES} are allowed")


def _signed(run_id: str, slot: Slot, body: bytes) -> bytes:
    return msgspec.msgpack.encode((run_id, slot, body))


# ---- The store of what was said so far: the statements of a few steps, by slot and author.


_LABEL = b"minga secure phase 1"


class EquivocationProof(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Two statements of one author in one slot: a proof that needs nothing else."""

    one: Statement
    other: Statement

    @property
    def author(self) -> PeerId:
        """Who signed both."""
        return self.one.author

    def holds(self, run_id: str) -> bool:
        """Whether this proves anything."""
        a, b = self.one, self.other
        same_place = (a.key, a.slot) == (b.key, b.slot) and a.body != b.body
        return same_place and is_genuine(a, run_id) and is_genuine(b, run_id)


class StatementStore:
    """Statements that were checked to be genuine, of the steps that are kept."""

    def __init__(self) -> None:
        self.changed = Signal()
        """Fires with each new statement."""
        self._slots: dict[Slot, dict[PeerId, Statement]] = {}

    def put(self, statement: Statement) -> EquivocationProof | None:
        """Keep a statement, unless its author said something before in that slot; if that was another, the proof."""
        known = self._slots.setdefault(statement.slot, {}).setdefault(statement.author, statement)
        if known is statement:
            self.changed.fire()
            return None
        return None if known.body == statement.body else EquivocationProof(known, statement)

    def of(self, slot: Slot) -> dict[PeerId, Statement]:
        """What was said in a slot, by author."""
        return self._slots.get(slot, {})

    def drop(self, slot: Slot, author: PeerId) -> None:
        """Forget what an author said in a slot."""
        self._slots.get(slot, {}).pop(author, None)

    def forget_before(self, step: int) -> None:
        """Drop what belongs to earlier steps."""
        for slot in [slot for slot in self._slots if slot.step < step]:
            del self._slots[slot]


def phase_digest(statements: Iterable[Statement]) -> bytes:
    """32 bytes that stand for who said what in a phase, whatever the order."""
    entries = sorted(statement.key + statement.digest for statement in statements)
    return blake3(_LABEL + b"".join(entries)).digest()
