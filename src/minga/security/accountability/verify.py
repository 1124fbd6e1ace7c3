"""Verifying evidence offline: from nothing but the evidence itself and the id of the run.

Whose words count is in `minga.security.accountability.quotes`; here is, for each kind of proof, what has to follow
from them. Digests, the coin and all numbers are computed again.
"""

from __future__ import annotations

from collections import Counter

from minga.core.errors import ConfigurationError, ProtocolError
from minga.identity.keys.keys import verify as is_signed
from minga.network.interface import PeerId
from minga.security.accountability.proofs import (
    SIGNING_CONTEXT,
    Admitted,
    Behind,
    Contradicted,
    Elsewhere,
    Entered,
    Evidence,
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
from minga.security.accountability.quotes import Quotes, bodies
from minga.security.accountability.rulings import who_withheld
from minga.security.accountability.verify_membership import require_admission, require_place
from minga.security.accountability.verify_recomputed import recompute
from minga.security.messaging.voting import heard
from minga.security.protocol.members import Reason
from minga.security.protocol.statements import (
    Charge,
    Claims,
    Commit,
    Confirm,
    Judgement,
    Phase,
    Result,
    Revealed,
    Statement,
)

Reasons = tuple[Reason | None, ...]
"""Why the peer of a case has to go, None if it was away or came; empty if a proof shows nothing."""


def verify(evidence: Evidence, run_id: str) -> None:
    """Return if the evidence proves its case. Raises `EvidenceError` if not, with what is wrong."""
    case, author = evidence.case, evidence.author
    words = Quotes(case, run_id)
    its_own = is_signed(author, evidence.signature, signed(case, run_id), context=SIGNING_CONTEXT)
    words.require(its_own, "its witness did not sign it")
    is_list = list(case.members) == sorted(set(case.members)) and author in case.members
    words.require(is_list, "its list of members is none, or lacks the witness")
    _check_role(words)
    try:
        shown = _reasons(words)
    except (ConfigurationError, ProtocolError, ValueError) as error:
        raise words.error(f"its proof contains nonsense: {error}") from error
    words.require(case.ban in shown, "its proof does not show the reason that it names")


def _check_role(words: Quotes) -> None:
    """Whoever leaves is a member, unless it is banned as a candidate; whoever comes is none."""
    proof, is_member = words.case.proof, words.peer in words.members
    if isinstance(proof, Admitted):
        words.require(not is_member, "it was a member before")
    elif not isinstance(proof, Judged | Contradicted):
        words.require(is_member, "its list of members lacks who is accused")


def _reasons(words: Quotes) -> Reasons:
    """Why the peer of a case has to go, by its proof."""
    match words.case.proof:
        case Contradicted() as proof:
            words.require(proof.proof.author == words.peer, "its two statements are somebody else's")
            words.require(proof.proof.holds(words.run_id), "its two statements are no contradiction")
            return (Reason.EQUIVOCATED,)
        case Named() as proof:
            return _named(words, proof)
        case Unheard() as proof:
            return _unheard(words, proof)
        case Elsewhere() as proof:
            return _elsewhere(words, proof)
        case Unopened() as proof:
            return _unopened(words, proof)
        case Undelivered() as proof:
            return _undelivered(words, proof)
        case Unobtainable() as proof:
            return _unobtainable(words, proof)
        case Behind() as proof:
            return _behind(words, proof)
        case Hidden() as proof:
            return _hidden(words, proof)
        case Recomputed() as proof:
            return recompute(words, proof)
        case Judged() as proof:
            return _judged(words, proof)
        case Admitted() as proof:
            require_admission(words, proof)
            return (None,)
        case Entered() as proof:
            require_place(words, proof)
            return (None,)
    raise words.error("it rests on what its witness alone could see")


def _named(words: Quotes, proof: Named) -> Reasons:
    commits = bodies(words.said(proof.commits, Phase.COMMIT), Commit).values()
    proven = sum(words.peer in commit.equivocators for commit in commits)
    unheard = sum(words.peer in commit.unheard for commit in commits)
    counts = {Reason.EQUIVOCATED: proven, Reason.SILENT: unheard}
    return tuple(reason for reason, count in counts.items() if words.is_majority(count))


def _unheard(words: Quotes, proof: Unheard) -> Reasons:
    words.require(proof.phase <= Phase.CHECK, "there are no votes on votes")
    votes = words.said(proof.votes, proof.phase.vote)
    rank, count = words.members.index(words.peer), len(words.members)
    known = Counter(entry for vote in votes.values() for entry in heard(vote, count) if entry[0] == rank)
    at_most = max(known.values(), default=0) + count - len(votes)
    words.require(not words.is_majority(at_most), "the votes leave open whether most members heard it")
    return (None,) if proof.phase is Phase.COMMIT else (Reason.SILENT,)


def _elsewhere(words: Quotes, proof: Elsewhere) -> Reasons:
    commits = bodies(words.said(proof.commits, Phase.COMMIT), Commit)
    places = Counter(commit.place for commit in commits.values())
    right, count = places.most_common(1)[0] if places else (None, 0)
    words.require(words.is_majority(count), "no majority of the members stands anywhere")
    words.require(words.peer in commits and commits[words.peer].place != right, "it stands where most do")
    return (None,)


def _unopened(words: Quotes, proof: Unopened) -> Reasons:
    result = bodies(words.said([proof.result], Phase.RESULT), Result)
    reveal = bodies(words.said([proof.reveal], Phase.REVEAL), Revealed)
    words.require(words.peer in result and words.peer in reveal, "the statements are somebody else's")
    opens = words.coin.opens(result[words.peer].coin, words.peer, reveal[words.peer].reveal)
    words.require(not opens, "what it revealed belongs to what it committed to")
    return (Reason.SILENT,)


def _undelivered(words: Quotes, proof: Undelivered) -> Reasons:
    aggregator, owner = words.member(proof.part), words.member(proof.owner)
    stated = words.everybody(proof.results, Phase.RESULT)
    results, reveals = bodies(stated, Result), bodies(words.everybody(proof.reveals, Phase.REVEAL), Revealed)
    words.require_known(stated, reveals)
    _require_parts(words, owner, proof.commit)
    words.require(proof.owner in results[aggregator].silent, "the aggregator does not complain")
    gone = {words.member(rank): complaint for rank, complaint in who_withheld(words.members, results, reveals).items()}
    words.require(gone.get(words.peer) == (proof.part, proof.owner), "others are to blame, or for something else")
    return (Reason.UNDELIVERED,)


def _require_parts(words: Quotes, owner: PeerId, commit: Statement) -> None:
    commits = bodies(words.said([commit], Phase.COMMIT), Commit)
    words.require(owner in commits and commits[owner].root is not None, "the owner committed to no part")


def _unobtainable(words: Quotes, proof: Unobtainable) -> Reasons:
    claims = bodies(words.said(proof.claims, Phase.CLAIMS), Claims)
    words.require(words.peer == words.member(proof.part), "somebody else aggregated that part")
    missing = sum(proof.part in body.missing for body in claims.values())
    words.require(words.is_majority(missing), "most members could get the aggregate")
    return (Reason.UNDELIVERED,)


def _behind(words: Quotes, proof: Behind) -> Reasons:
    claims = bodies(words.said(proof.claims, Phase.CLAIMS), Claims)
    words.require(words.peer in claims, "what it claims is not there")
    missing = Counter(part for body in claims.values() for part in set(body.missing))
    absent = len(words.members) - len(claims)
    had = [part for part in claims[words.peer].missing if not words.is_majority(missing[part] + absent)]
    words.require(bool(had), "it misses nothing that others have")
    return (None,)


def _hidden(words: Quotes, proof: Hidden) -> Reasons:
    owner = words.member(proof.owner)
    confirms = words.everybody(proof.confirms, Phase.CONFIRM)
    words.require_known(confirms, bodies(words.said(proof.checks, Phase.CHECK), Confirm))
    _require_parts(words, owner, proof.commit)
    words.require(words.peer == owner, "somebody else owns that part")
    wanted = (proof.part, proof.owner)
    lacking = sum(wanted in body.lacking for body in bodies(confirms, Confirm).values())
    words.require(words.is_majority(lacking), "most members could get the part")
    return (Reason.UNDELIVERED,)


def _judged(words: Quotes, proof: Judged) -> Reasons:
    accuser, accusation = PeerId(proof.accuser), proof.accusation
    accused = words.commit_before(proof.accusing, accuser)
    words.require(accusation in accused.accusations, "the accuser did not say that")
    words.require(accusation.charge is not Charge.WITHHELD, "nobody is banned over what a candidate withheld")
    judging = bodies(words.said(proof.judging, Phase.COMMIT), Commit).values()

    def most_find(guilty: bool) -> bool:
        said = Judgement(accuser, accusation, guilty)
        return words.is_majority(sum(said in commit.judgements for commit in judging))

    if not most_find(guilty=True):
        words.require(most_find(guilty=False), "no majority of the members judged")
        words.require(words.peer == accuser, "the accuser is somebody else")
        return (Reason.FALSE_ACCUSATION,)
    if accusation.charge is Charge.GRADIENT or proof.covering is None:
        words.require(words.peer == accusation.target, "somebody else was accused")
        return (Reason.WRONG_GRADIENT if accusation.charge is Charge.GRADIENT else Reason.FALSE_CLAIMS,)
    then, part = proof.members_then, accusation.part
    words.require(part < len(then) and then[part] == words.peer, "somebody else aggregated that part")
    covering = words.commit_before(proof.covering, words.peer)
    words.require(proof.covering.slot == proof.accusing.slot, "it had not yet to accuse anybody")
    words.require(accusation not in covering.accusations, "it accused the liar itself")
    return (Reason.COVERED,)
