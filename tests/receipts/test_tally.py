"""When a contribution counts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minga.receipts import book
from minga.receipts.attestation import (
    MAX_ENTRIES,
    MAX_TRAVELLING_BYTES,
    Attestation,
    Claim,
    Count,
    JudgedCount,
    pack,
    unpack,
)
from minga.receipts.book import PeerTotals, ReceiptBook
from tests.worlds.receipt_world import IDS, KEYS, RUN, make_count, sign

pytestmark = pytest.mark.promise("receipts")

CLAIM = Claim(4, 4, 100, 50)
WHOLE = PeerTotals(4, 100, 50 * 1024, 1, 1)


def book_of(*counts: Count, attestations: Iterable[Attestation] = ()) -> ReceiptBook:
    made = ReceiptBook()
    for count in counts:
        made.add_count(JudgedCount(count, b"", is_witness=True))
    for attestation in attestations:
        made.add(attestation)
    return made


def totals_of(
    claims: int, signers: Iterable[int], doubters: Iterable[int] = (), witnesses: Iterable[int] = range(12)
) -> PeerTotals:
    """Those of the first member, which so many `signers` attest, some of them with doubts about it."""
    count = make_count(10, [CLAIM] * claims)
    said = [
        sign(KEYS[i], count, doubts=[0] if i in set(doubters) else [], witness=i in set(witnesses)) for i in signers
    ]
    return book_of(count, attestations=said).totals()[IDS[0]]


@pytest.mark.parametrize(
    ("claims", "signers", "doubters", "expected"),
    [
        (5, [0, 1, 2], [], WHOLE),
        (5, [1, 2, 3], [], WHOLE),
        (5, [0, 1], [], PeerTotals(claimed=1)),
        (4, [0, 1], [], PeerTotals(claimed=1)),  # half is not more than half
        (5, [0, 1, 2, 3, 4], [3, 4], WHOLE),
        (5, [0, 1, 2, 3], [2, 3], PeerTotals(claimed=1)),
        (5, [0, 1, 2, 3, 4], [1, 2, 3, 4], PeerTotals(claimed=1)),
        (2, [0, 1], [], WHOLE),
        (2, [0, 1], [1], PeerTotals(claimed=1)),
        (1, [0], [], PeerTotals(claimed=1)),  # nobody attests what is its own alone
    ],
)
def test_more_than_half_have_to_attest(
    claims: int, signers: list[int], doubters: list[int], expected: PeerTotals
) -> None:
    assert totals_of(claims, signers, doubters) == expected
    assert "False" not in repr(totals_of(claims, signers, doubters)), "what is shown is a number"


def test_samples_are_for_the_witnesses_and_the_rest_for_all_members() -> None:
    everybody = range(5)
    assert totals_of(5, everybody, witnesses=[4]) == WHOLE, "one aggregator saw the samples of all others"
    assert totals_of(5, everybody, witnesses=[0]) == PeerTotals(4, 0, 50 * 1024, 0, 1), "its own it saw alone"
    assert totals_of(5, everybody, doubters=[4], witnesses=[3, 4]) == PeerTotals(4, 0, 50 * 1024, 0, 1)
    assert totals_of(5, everybody, doubters=[0, 1, 2], witnesses=[3, 4]) == PeerTotals(0, 100, 0, 0, 1)


def test_members_of_no_count_have_no_word() -> None:
    count = make_count(10, [CLAIM] * 3)
    said = [sign(KEYS[i], count) for i in (0, 5, 6, 7, 8)]
    assert book_of(count, attestations=said).totals()[IDS[0]] == PeerTotals(claimed=1)


def test_steps_count_once_however_often_they_are_claimed() -> None:
    counts = [make_count(10, [CLAIM] * 3), make_count(12, [CLAIM] * 3), make_count(14, [CLAIM] * 3)]
    said = [sign(KEYS[i], *counts) for i in range(3)]
    assert book_of(*counts, attestations=said).totals()[IDS[0]] == PeerTotals(8, 200, 100 * 1024, 2, 3)


def test_after_a_regroup_steps_may_come_again() -> None:
    counts = [make_count(10, [CLAIM] * 3), make_count(10, [CLAIM] * 3, epoch=1)]
    said = [sign(KEYS[i], count) for i in range(3) for count in counts]
    assert book_of(*counts, attestations=said).totals()[IDS[0]].samples == 200


def test_a_member_that_signs_twice_keeps_all_its_doubts() -> None:
    count = make_count(10, [CLAIM] * 2)
    first, second = sign(KEYS[1], count, doubts=[0]), sign(KEYS[1], count, make_count(12, [CLAIM] * 2))
    kept = book_of(count, make_count(12, [CLAIM] * 2), attestations=[first, second, sign(KEYS[0], count)])
    assert kept.totals()[IDS[0]].samples == 0


def test_an_attestation_again_is_no_news() -> None:
    count = make_count(10, [CLAIM] * 3)
    kept, attestation = book_of(count), sign(KEYS[0], count)
    assert kept.add(attestation)
    assert not kept.add(attestation)
    assert not kept.add(sign(KEYS[1], make_count(10, [CLAIM] * 4))), "another count of the same step"
    assert not kept.add_count(JudgedCount(make_count(10, [None] * 3), b"", is_witness=True))


@given(st.sets(st.integers(0, 999)))
def test_doubts_travel(members: set[int]) -> None:
    assert unpack(pack(members)) == members


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=MAX_ENTRIES, unique=True))
def test_an_attestation_travels_without_the_digests(steps: list[int]) -> None:
    counts = [make_count(step, [CLAIM, None]) for step in steps]
    attestation = sign(KEYS[0], *counts, doubts=[1])
    digests = {count.place: count.digest for count in counts}
    received = Attestation.decode(attestation.travelling)
    assert received is not None
    assert received == attestation.without_digests(digests)
    assert received.with_digests(digests) == attestation
    assert attestation.is_genuine(RUN)
    assert received.with_digests({}) is None
    assert len(attestation.travelling) < MAX_TRAVELLING_BYTES


@given(st.binary(max_size=1000))
def test_nonsense_is_no_attestation(data: bytes) -> None:
    assert Attestation.decode(data) is None


def test_of_counts_that_are_dropped_the_totals_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [make_count(10 + 4 * number, [CLAIM] * 3) for number in range(30)]
    said = [sign(KEYS[i], *counts[start : start + 10]) for start in (0, 10, 20) for i in range(3)]
    whole = book_of(*counts, attestations=said).totals()
    monkeypatch.setattr(book, "MAX_CLAIMS", 33)
    small = ReceiptBook()
    for number in range(0, 30, 10):
        for count in counts[number : number + 10]:
            small.add_count(JudgedCount(count, b"", is_witness=True))
        for attestation in said[3 * number // 10 : 3 * number // 10 + 3]:
            small.add(attestation)
    assert len(small) == 11
    assert small.totals() == whole
    assert whole[IDS[0]].samples == 3000
    assert len(list(small.attestations(count.place for count in counts))) == 6
