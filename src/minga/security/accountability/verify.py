"""Verifying evidence offline: from nothing but the evidence itself and the id of the run.

Which statements count is in `minga.security.accountability.quotes`. What follows from them is found by the functions
that the live step calls, in `minga.security.accountability.rulings`. Digests, the coin and all numbers are computed
again.
"""

from __future__ import annotations

from collections.abc import Iterable

from minga.core.errors import ConfigurationError, ProtocolError
from minga.identity.keys.keys import verify as is_signed
from minga.network.interface import PeerId
from minga.security.accountability import proofs, rulings
from minga.security.accountability.quotes import Quotes, Transcript, bodies
from minga.security.accountability.verify_recomputed import recompute
from minga.security.messaging.voting import tally
from minga.security.protocol.members import Reason
from minga.security.protocol.pending_accusations import PendingAccusations, coverer
from minga.security.protocol.probation import has_passed, heard_by_most
from minga.security.protocol.statements import Charge, Commit, Phase, StateClaim

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
