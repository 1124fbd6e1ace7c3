"""Verifying evidence about numbers: what happened to one part is computed again from the bytes of all its senders.

The statements of the members say who contributed (whoever committed to parts), and by which rules; so neither can a
sender be left out, nor bytes be read in another format than the members read them.
"""

from __future__ import annotations

from minga.security.accountability.proofs import Recomputed
from minga.security.accountability.quotes import Quotes, bodies
from minga.security.parts.equal_parts import EqualParts, value_from_bytes
from minga.security.parts.part_store import PartStore
from minga.security.protocol.attempt_record import AttemptRecord, Terms
from minga.security.protocol.members import Reason
from minga.security.protocol.statements import Claims, Commit, Confirm, Phase, Result, Revealed
from minga.security.protocol.step_math import StepMath


def recompute(words: Quotes, proof: Recomputed) -> tuple[Reason, ...]:
    """Why the peer of the case has to go, by the numbers of the part; empty if it has not.

    Raises `EvidenceError`, `ProtocolError`, `ConfigurationError` or `ValueError` if something does not fit together.
    """
    record = _record(words, proof)
    terms, cargo, part = record.terms, record.cargo, proof.part
    words.member(part)
    senders = terms.contributors
    words.require(len(proof.rows) == len(proof.paths) == len(senders), "the parts are not those of all who contributed")
    sizes = {len(row) for row in proof.rows} | {cargo.part_bytes[part]}
    words.require(len(sizes) == 1 and bool(proof.value), "the parts are not as long as they have to be")
    words.require(len(proof.value) == cargo.value_bytes[part], "the aggregate is not as long as it has to be")
    claimed = [record.claims[terms.members[owner]].claims for owner in senders]
    whole = all(len(claims) == len(terms.members) and claims[part] for claims in claimed)
    words.require(whole, "a sender's claim is not there")
    shown = zip(senders, proof.rows, proof.paths, strict=True)
    placed = [cargo.put_part(owner, part, row, path) for owner, row, path in shown]
    words.require(all(placed) and cargo.put_value(part, proof.value), "bytes are not those that were committed to")
    record.values[part] = value_from_bytes(proof.value)
    reason = StepMath(proof.rules.settings).recheck(record, part).get(words.peer)
    return () if reason is None else (reason,)


def _record(words: Quotes, proof: Recomputed) -> AttemptRecord:
    """What all members knew of the attempt, as most of them confirmed; without any bytes."""
    committed, stated = words.everybody(proof.commits, Phase.COMMIT), words.everybody(proof.results, Phase.RESULT)
    revealed, claimed = words.everybody(proof.reveals, Phase.REVEAL), words.everybody(proof.claims, Phase.CLAIMS)
    commits, results = bodies(committed, Commit), bodies(stated, Result)
    reveals, claims = bodies(revealed, Revealed), bodies(claimed, Claims)
    words.require_known(committed, results)
    words.require_known(stated, reveals)
    words.require_known(revealed, claims)
    words.require_known(claimed, bodies(words.said(proof.confirms, Phase.CONFIRM), Confirm))
    words.require(all(commit.rules == proof.rules.digest for commit in commits.values()), "the members had other rules")
    opened = all(words.coin.opens(results[peer].coin, peer, body.reveal) for peer, body in reveals.items())
    words.require(opened, "a commitment to the coin was not opened")
    members = words.members
    division = EqualParts.equal(proof.rules.layout, len(members))
    validators = frozenset(peer for peer, commit in commits.items() if commit.root is None)
    terms = Terms(words.run_id, words.case.step, words.case.attempt, members, validators, division, proof.rules)
    cargo = PartStore(division.part_bytes, division.value_bytes)
    cargo.roots = {owner: commits[members[owner]].root or b"" for owner in terms.contributors}
    cargo.value_digests = {part: results[peer].value or b"" for part, peer in enumerate(members)}
    randomness = words.coin.outcome({peer: body.reveal for peer, body in reveals.items()})
    return AttemptRecord(terms, cargo, commits, results, claims, randomness=randomness)
