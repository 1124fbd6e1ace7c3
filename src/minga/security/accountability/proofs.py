"""Evidence: why a member left the list, so that it can be verified later, by anybody and offline.

Theory of operation. A member writes a *case* for each change of the list: which peer went or came, why, in which
attempt, who the members were, and a *proof*, which holds all that the change follows from. Proofs are made of
statements, which their authors signed. A decision of the members is proved by the words of so many of them that one is
honest while most members are. A proof holds if the rules of the live step (`minga.security.accountability.rulings`)
say the same of its statements, see `minga.security.accountability.verify`. The case is signed by the member that wrote
it, its *witness*: that adds nothing to the proof, but says who vouches for the rest.

    Contradicted   two statements in one slot                                      EQUIVOCATED
    Named          commitments: most can prove that it contradicted itself, or     EQUIVOCATED
                   heard nothing of it in the last phase of the step before        SILENT
    Unheard        votes: too few heard it                                         SILENT; away, if in phase COMMIT
    Elsewhere      commitments: most stand elsewhere than it                       away
    Unopened       its commitment to the coin, and what does not open it           SILENT
    Undelivered    a complaint, and who could get what it is about                 UNDELIVERED
    Unobtainable   claims: most could not get its aggregate                        UNDELIVERED
    Behind         claims: it could not get an aggregate that others have          away
    Hidden         CONFIRM: most could not get a part, to compute it again         UNDELIVERED
    Recomputed     all statements of the attempt and all bytes of one part         WRONG_AGGREGATE, FALSE_CLAIMS
    Judged         an accusation, and that most found it right or wrong            WRONG_GRADIENT, FALSE_CLAIMS,
                                                                                   COVERED, FALSE_ACCUSATION
    Admitted       commitments: most name it, when its probation lacked one step   it became a member
    Entered        where members stood when the witness became one                 the list begins anew
    Unshown        nothing                                                         any

What cannot be shown. (1) A peer that became a member after an accusation was made lacks the statement that made it:
what it knows of the judgement is `Unshown`. (2) A member that does not vote leaves no trace. Where so many did not that
the votes do not say whether half of the members heard a member, `Unheard` does not hold, though the witness had to
decide. (3) `Judged` proves what most found, not that they found it rightly: for that, the gradient has to be computed
again, which takes the data and the model of the time.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import RemoteError
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.security.protocol.members import Reason
from minga.security.protocol.protocol_state import ProtocolState
from minga.security.protocol.rules import Rules
from minga.security.protocol.statements import (
    MAX_MEMBERS,
    Accusation,
    Attempt,
    Digest,
    EquivocationProof,
    MerklePath,
    Peer,
    Peers,
    Phase,
    Rank,
    Statement,
    Step,
)

MAX_PART_BYTES = 1 << 30
SIGNING_CONTEXT = b"secure evidence"

Statements = Annotated[tuple[Statement, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
Part = Annotated[bytes, msgspec.Meta(max_length=MAX_PART_BYTES)]


class EvidenceError(RemoteError):
    """Evidence that proves nothing."""


QUOTED = {
    Phase.COMMIT: ("commit", "commits"),
    Phase.RESULT: ("result", "results"),
    Phase.REVEAL: ("reveal", "reveals"),
    Phase.CLAIMS: ("claims",),
    Phase.CONFIRM: ("confirms",),
    Phase.CHECK: ("checks",),
}
"""The fields of proofs that hold statements of each phase of the attempt: one, or those of several members."""


class _Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag=True):
    """Statements of the phases of one attempt, and what else the members' rules need. The name of each kind is the
    first thing that is written of it.
    """

    known: ClassVar[tuple[Phase, ...]] = ()
    """The phases of which it has the statements of all members, and of the phase after that what these say of them."""

    def quoted(self, phase: Phase) -> Statements:
        """Its statements of a phase of the attempt."""
        held = [getattr(self, name, ()) for name in QUOTED[phase]]
        return tuple(said for one in held for said in (one if isinstance(one, tuple) else (one,)))


class Contradicted(_Proof, frozen=True):
    """Two statements where one was due."""

    proof: EquivocationProof


class Named(_Proof, frozen=True):
    """The commitments, most of which name it."""

    commits: Statements


class Unheard(_Proof, frozen=True):
    """The votes on a phase."""

    phase: Phase
    votes: Statements


class Elsewhere(_Proof, frozen=True):
    """The commitments of all."""

    commits: Statements


class Unopened(_Proof, frozen=True):
    """A RESULT, and a REVEAL that does not belong to it."""

    result: Statement
    reveal: Statement


class Undelivered(_Proof, frozen=True):
    """Aggregator `part` says that it could not get its part from `owner`, which committed to one in `commit`; the
    RESULT and REVEAL of all members.
    """

    known: ClassVar[tuple[Phase, ...]] = (Phase.RESULT,)
    part: Rank
    owner: Rank
    commit: Statement
    results: Statements
    reveals: Statements


class Unobtainable(_Proof, frozen=True):
    """The claims of all, most of which miss the aggregate of `part`."""

    part: Rank
    claims: Statements


class Behind(_Proof, frozen=True):
    """The claims of all; the member that is gone missed an aggregate that others had."""

    claims: Statements


class Hidden(_Proof, frozen=True):
    """The CONFIRMs of all, most of which lack what `owner`, by its `commit`, sent to the aggregator of `part`; and the
    CHECKs of the members that heard just these.
    """

    known: ClassVar[tuple[Phase, ...]] = (Phase.CONFIRM,)
    part: Rank
    owner: Rank
    commit: Statement
    confirms: Statements
    checks: Statements


class Recomputed(_Proof, frozen=True):
    """Everything about one part: `rows` are the parts of all contributors by rank, as they were sent, with the `paths`
    that show that they committed to these; `value` is the aggregate.
    """

    known: ClassVar[tuple[Phase, ...]] = (Phase.COMMIT, Phase.RESULT, Phase.REVEAL, Phase.CLAIMS)
    rules: Rules
    commits: Statements
    results: Statements
    reveals: Statements
    claims: Statements
    confirms: Statements
    part: Rank
    rows: Annotated[tuple[Part, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
    paths: Annotated[tuple[MerklePath, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
    value: Part


class Judged(_Proof, frozen=True):
    """What `accuser` said in `accusing`, its COMMIT, and the COMMITs of the next step of those whose judgement decided.

    Where an aggregator covered the accused, its own COMMIT, without that accusation, is in `covering`; `members_then`
    are the members of the accused step by rank, which tell who aggregated the part.
    """

    accuser: Peer
    accusation: Accusation
    accusing: Statement
    judging: Statements
    covering: Statement | None = None
    members_then: Peers = ()


class Admitted(_Proof, frozen=True):
    """Where the members stood when they said `commits`, and the rules that tell how long a probation is."""

    standing: ProtocolState
    rules: Rules
    commits: Statements


class Entered(_Proof, frozen=True):
    """Where the members stood when the witness became one, and what at least half of them signed of that."""

    standing: ProtocolState
    places: Statements


class Unshown(_Proof, frozen=True):
    """What the witness found and cannot show."""


Proof = (
    Contradicted
    | Named
    | Unheard
    | Elsewhere
    | Unopened
    | Undelivered
    | Unobtainable
    | Behind
    | Hidden
    | Recomputed
    | Judged
    | Admitted
    | Entered
    | Unshown
)


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """`peer` left the list of `members` after an attempt, or came to it; `reason` is the name of a `Reason`, None if it
    was away or came.
    """

    peer: Peer
    reason: Annotated[str, msgspec.Meta(max_length=32)] | None
    step: Step
    attempt: Attempt
    members: Peers
    proof: Proof

    @property
    def ban(self) -> Reason | None:
        """Why it was banned. Raises `EvidenceError` for a reason that is none."""
        if self.reason is not None and self.reason not in Reason.__members__:
            raise EvidenceError(f"no reason for a ban: {self.reason!r}", peer=self.peer)
        return None if self.reason is None else Reason[self.reason]


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A case and the signature of the member that wrote it."""

    case: Case
    witness: Digest
    signature: Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]

    @classmethod
    def of(cls, case: Case, identity: Identity, run_id: str) -> Evidence:
        """Sign a case of a run."""
        signature = identity.sign(signed(case, run_id), context=SIGNING_CONTEXT)
        return cls(case, bytes.fromhex(identity.peer_id), signature)

    @property
    def author(self) -> PeerId:
        """The member that wrote it."""
        return PeerId(self.witness.hex())

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


def signed(case: Case, run_id: str) -> bytes:
    """What the witness signs."""
    return msgspec.msgpack.encode((run_id, case))
