"""Verifying evidence offline: from nothing but the evidence itself and the id of the run.

`Quotes` says which statements count. The functions that the live step calls, in
`minga.security.accountability.rulings`, find what follows from them. Digests, the coin and all numbers are computed
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from minga.core.errors import ConfigurationError, ProtocolError
from minga.identity.keys.keys import verify as is_signed
from minga.network.interface import PeerId
from minga.security.accountability import proofs, rulings
from minga.security.accountability.proofs import QUOTED, Case, EvidenceError, Proof, Recomputed
from minga.security.accountability.rulings import is_majority, who_opened_nothing
from minga.security.messaging.voting import tally
from minga.security.parts.equal_parts import EqualParts, value_from_bytes
from minga.security.parts.part_store import PartStore
from minga.security.protocol.attempt_record import AttemptRecord, Terms
from minga.security.protocol.members import PendingAccusations, Reason, coverer, has_passed, heard_by_most
from minga.security.protocol.statements import (
    Charge,
    Claims,
    Commit,
    Confirm,
    Phase,
    Result,
    Revealed,
    Slot,
    StateClaim,
    Statement,
    is_genuine,
    phase_digest,
    read,
)
from minga.security.protocol.step_math import StepMath
from minga.security.randomness.coin import Coin

# ---- Quotes: who said what in the attempt that a case is about, and that most members knew just that.
#
# Theory of operation. Less than half of the members are hostile. So what at least half of them say, an honest one
# says. A set of statements of one phase is the true one if more than half of the members said in the next phase that
# they knew exactly that set: two sets with such a majority would share a member that signed twice, and the honest ones
# would have noticed. Nothing but that is believed.


T = TypeVar("T")


_BODIES: Mapping[int, type[Result | Revealed | Claims | Confirm]] = {
    Phase.RESULT: Result,
    Phase.REVEAL: Revealed,
    Phase.CLAIMS: Claims,
    Phase.CONFIRM: Confirm,
    Phase.CHECK: Confirm,
}
"""What is said in the phases in which the members say how they know the phase before."""


@dataclass(frozen=True)
class Transcript:
    """What the members said in an attempt, as far as a proof holds it, by author."""

    commits: dict[PeerId, Commit]
    results: dict[PeerId, Result]
    reveals: dict[PeerId, Revealed]
    claims: dict[PeerId, Claims]
    confirms: dict[PeerId, Confirm]


class Quotes:
    """Those of the members of one case; whatever is wrong with them raises `EvidenceError`, in the case's name."""

    def __init__(self, case: Case, run_id: str) -> None:
        self.case, self.run_id = case, run_id
        self.members = tuple(map(PeerId, case.members))
        self.peer = PeerId(case.peer)
        """The peer that the case is about."""
        self.coin = Coin(run_id, case.step, case.attempt)

    def error(self, message: str) -> EvidenceError:
        """What is wrong with the case."""
        return EvidenceError(message, peer=self.case.peer, round=self.case.step)

    def require(self, holds: bool, message: str) -> None:
        """Raise `EvidenceError` with this message unless something holds."""
        if not holds:
            raise self.error(message)

    def member(self, rank: int) -> PeerId:
        """The member of a rank."""
        self.require(rank < len(self.members), "there is no member of that rank")
        return self.members[rank]

    def said(self, statements: Iterable[Statement], phase: Phase) -> dict[PeerId, Statement]:
        """Statements of a phase of the attempt, by author; all of members, and one of each."""
        slot = Slot(self.case.step, self.case.attempt, phase)
        said: dict[PeerId, Statement] = {}
        for statement in statements:
            author = statement.author
            self.require(statement.slot == slot, "a statement belongs elsewhere")
            self.require(author in self.members, "a statement is not a member's")
            self.require(author not in said, "two statements are of one member")
            self.require(is_genuine(statement, self.run_id), "a statement was not signed by its author in this run")
            said[author] = statement
        return said

    def transcript(self, proof: Proof) -> Transcript:
        """What a proof holds of the attempt. Of its `known` phases it must have the statements of all members, and
        more than half of them must say in the phase after that they knew exactly these.
        """
        said = {phase: self.said(proof.quoted(phase), phase) for phase in QUOTED}
        for phase in proof.known:
            self.require_all(said[phase])
            later = bodies(said[Phase(phase + 1)], _BODIES[phase + 1]).values()
            count = sum(body.seen == phase_digest(said[phase].values()) for body in later)
            self.require(is_majority(count, self.members), "most members knew other statements than these")
        return Transcript(
            bodies(said[Phase.COMMIT], Commit),
            bodies(said[Phase.RESULT], Result),
            bodies(said[Phase.REVEAL], Revealed),
            bodies(said[Phase.CLAIMS], Claims),
            bodies(said[Phase.CONFIRM], Confirm),
        )

    def require_all(self, said: Mapping[PeerId, object]) -> None:
        """Raise `EvidenceError` unless each member said something."""
        self.require(len(said) == len(self.members), "a member's statement is not there")

    def commit_before(self, statement: Statement, author: PeerId) -> Commit:
        """What a member committed to one step before."""
        slot = statement.slot
        is_there = statement.author == author and slot.phase is Phase.COMMIT and slot.step == self.case.step - 1
        self.require(is_there, "a commitment is not the one of the step before")
        self.require(is_genuine(statement, self.run_id), "a commitment was not signed by its author in this run")
        return read(statement, Commit)


