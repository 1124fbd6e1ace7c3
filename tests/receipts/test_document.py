"""A file of receipts: what it proves, and that nothing in it can be changed."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import pytest

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.orders import Grant
from minga.identity.access.token import Token
from minga.identity.keys.keys import Identity
from minga.identity.links.signed_spec import SignedRunSpec
from minga.receipts import document
from minga.receipts.attestation import Claim, JudgedCount
from minga.receipts.book import BookEntry, PeerTotals, ReceiptBook
from minga.receipts.document import (
    MAGIC,
    ReceiptDocument,
    ReceiptError,
    VerifiedReceipts,
    verify_document,
    write_document,
)
from tests.worlds.receipt_world import IDS, KEYS, make_count, sign
from tests.worlds.swarm_tools import make_spec

ORGANISER = Identity.from_seed(bytes(32))
OPEN = make_spec(16)
MEMBERS = make_spec(16, security={"admission": "members"})


def book_of(spec: RunSpec, *, counts: int = 3, signers: int = 4) -> ReceiptBook:
    """Four members, of which the second makes no claim in the first count."""
    book = ReceiptBook()
    made = []
    for number in range(counts):
        claims = [Claim(4, 4, 100 + index, 50) for index in range(4)]
        made.append(make_count(10 + 5 * number, claims if number else [claims[0], None, *claims[2:]]))
        book.add_count(JudgedCount(made[-1], b"", is_witness=True))
    for key in KEYS[:signers]:
        book.add(sign(key, *made, run=spec.run_id))
    return book


def file_of(spec: RunSpec = OPEN, **facts: Any) -> bytes:
    return write_document(book_of(spec, **facts), SignedRunSpec.sign(spec, ORGANISER), IDS[1])


def check(data: bytes, spec: RunSpec = OPEN) -> VerifiedReceipts:
    return verify_document(data, spec.run_id, ORGANISER.peer_id)


def changed(data: bytes, **changes: Any) -> bytes:
    document = msgspec.msgpack.decode(zlib.decompress(data[len(MAGIC) :]), type=ReceiptDocument)
    return MAGIC + zlib.compress(msgspec.msgpack.encode(msgspec.structs.replace(document, **changes)))


def opened(data: bytes) -> ReceiptDocument:
    return msgspec.msgpack.decode(zlib.decompress(data[len(MAGIC) :]), type=ReceiptDocument)


def parts(data: bytes) -> tuple[list[BookEntry], list[BookEntry]]:
    """The entries of a file that have counts, and those that have attestations."""
    entries = opened(data).entries
    return [each for each in entries if each.count], [each for each in entries if each.attestation]


def grant_of(peer: str, signer: Identity) -> Grant:
    unsigned = Grant(bytes.fromhex(MEMBERS.run_id), 0, 1000, (), bytes.fromhex(peer), 0, 1, 2000)
    return unsigned.signed_by(signer)


def test_a_file_proves_what_it_is_about_and_on_whose_word() -> None:
    proven = check(file_of())
    assert proven.subject == IDS[1]
    assert {peer: total.samples for peer, total in proven.totals.items()} == {IDS[1]: 202}
    assert (proven.counts, proven.attesters, proven.strangers, proven.seen_by_organiser) == (2, 4, 0, 0)
    assert proven.steps == (15, 20)
    everybody = verify_document(write_document(book_of(OPEN), SignedRunSpec.sign(OPEN, ORGANISER)))
    assert {total.samples for total in everybody.totals.values()} == {300, 202, 306, 309}
    assert everybody.subject is None


def test_too_few_signatures_prove_nothing() -> None:
    proven = check(file_of(signers=2))
    assert proven.totals[IDS[1]].samples == 0
    assert proven.totals[IDS[1]].claimed == 2


def test_a_file_about_nothing_is_not_written() -> None:
    with pytest.raises(ConfigurationError, match="there are none of"):
        write_document(book_of(OPEN), SignedRunSpec.sign(OPEN, ORGANISER), IDS[9])
    with pytest.raises(ConfigurationError, match="no receipts yet"):
        write_document(ReceiptBook(), SignedRunSpec.sign(OPEN, ORGANISER))


def test_a_changed_claim_makes_all_signatures_wrong() -> None:
    data = file_of()
    (first, *_), _ = parts(data)
    assert first.count is not None
    more = tuple(Claim(4, 4, 10**6, 50) if claim else None for claim in first.count.count.claims)
    inflated = msgspec.structs.replace(first.count.count, claims=more)
    entry = msgspec.structs.replace(first, count=msgspec.structs.replace(first.count, count=inflated))
    with pytest.raises(ReceiptError, match="signature"):
        check(changed(data, entries=(entry, *opened(data).entries[1:])))


def test_removed_doubts_other_attesters_and_other_steps_make_a_signature_wrong() -> None:
    data = file_of()
    counts, (signed, *others) = parts(data)
    first, other = signed.attestation, others[0].attestation
    assert first is not None
    assert other is not None
    entry = first.entries[-1]
    for change in (
        {"key": other.key},
        {"epoch": 1},
        {"entries": (*first.entries[:-1], msgspec.structs.replace(entry, doubts=b"\x01"))},
        {"entries": (*first.entries[:-1], msgspec.structs.replace(entry, step=entry.step - 1))},
        {"entries": (*first.entries[:-1], msgspec.structs.replace(entry, step=entry.step + 2))},
        {"entries": first.entries[::-1]},
        {"signature": bytes(64)},
    ):
        forged = BookEntry(attestation=msgspec.structs.replace(first, **change))
        with pytest.raises(ReceiptError, match="signature"):
            check(changed(data, entries=(*counts, forged, *others)))


def test_what_is_there_twice_counts_once_or_is_refused() -> None:
    data = file_of()
    counts, attestations = parts(data)
    assert check(changed(data, entries=(*counts, *attestations, *attestations))).totals == check(data).totals
    with pytest.raises(ReceiptError, match="twice"):
        check(changed(data, entries=counts * 2))


def test_a_small_file_that_would_take_all_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = file_of()
    monkeypatch.setattr(document, "MAX_CLAIMS", 7)
    with pytest.raises(ReceiptError, match="more than 7 claims"):
        check(data)
    monkeypatch.setattr(document, "MAX_UNPACKED_BYTES", 100)
    with pytest.raises(ReceiptError, match="too large"):
        check(data)


def test_another_run_and_another_organiser_are_told() -> None:
    other = make_spec(32)
    with pytest.raises(ReceiptError, match="another run"):
        check(file_of(), other)
    with pytest.raises(ReceiptError, match="another run"):
        verify_document(file_of(), OPEN.run_id, IDS[0])
    moved = changed(file_of(), spec=SignedRunSpec.sign(other, ORGANISER).encode())
    with pytest.raises(ReceiptError, match="signature"):
        check(moved, other)
    with pytest.raises(ReceiptError, match="run spec"):
        verify_document(changed(file_of(), spec=b"\x00"))


def test_damage_is_told_wherever_it_is() -> None:
    data = file_of()
    for size in (0, 5, len(MAGIC), len(data) // 2, len(data) - 1):
        with pytest.raises(ReceiptError):
            check(data[:size])
    for place in range(0, len(data), 29):
        with pytest.raises(ReceiptError):
            check(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
    with pytest.raises(ReceiptError, match="too large"):
        check(data + b"more")
    assert check(changed(data, subject=bytes(32))).totals == {"00" * 32: PeerTotals()}


def test_in_a_run_for_members_only_admitted_keys_have_a_word() -> None:
    book = book_of(MEMBERS)
    signed = SignedRunSpec.sign(MEMBERS, ORGANISER)
    assert check(write_document(book, signed, IDS[1]), MEMBERS).totals[IDS[1]].samples == 0
    for peer in IDS[:2]:
        book.tokens[peer] = Token(grant_of(peer, ORGANISER)).encode()
    proven = check(write_document(book, signed, IDS[1]), MEMBERS)
    assert (proven.attesters, proven.strangers, proven.totals[IDS[1]].samples) == (2, 2, 0)
    book.tokens[IDS[2]] = Token(grant_of(IDS[2], KEYS[5])).encode()  # another key than the organiser's signed it
    book.tokens[IDS[3]] = Token(grant_of(IDS[2], ORGANISER)).encode()  # it admits another peer
    assert check(write_document(book, signed, IDS[1]), MEMBERS).strangers == 2
    book.tokens[IDS[2]] = Token(grant_of(IDS[2], ORGANISER)).encode()
    proven = check(write_document(book, signed, IDS[1]), MEMBERS)
    assert (proven.attesters, proven.strangers, proven.totals[IDS[1]].samples) == (3, 1, 202)
    assert proven.is_for_members
