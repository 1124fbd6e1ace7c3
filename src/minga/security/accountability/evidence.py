"""Evidence: why the list of members changed, so that it can be checked later, by anybody and offline.

Theory of operation. Evidence claims nothing. It is the *transcript* of one attempt: where the members stood before it,
all that they said in it phase by phase, each word signed by its author, and the bytes of at most one part where numbers
decided. Who has to go by that is found by the functions that the members called (`rulings.py`, and `StepMath.recheck`
for the bytes). So to trust a ban is to trust these, and that more than half of the members were honest.

**Nothing can be left out of it.** A phase counts if more than half of the members said in the next one, by its digest,
that they had heard exactly this; two such sets would share a member that signed twice, and the honest ones would have
noticed. The last phase of a transcript has no next one: by it counts only what more than half of the members say, which
more words could not undo. A transcript that ends too early therefore shows less, and never something else: to ban an
honest member with words that lack its own, half of the members would have to sign that it had said nothing. Where the
members stood, and by which rules, more than half of them signed as well. What is left to the witness is which attempts
it keeps, and, of the candidates whose probation was over by the word of most, whom no accusation held up: it names whom
they admitted.

**Entered** is where the members stood when the witness became one; its log begins anew with that.

What cannot be shown. (1) Where honest members parted in the last moment of a vote, so that not half of them said the
same of a phase, the others go on, and what they have of it shows nothing. (2) A judgement shows what most found, not
that they found it rightly: for that, the gradient has to be computed again, which takes the data and the model of the
time.

Evidence is signed by the member that kept it, its *witness*: that adds nothing to what it shows, but says who vouches
for the order of a log, and for what is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import ConfigurationError, ProtocolError, RemoteError
from minga.identity.keys.keys import Identity
from minga.identity.keys.keys import verify as is_signed
from minga.network.interface import PeerId
from minga.security.accountability.rulings import Ruling, decide, is_majority, judge
from minga.security.parts.equal_parts import EqualParts, value_from_bytes
from minga.security.parts.part_store import PartStore
from minga.security.protocol.attempt_record import AttemptRecord, Terms, who_leaves
from minga.security.protocol.members import has_passed, heard_by_most
from minga.security.protocol.protocol_state import ProtocolState
from minga.security.protocol.rules import Rules
from minga.security.protocol.statements import (
    MAX_MEMBERS,
    Attempt,
    Commit,
    Digest,
    MerklePath,
    Peers,
    Phase,
    Rank,
    Signature,
    Slot,
    StateClaim,
    Statement,
    is_genuine,
    phase_digest,
    read,
)
from minga.security.protocol.step_math import StepMath

MAX_PART_BYTES = 1 << 30
SIGNING_CONTEXT = b"secure evidence"
PHASES = (Phase.COMMIT, Phase.RESULT, Phase.REVEAL, Phase.CLAIMS, Phase.CONFIRM, Phase.CHECK)

Statements = Annotated[tuple[Statement, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
Part = Annotated[bytes, msgspec.Meta(max_length=MAX_PART_BYTES)]


class EvidenceError(RemoteError):
    """Evidence that shows nothing."""


@dataclass
class Decision:
    """Who left the list of members after an attempt and why, and who came to it."""

    gone: Ruling = field(default_factory=dict)
    admitted: tuple[PeerId, ...] = ()


class ShownPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """All bytes of one part: `rows` of all contributors by rank, as they were sent, with the `paths` that show that
    these were committed to; `value` is the aggregate.
    """

    part: Rank
    rows: Annotated[tuple[Part, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
    paths: Annotated[tuple[MerklePath, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
    value: Part

    @classmethod
    def of(cls, record: AttemptRecord, part: int) -> ShownPart:
        """Of a part of which all bytes are at hand."""
        store, senders = record.store, record.terms.contributors
        rows = tuple(bytes(store.parts[owner, part]) for owner in senders)
        paths = tuple(store.paths[owner, part] for owner in senders)
        return cls(part, rows, paths, bytes(store.values[part]))

    def put_into(self, record: AttemptRecord) -> None:
        """Undo `of`. Raises `ValueError` for bytes that are not those that were committed to."""
        store, senders = record.store, record.terms.contributors
        if Phase.CONFIRM not in record.said or self.part not in record.terms.division.parts:
            raise ValueError("no claims about that part are known")
        if not len(self.rows) == len(self.paths) == len(senders):
            raise ValueError("its bytes are not those of all who contributed")
        if {len(row) for row in self.rows} != {store.part_bytes[self.part]}:
            raise ValueError("its bytes are not as long as they have to be")
        shown = zip(senders, self.rows, self.paths, strict=True)
        placed = [store.put_part(owner, self.part, row, path) for owner, row, path in shown]
        if not all(placed) or not store.put_value(self.part, self.value):
            raise ValueError("its bytes are not those that were committed to")
        record.values[self.part] = value_from_bytes(self.value)


class Transcript(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag=True):
    """Where the members stood before an attempt and by which rules, what counted of the words of its first phases, and
    what else decided: the bytes of a part, or whom they `admitted` when it had passed.
    """

    standing: ProtocolState
    attempt: Attempt
    rules: Rules
    said: Annotated[tuple[Statements, ...], msgspec.Meta(min_length=1, max_length=len(PHASES))]
    shown: ShownPart | None = None
    admitted: Peers = ()

    @classmethod
    def failed(cls, standing: ProtocolState, record: AttemptRecord, part: int | None = None) -> Transcript:
        """Of an attempt that somebody had to leave, by the numbers of a part if one is given."""
        shown = None if part is None else ShownPart.of(record, part)
        return cls(standing, record.terms.attempt, record.terms.rules, _said(record, len(record.said)), shown)

    @classmethod
    def passed(cls, standing: ProtocolState, record: AttemptRecord, admitted: tuple[PeerId, ...]) -> Transcript:
        """Of an attempt after which somebody left or came: the commitments, and that all heard these."""
        return cls(standing, record.terms.attempt, record.terms.rules, _said(record, 2), admitted=admitted)

    def decision(self, run_id: str) -> Decision:
        """Who left and came. Raises `EvidenceError`, `ProtocolError`, `ConfigurationError` and `ValueError` where the
        transcript is none.
        """
        record = self._record(run_id)
        gone = decide(record)
        if gone or self.shown is None:
            return Decision(gone) if gone else Decision(judge(record, self.standing), self._admitted(record))
        self.shown.put_into(record)
        return Decision(dict(StepMath(self.rules.settings).recheck(record, self.shown.part)))

    # ---- inner workings

    def _record(self, run_id: str) -> AttemptRecord:
        """What all members knew of the attempt, as most of them confirmed; without any bytes."""
        standing = self.standing
        standing.check()
        members = tuple(map(PeerId, standing.members))
        said = {phase: self._of_phase(phase, run_id) for phase in PHASES[: len(self.said)]}
        commits = {peer: read(statement, Commit) for peer, statement in said[Phase.COMMIT].items()}
        place = (standing.digest, self.rules.digest)
        there = sum((commit.standing, commit.rules) == place for commit in commits.values())
        if not is_majority(there, members):
            raise EvidenceError("most members stood elsewhere, or had other rules", round=standing.step)
        division = EqualParts.equal(self.rules.layout, len(members))
        left = who_leaves(commits)
        voters = [peer for peer in members if peer not in left]
        validators = frozenset(peer for peer, commit in commits.items() if commit.root is None) - left
        terms = Terms(run_id, standing.step, self.attempt, members, validators, division, self.rules)
        record = AttemptRecord(terms, PartStore(division.part_bytes, division.value_bytes))
        for phase, statements in said.items():
            bodies = {peer: terms.understood(statement) for peer, statement in statements.items()}
            understood = {peer: body for peer, body in bodies.items() if body is not None}
            if len(understood) < len(bodies):
                raise EvidenceError(f"a word in phase {phase.name} makes no sense", round=standing.step)
            record.hear(phase, statements, understood)
        for phase, later in pairwise(said):
            digest, words = phase_digest(said[phase].values()), record.bodies[later]
            if not is_majority(sum(words[peer].seen == digest for peer in voters if peer in words), voters):
                raise EvidenceError(f"most members heard something else in phase {phase.name}", round=standing.step)
        _note(record)
        return record

    def _of_phase(self, phase: Phase, run_id: str) -> dict[PeerId, Statement]:
        """By author; all of members, and one of each."""
        slot, said = Slot(self.standing.step, self.attempt, phase), dict[PeerId, Statement]()
        for statement in self.said[PHASES.index(phase)]:
            author = statement.author
            if statement.slot != slot or author not in self.standing.members or author in said:
                raise EvidenceError("a statement belongs elsewhere", peer=author, round=slot.step)
            if not is_genuine(statement, run_id):
                raise EvidenceError("a statement was not signed by its author in this run", peer=author)
            said[author] = statement
        return said

    def _admitted(self, record: AttemptRecord) -> tuple[PeerId, ...]:
        """Those that were admitted, whose probation was over by what most heard of them."""
        heard, step = heard_by_most(record.terms.members, record.commits), self.standing.step
        membership, probation = self.standing.membership, self.rules.probation_steps
        for peer in map(PeerId, self.admitted):
            if not has_passed(peer, membership, step, heard, probation):
                raise EvidenceError("its probation was not over", peer=peer, round=step)
        return tuple(map(PeerId, self.admitted))


class Entered(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag=True):
    """Where the members stood when the witness became one, and what at least half of them signed of that."""

    standing: ProtocolState
    places: Statements

    @property
    def attempt(self) -> int:
        """It took part from the first one on."""
        return 0

    def decision(self, run_id: str) -> Decision:
        """Nobody is known to have left or come. Raises as that of a `Transcript`."""
        self.standing.check()
        slot, there = Slot(self.standing.step, 0, Phase.STANDING), set[PeerId]()
        for statement in self.places:
            place = read(statement, StateClaim)
            is_theirs = statement.author in self.standing.members and statement.slot == slot
            if is_theirs and place.standing == self.standing.digest and is_genuine(statement, run_id):
                there.add(statement.author)
        if 2 * len(there) < len(self.standing.members):
            raise EvidenceError("most members stood elsewhere", round=slot.step)
        return Decision()


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What a member keeps, and its signature."""

    proof: Transcript | Entered
    witness: Digest
    signature: Signature

    @classmethod
    def of(cls, proof: Transcript | Entered, identity: Identity, run_id: str) -> Evidence:
        """Sign what happened in a run."""
        signature = identity.sign(_signed(proof, run_id), context=SIGNING_CONTEXT)
        return cls(proof, bytes.fromhex(identity.peer_id), signature)

    @property
    def author(self) -> PeerId:
        """The member that kept it."""
        return PeerId(self.witness.hex())

    @property
    def step(self) -> int:
        """What it is about."""
        return self.proof.standing.step

    def verify(self, run_id: str) -> Decision:
        """What it shows. Raises `EvidenceError` if that is nothing, with what is wrong."""
        proof, author = self.proof, self.author
        if not is_signed(author, self.signature, _signed(proof, run_id), context=SIGNING_CONTEXT):
            raise EvidenceError("its witness did not sign it", peer=author, round=self.step)
        if author not in proof.standing.members:
            raise EvidenceError("its list of members lacks the witness", peer=author, round=self.step)
        try:
            decision = proof.decision(run_id)
        except (ConfigurationError, ProtocolError, ValueError) as error:
            raise EvidenceError(f"it contains nonsense: {error}", peer=author, round=self.step) from error
        if isinstance(proof, Transcript) and not decision.gone and not decision.admitted:
            raise EvidenceError("nobody left or came by what it shows", peer=author, round=self.step)
        return decision

    def to_bytes(self) -> bytes:
        """For a file."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Evidence:
        """Undo `to_bytes`. Raises `EvidenceError` if it is malformed."""
        try:
            return decode_msgpack(data, cls)
        except DECODING_ERRORS as error:
            raise EvidenceError(f"malformed evidence: {error}") from error


def _signed(proof: Transcript | Entered, run_id: str) -> bytes:
    return msgspec.msgpack.encode((run_id, proof))


def _said(record: AttemptRecord, phases: int) -> tuple[Statements, ...]:
    """What counted in so many phases, in an order that depends on nothing else."""
    return tuple(tuple(said for _, said in sorted(record.said[phase].items())) for phase in PHASES[:phases])


def _note(record: AttemptRecord) -> None:
    """What the members committed to, and the coin that they tossed."""
    terms, store = record.terms, record.store
    store.roots = {terms.members.index(peer): commit.root for peer, commit in record.commits.items() if commit.root}
    aggregates = {terms.members.index(peer): result.value for peer, result in record.results.items()}
    store.value_digests = {part: value for part, value in aggregates.items() if value is not None}
    if record.reveals:
        record.toss()
