"""Verifying evidence about numbers: what happened to one part is computed again from the bytes of all its senders.

The caller has made sure that the statements are those that the members of the attempt knew. They say who contributed
(whoever committed to parts), and by which rules; so neither can a sender be left out, nor bytes be read in another
format than the members read them.
"""

from __future__ import annotations

from collections.abc import Mapping

from minga.network._interface import PeerId
from minga.security._arithmetic import Arithmetic
from minga.security._delivery import Cargo
from minga.security._division import Division, value_from_bytes
from minga.security._evidence import Case, EvidenceError, Recomputed
from minga.security._ledger import Reason
from minga.security._record import Record, Terms
from minga.security._wire import Claims, Commit, Result, Revealed


def recompute(
    case: Case,
    run_id: str,
    proof: Recomputed,
    commits: Mapping[PeerId, Commit],
    results: Mapping[PeerId, Result],
    reveals: Mapping[PeerId, Revealed],
    claims: Mapping[PeerId, Claims],
) -> tuple[Reason, ...]:
    """Why the peer of the case has to go, by the numbers of the part; empty if it has not.

    Raises `EvidenceError`, `ConfigurationError` or `ValueError` if something does not fit together.
    """

    def require(holds: bool, words: str) -> None:
        if not holds:
            raise EvidenceError(words, peer=case.peer, round=case.step)

    require(all(commit.rules == proof.rules.digest for commit in commits.values()), "the members had other rules")
    terms = _terms(case, run_id, proof, commits)
    part, division = proof.part, terms.division
    count = len(terms.members)
    senders = [terms.members[owner] for owner in terms.contributors]
    require(len(proof.rows) == len(proof.paths) == len(senders), "the parts are not those of all who contributed")
    sizes = {len(row) for row in proof.rows} | {division.part_bytes[part]}
    require(len(sizes) == 1 and bool(proof.value), "the parts are not as long as they have to be")
    require(len(proof.value) == division.value_bytes[part], "the aggregate is not as long as it has to be")
    opened = all(terms.coin.opens(results[peer].coin, peer, body.reveal) for peer, body in reveals.items())
    require(opened, "a commitment to the coin was not opened")
    whole = all(len(claims[peer].claims) == count and claims[peer].claims[part] for peer in senders)
    require(whole, "a sender's claim is not there")

    cargo = Cargo(division.part_bytes, division.value_bytes)
    cargo.roots = {owner: commits[terms.members[owner]].root or b"" for owner in terms.contributors}
    cargo.value_digests = {part: results[terms.members[part]].value or b""}
    shown = zip(terms.contributors, proof.rows, proof.paths, strict=True)
    placed = [cargo.put_part(owner, part, row, path) for owner, row, path in shown]
    require(all(placed) and cargo.put_value(part, proof.value), "bytes are not those that were committed to")
    record = Record(terms, cargo, dict(commits), dict(results), dict(claims), {part: value_from_bytes(proof.value)})
    record.randomness = terms.coin.outcome({peer: body.reveal for peer, body in reveals.items()})
    reason = Arithmetic(proof.rules.settings).recheck(record, part).get(PeerId(case.peer))
    return () if reason is None else (reason,)


def _terms(case: Case, run_id: str, proof: Recomputed, commits: Mapping[PeerId, Commit]) -> Terms:
    members = tuple(map(PeerId, case.members))
    division = Division.equal(proof.rules.layout, [True] * len(members))
    validators = frozenset(peer for peer, commit in commits.items() if commit.root is None)
    return Terms(run_id, case.step, case.attempt, members, validators, division, proof.rules)
