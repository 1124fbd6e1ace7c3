"""Verifying evidence offline: from nothing but the evidence itself and the id of the run.

Theory of operation. Less than half of the members are hostile. So whatever at least half of them say, an honest one
says. A set of statements of one phase is the true one if more than half of the members said in the next phase that they
knew exactly that set: two sets with such a majority would share a member that signed twice, and the honest ones would
have noticed. Nothing but that is believed: digests, the coin and all numbers are computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from minga.core._errors import ConfigurationError, ProtocolError
from minga.identity._keys import verify as is_signed
from minga.network._interface import PeerId
from minga.security._agreement import heard
from minga.security._evidence import (
    SIGNING_CONTEXT,
    Admitted,
    Behind,
    Case,
    Contradicted,
    Elsewhere,
    Entered,
    Evidence,
    EvidenceError,
    Hidden,
    Judged,
    Named,
    Recomputed,
    Undelivered,
    Unheard,
    Unobtainable,
    Unopened,
    signed,
)
from minga.security._evidence_coming import require_admission, require_place
from minga.security._evidence_recomputed import recompute
from minga.security._ledger import Reason
from minga.security._randomness import Coin
from minga.security._slots import digest_of
from minga.security._wire import (
    Charge,
    Claims,
    Commit,
    Confirm,
    Judgement,
    Phase,
    Place,
    Result,
    Revealed,
    Slot,
    Statement,
    is_genuine,
    read,
)

T = TypeVar("T")


def verify(evidence: Evidence, run_id: str) -> None:
    """Return if the evidence proves its case. Raises `EvidenceError` if not, with what is wrong."""
    case, author = evidence.case, evidence.author
    if not is_signed(author, evidence.signature, signed(case, run_id), context=SIGNING_CONTEXT):
        raise _error(case, "its witness did not sign it")
    if list(case.members) != sorted(set(case.members)) or author not in case.members:
        raise _error(case, "its list of members is none, or lacks the witness")
    _check_role(case)
    try:
        shown = _Check(case, run_id).reasons()
    except (ConfigurationError, ProtocolError, ValueError) as error:
        raise _error(case, f"its proof contains nonsense: {error}") from error
    if case.ban not in shown:
        raise _error(case, "its proof does not show the reason that it names")


def _error(case: Case, words: str) -> EvidenceError:
    return EvidenceError(words, peer=case.peer, round=case.step)


def _check_role(case: Case) -> None:
    """Whoever leaves is a member, unless it is banned as a candidate; whoever comes is none."""
    is_member = case.peer in case.members
    if isinstance(case.proof, Admitted) and is_member:
        raise _error(case, "it was a member before")
    if not isinstance(case.proof, Admitted | Judged | Contradicted) and not is_member:
        raise _error(case, "its list of members lacks who is accused")


class _Check:
    """Of one case."""

    def __init__(self, case: Case, run_id: str) -> None:
        self._case, self._run_id = case, run_id
        self._members = tuple(map(PeerId, case.members))
        self._peer = PeerId(case.peer)

    def reasons(self) -> tuple[Reason | None, ...]:
        """Why its peer has to go, by its proof."""
        match self._case.proof:
            case Contradicted() as proof:
                self._require(proof.proof.author == self._peer, "its two statements are somebody else's")
                self._require(proof.proof.holds(self._run_id), "its two statements are no contradiction")
                return (Reason.EQUIVOCATED,)
            case Named() as proof:
                return self._named(proof)
            case Unheard() as proof:
                return self._unheard(proof)
            case Elsewhere() as proof:
                return self._elsewhere(proof)
            case Unopened() as proof:
                return self._unopened(proof)
            case Undelivered() as proof:
                return self._undelivered(proof)
            case Unobtainable() as proof:
                return self._unobtainable(proof)
            case Behind() as proof:
                return self._behind(proof)
            case Hidden() as proof:
                return self._hidden(proof)
            case Recomputed() as proof:
                return self._recomputed(proof)
            case Judged() as proof:
                return self._judged(proof)
            case Admitted() as proof:
                require_admission(self._case, proof, self._bodies(self._said(proof.commits, Phase.COMMIT), Commit))
                return (None,)
            case Entered() as proof:
                require_place(self._case, proof, self._bodies(self._said(proof.places, Phase.STANDING), Place))
                return (None,)
        raise _error(self._case, "it rests on what its witness alone could see")

    # ---- each kind of proof

    def _named(self, proof: Named) -> tuple[Reason | None, ...]:
        commits = self._bodies(self._said(proof.commits, Phase.COMMIT), Commit).values()
        proven = sum(self._case.peer in commit.equivocators for commit in commits)
        unheard = sum(self._case.peer in commit.unheard for commit in commits)
        counts = {Reason.EQUIVOCATED: proven, Reason.SILENT: unheard}
        return tuple(reason for reason, count in counts.items() if 2 * count > len(self._members))

    def _unheard(self, proof: Unheard) -> tuple[Reason | None, ...]:
        self._require(proof.phase <= Phase.CHECK, "there are no votes on votes")
        votes = self._said(proof.votes, proof.phase.vote)
        rank, count = self._members.index(self._peer), len(self._members)
        known = Counter(entry for vote in votes.values() for entry in heard(vote, count) if entry[0] == rank)
        at_most = max(known.values(), default=0) + count - len(votes)
        self._require(2 * at_most <= count, "the votes leave open whether most members heard it")
        return (None,) if proof.phase is Phase.COMMIT else (Reason.SILENT,)

    def _elsewhere(self, proof: Elsewhere) -> tuple[Reason | None, ...]:
        commits = self._bodies(self._said(proof.commits, Phase.COMMIT), Commit)
        places = Counter(commit.place for commit in commits.values())
        right, count = places.most_common(1)[0] if places else (None, 0)
        self._require(2 * count > len(self._members), "no majority of the members stands anywhere")
        self._require(self._peer in commits and commits[self._peer].place != right, "it stands where most do")
        return (None,)

    def _unopened(self, proof: Unopened) -> tuple[Reason | None, ...]:
        result = self._bodies(self._said([proof.result], Phase.RESULT), Result)
        reveal = self._bodies(self._said([proof.reveal], Phase.REVEAL), Revealed)
        self._require(self._peer in result and self._peer in reveal, "the statements are somebody else's")
        opens = self._coin.opens(result[self._peer].coin, self._peer, reveal[self._peer].reveal)
        self._require(not opens, "what it revealed belongs to what it committed to")
        return (Reason.SILENT,)

    def _undelivered(self, proof: Undelivered) -> tuple[Reason | None, ...]:
        aggregator, owner = self._member(proof.part), self._member(proof.owner)
        said = self._everybody(proof.results, Phase.RESULT)
        results = self._bodies(said, Result)
        reveals = self._bodies(self._everybody(proof.reveals, Phase.REVEAL), Revealed)
        self._require_majority(reveals, said)
        commit = self._bodies(self._said([proof.commit], Phase.COMMIT), Commit)
        self._require(owner in commit and commit[owner].root is not None, "the owner committed to no part")
        self._require(proof.owner in results[aggregator].silent, "the aggregator does not complain")
        delivered = sum((proof.part, proof.owner) in reveal.delivered for reveal in reveals.values())
        guilty = aggregator if 2 * delivered > len(self._members) else owner
        self._require(self._peer == guilty, "the other one of owner and aggregator is to blame")
        return (Reason.UNDELIVERED,)

    def _unobtainable(self, proof: Unobtainable) -> tuple[Reason | None, ...]:
        claims = self._bodies(self._said(proof.claims, Phase.CLAIMS), Claims)
        self._require(self._peer == self._member(proof.part), "somebody else aggregated that part")
        missing = sum(proof.part in body.missing for body in claims.values())
        self._require(2 * missing > len(self._members), "most members could get the aggregate")
        return (Reason.UNDELIVERED,)

    def _behind(self, proof: Behind) -> tuple[Reason | None, ...]:
        claims = self._bodies(self._said(proof.claims, Phase.CLAIMS), Claims)
        self._require(self._peer in claims, "what it claims is not there")
        missing = Counter(part for body in claims.values() for part in set(body.missing))
        absent = len(self._members) - len(claims)
        had = [part for part in claims[self._peer].missing if 2 * (missing[part] + absent) <= len(self._members)]
        self._require(bool(had), "it misses nothing that others have")
        return (None,)

    def _hidden(self, proof: Hidden) -> tuple[Reason | None, ...]:
        owner = self._member(proof.owner)
        said = self._everybody(proof.confirms, Phase.CONFIRM)
        self._require_majority(self._bodies(self._said(proof.checks, Phase.CHECK), Confirm), said)
        commit = self._bodies(self._said([proof.commit], Phase.COMMIT), Commit)
        self._require(owner in commit and commit[owner].root is not None, "the owner committed to no part")
        self._require(self._peer == owner, "somebody else owns that part")
        wanted = (proof.part, proof.owner)
        lacking = sum(wanted in body.lacking for body in self._bodies(said, Confirm).values())
        self._require(2 * lacking > len(self._members), "most members could get the part")
        return (Reason.UNDELIVERED,)

    def _recomputed(self, proof: Recomputed) -> tuple[Reason | None, ...]:
        commits = self._everybody(proof.commits, Phase.COMMIT)
        results = self._everybody(proof.results, Phase.RESULT)
        reveals = self._everybody(proof.reveals, Phase.REVEAL)
        claims = self._everybody(proof.claims, Phase.CLAIMS)
        confirms = self._said(proof.confirms, Phase.CONFIRM)
        self._member(proof.part)
        result, reveal = self._bodies(results, Result), self._bodies(reveals, Revealed)
        claimed = self._bodies(claims, Claims)
        self._require_majority(result, commits)
        self._require_majority(reveal, results)
        self._require_majority(claimed, reveals)
        self._require_majority(self._bodies(confirms, Confirm), claims)
        return recompute(self._case, self._run_id, proof, self._bodies(commits, Commit), result, reveal, claimed)

    def _judged(self, proof: Judged) -> tuple[Reason | None, ...]:
        accuser, accusation = PeerId(proof.accuser), proof.accusation
        accused = _commit_before(self._case, proof.accusing, accuser, self._run_id)
        self._require(accusation in accused.accusations, "the accuser did not say that")
        judging = self._bodies(self._said(proof.judging, Phase.COMMIT), Commit)
        verdicts = [
            verdict
            for verdict in (True, False)
            if 2 * sum(Judgement(accuser, accusation, verdict) in commit.judgements for commit in judging.values())
            > len(self._members)
        ]
        self._require(bool(verdicts), "no majority of the members judged")
        if not verdicts[0]:
            self._require(self._peer == accuser, "the accuser is somebody else")
            return (Reason.FALSE_ACCUSATION,)
        if accusation.charge is Charge.GRADIENT:
            self._require(self._peer == accusation.target, "somebody else was accused")
            return (Reason.WRONG_GRADIENT,)
        if proof.covering is None:
            self._require(self._peer == accusation.target, "somebody else was accused")
            return (Reason.FALSE_CLAIMS,)
        then, part = proof.members_then, accusation.part
        self._require(part < len(then) and then[part] == self._peer, "somebody else aggregated that part")
        covering = _commit_before(self._case, proof.covering, self._peer, self._run_id)
        self._require(proof.covering.slot == proof.accusing.slot, "it had not yet to accuse anybody")
        self._require(accusation not in covering.accusations, "it accused the liar itself")
        return (Reason.COVERED,)

    # ---- what all have in common

    def _require(self, holds: bool, words: str) -> None:
        if not holds:
            raise _error(self._case, words)

    def _member(self, rank: int) -> PeerId:
        self._require(rank < len(self._members), "there is no member of that rank")
        return self._members[rank]

    def _said(self, statements: Iterable[Statement], phase: Phase) -> dict[PeerId, Statement]:
        """Statements of this attempt, by author; all of members, and one of each."""
        slot = Slot(self._case.step, self._case.attempt, phase)
        said: dict[PeerId, Statement] = {}
        for statement in statements:
            author = statement.author
            self._require(statement.slot == slot, "a statement belongs elsewhere")
            self._require(author in self._members, "a statement is not a member's")
            self._require(author not in said, "two statements are of one member")
            self._require(is_genuine(statement, self._run_id), "a statement was not signed by its author in this run")
            said[author] = statement
        return said

    def _everybody(self, statements: Iterable[Statement], phase: Phase) -> dict[PeerId, Statement]:
        said = self._said(statements, phase)
        self._require(len(said) == len(self._members), "a member's statement is not there")
        return said

    def _bodies(self, said: Mapping[PeerId, Statement], body_type: type[T]) -> dict[PeerId, T]:
        return {peer: read(statement, body_type) for peer, statement in said.items()}

    def _require_majority(
        self, later: Mapping[PeerId, Result | Revealed | Claims | Confirm], said: Mapping[PeerId, Statement]
    ) -> None:
        """More than half must have known exactly what was said before."""
        digest = digest_of(said.values())
        count = sum(body.seen == digest for body in later.values())
        self._require(2 * count > len(self._members), "most members knew other statements than these")

    @property
    def _coin(self) -> Coin:
        return Coin(self._run_id, self._case.step, self._case.attempt)


def _commit_before(case: Case, statement: Statement, author: PeerId, run_id: str) -> Commit:
    """What somebody committed to one step before."""
    slot = statement.slot
    if statement.author != author or slot.phase is not Phase.COMMIT or slot.step != case.step - 1:
        raise _error(case, "a commitment is not the one of the step before")
    if not is_genuine(statement, run_id):
        raise _error(case, "a commitment was not signed by its author in this run")
    return read(statement, Commit)
