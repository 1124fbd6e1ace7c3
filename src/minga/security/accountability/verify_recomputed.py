"""Verifying evidence about numbers: what happened to one part is computed again from the bytes of all its senders.

The statements of the members say who contributed, namely the members that committed to parts, and by which rules. So no
sender can be left out, and no bytes can be read in another format than the members read them.
"""

from __future__ import annotations

from minga.network.interface import PeerId
from minga.security.accountability.proofs import Recomputed
from minga.security.accountability.quotes import Quotes, Transcript
from minga.security.accountability.rulings import who_opened_nothing
from minga.security.parts.equal_parts import EqualParts, value_from_bytes
from minga.security.parts.part_store import PartStore
from minga.security.protocol.attempt_record import AttemptRecord, Terms
from minga.security.protocol.members import Reason
from minga.security.protocol.step_math import StepMath


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