def bodies(said: Mapping[PeerId, Statement], body_type: type[T]) -> dict[PeerId, T]:
    """What statements say, by author. Raises `ProtocolError` if one is malformed."""
    return {peer: read(statement, body_type) for peer, statement in said.items()}


# ---- Evidence about numbers: what happened to one part is computed again from the bytes of all its senders.
#
# The statements of the members say who contributed, namely the members that committed to parts, and by which rules. So
# no sender can be left out, and no bytes can be read in another format than the members read them.


def recompute(words: Quotes, proof: Recomputed, said: Transcript) -> dict[PeerId, Reason]:
    """The peers that have to go by the numbers of the part, and why.

    Raises `EvidenceError`, `ProtocolError`, `ConfigurationError` or `ValueError` if something does not fit together.
    """
    record = _record(words, proof, said)
    terms, store, part = record.terms, record.store, proof.part
    words.member(part)
    senders = terms.contributors
    words.require(len(proof.rows) == len(proof.paths) == len(senders), "the parts are not those of all who contributed")
    sizes = {len(row) for row in proof.rows} | {store.part_bytes[part]}
    words.require(len(sizes) == 1 and bool(proof.value), "the parts are not as long as they have to be")
    words.require(len(proof.value) == store.value_bytes[part], "the aggregate is not as long as it has to be")
    claimed = [record.claims[terms.members[owner]].claims for owner in senders]
    whole = all(len(claims) == len(terms.members) and claims[part] for claims in claimed)
    words.require(whole, "a sender's claim is not there")
    shown = zip(senders, proof.rows, proof.paths, strict=True)
    placed = [store.put_part(owner, part, row, path) for owner, row, path in shown]
    words.require(all(placed) and store.put_value(part, proof.value), "bytes are not those that were committed to")
    record.values[part] = value_from_bytes(proof.value)
    return StepMath(proof.rules.settings).recheck(record, part)


def _record(words: Quotes, proof: Recomputed, said: Transcript) -> AttemptRecord:
    """What all members knew of the attempt, as most of them confirmed; without any bytes."""
    commits, results, reveals = said.commits, said.results, said.reveals
    words.require(all(commit.rules == proof.rules.digest for commit in commits.values()), "the members had other rules")
    words.require(not who_opened_nothing(words.coin, results, reveals), "a commitment to the coin was not opened")
    members = words.members
    division = EqualParts.equal(proof.rules.layout, len(members))
    validators = frozenset(peer for peer, commit in commits.items() if commit.root is None)
    terms = Terms(words.run_id, words.case.step, words.case.attempt, members, validators, division, proof.rules)
    store = PartStore(division.part_bytes, division.value_bytes)
    store.roots = {owner: commits[members[owner]].root or b"" for owner in terms.contributors}
    store.value_digests = {part: results[peer].value or b"" for part, peer in enumerate(members)}
    randomness = words.coin.outcome({peer: body.reveal for peer, body in reveals.items()})
    return AttemptRecord(terms, store, commits, results, said.claims, randomness=randomness)


# ---- The offline check of one case of evidence.


Ruling = tuple[str, Reason | None]
"""A peer and why it has to go; no reason if it was away or came."""


def verify(evidence: proofs.Evidence, run_id: str) -> None:
    """Return if the evidence proves its case. Raises `EvidenceError` if not, with what is wrong."""
    case, author = evidence.case, evidence.author
    words = Quotes(case, run_id)
    its_own = is_signed(author, evidence.signature, proofs.signed(case, run_id), context=proofs.SIGNING_CONTEXT)
    words.require(its_own, "its witness did not sign it")
    is_list = list(case.members) == sorted(set(case.members)) and author in case.members
    words.require(is_list, "its list of members is none, or lacks the witness")
    _check_role(words)
    try:
        is_shown = (words.peer, case.ban) in _rulings(words, case.proof)
    except (ConfigurationError, ProtocolError, ValueError) as error:
        raise words.error(f"its proof contains nonsense: {error}") from error
    words.require(is_shown, "its proof does not show of that peer what it says, or not for the reason that it names")


def _check_role(words: Quotes) -> None:
    """A peer that leaves is a member, unless it is banned as a candidate; a peer that comes is none."""
    proof, is_member = words.case.proof, words.peer in words.members
    if isinstance(proof, proofs.Admitted):
        words.require(not is_member, "it was a member before")
    elif not isinstance(proof, proofs.Judged | proofs.Contradicted):
        words.require(is_member, "its list of members lacks the accused peer")


def _rulings(words: Quotes, proof: proofs.Proof) -> Iterable[Ruling]:
    """The peers that have to go by a proof, and why."""
    members, said = words.members, words.transcript(proof)
    match proof:
        case proofs.Contradicted():
            words.require(proof.proof.holds(words.run_id), "its two statements are no contradiction")
            return [(proof.proof.author, Reason.EQUIVOCATED)]
        case proofs.Named():
            silent = [(peer, Reason.SILENT) for peer in rulings.who_kept_silent(members, said.commits)]
            return [*silent, *((peer, Reason.EQUIVOCATED) for peer in rulings.who_equivocated(members, said.commits))]
        case proofs.Unheard():
            return _unheard(words, proof)
        case proofs.Elsewhere():
            return [(peer, None) for peer in rulings.who_stands_elsewhere(members, said.commits)]
        case proofs.Unopened():
            gone = rulings.who_opened_nothing(words.coin, said.results, said.reveals)
            return [(peer, Reason.SILENT) for peer in gone]
        case proofs.Undelivered():
            _require_parts(words, proof.owner, said)
            words.require_all(said.reveals)
            blamed = rulings.who_withheld(members, said.results, said.reveals)
            ranks = [rank for rank, complaint in blamed.items() if complaint == (proof.part, proof.owner)]
            return [(words.member(rank), Reason.UNDELIVERED) for rank in ranks]
        case proofs.Unobtainable():
            parts = rulings.unobtainable_parts(members, said.claims)
            return [(words.member(part), Reason.UNDELIVERED) for part in parts if part == proof.part]
        case proofs.Behind():
            return [(peer, None) for peer in rulings.who_is_behind(members, said.claims)]
        case proofs.Hidden():
            _require_parts(words, proof.owner, said)
            hidden = (proof.part, proof.owner) in rulings.hidden_parts(members, said.confirms)
            return [(words.member(proof.owner), Reason.UNDELIVERED)] if hidden else []
        case proofs.Recomputed():
            return recompute(words, proof, said).items()
        case proofs.Judged():
            return _judged(words, proof)
        case proofs.Admitted():
            return _admitted(words, proof, said)
        case proofs.Entered():
            return _entered(words, proof)
    raise words.error("it rests on what its witness alone could see")


def _unheard(words: Quotes, proof: proofs.Unheard) -> list[Ruling]:
    words.require(proof.phase <= Phase.CHECK, "there are no votes on votes")
    votes, rank = words.said(proof.votes, proof.phase.vote), words.members.index(words.peer)
    known = [count for (heard, _), count in tally(votes, words.members).items() if heard == rank]
    at_most = max(known, default=0) + len(words.members) - len(votes)
    words.require(not rulings.is_majority(at_most, words.members), "the votes leave open whether most members heard it")
    return [(words.peer, None if proof.phase is Phase.COMMIT else Reason.SILENT)]


def _require_parts(words: Quotes, owner: int, said: Transcript) -> None:
    commit = said.commits.get(words.member(owner))
    words.require(commit is not None and commit.root is not None, "the owner committed to no part")


def _judged(words: Quotes, proof: proofs.Judged) -> list[tuple[PeerId, Reason]]:
    accuser, accusation = PeerId(proof.accuser), proof.accusation
    accused = words.commit_before(proof.accusing, accuser)
    words.require(accusation in accused.accusations, "the accuser did not say that")
    words.require(accusation.charge is not Charge.WITHHELD, "nobody is banned over what a candidate withheld")
    covering = None
    if proof.covering is not None:
        commits = {words.peer: words.commit_before(proof.covering, words.peer)}
        words.require(proof.covering.slot == proof.accusing.slot, "it had not yet to accuse anybody")
        covering = coverer(commits, accusation, words.case.step - 1, proof.members_then)
    judging = bodies(words.said(proof.judging, Phase.COMMIT), Commit)
    return rulings.verdict(words.members, judging, PendingAccusations(accuser, accusation, covering))[0]


def _admitted(words: Quotes, proof: proofs.Admitted, said: Transcript) -> list[Ruling]:
    standing, step = proof.standing, words.case.step
    standing.check()
    there = [commit for commit in said.commits.values() if commit.standing == standing.digest]
    words.require(rulings.is_majority(len(there), words.members), "most members stood elsewhere")
    words.require(all(commit.rules == proof.rules.digest for commit in there), "the members had other rules")
    words.require(standing.step == step, "the members stood there at another step")
    heard = heard_by_most(words.members, said.commits)
    return [
        (peer, None)
        for peer in heard
        if has_passed(peer, standing.membership, step, heard, proof.rules.probation_steps)
    ]


def _entered(words: Quotes, proof: proofs.Entered) -> list[Ruling]:
    standing = proof.standing
    standing.check()
    places = bodies(words.said(proof.places, Phase.STANDING), StateClaim).values()
    there = sum(place.standing == standing.digest for place in places)
    words.require(2 * there >= len(words.members), "most members stood elsewhere")
    words.require(standing.step == words.case.step, "the members stood there at another step")
    words.require(standing.members == words.case.members, "the members were others")
    return [(words.peer, None)]


# ---- Well-formed words: what does not fit the terms of the attempt counts as not said.


def commit_is_sound(terms: Terms, peer: PeerId, body: Commit) -> bool:
    """A digest for each part, none from a validator."""
    return (body.root is None) == (peer in terms.validators)


def result_is_sound(terms: Terms, peer: PeerId, body: Result) -> bool:
    """An aggregate and a radius from a member that aggregates a part, and from no other."""
    aggregates = terms.division.numel(terms.members.index(peer)) > 0
    if aggregates != (body.value is not None) or aggregates != (body.clip > 0.0):
        return False
    return all(rank in terms.contributors for rank in body.silent)


def claims_are_sound(terms: Terms, peer: PeerId, body: Claims) -> bool:
    """A claim about each part whose aggregate the author could get, nothing from a validator."""
    if peer in terms.validators:
        return not body.claims
    if len(body.claims) != len(terms.members) or any(part >= len(terms.members) for part in body.missing):
        return False
    due, count = set(terms.division.parts).difference(body.missing), terms.rules.directions
    return all(
        (claim is not None and len(claim.projections) == count) if part in due else claim is None
        for part, claim in enumerate(body.claims)
    )
