"""Whose changes of a run count: after the organisers' role was handed over, and when an organiser was barred."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from minga.access.standing_orders import StandingOrders
from minga.core.spec.run_spec import RunSpec
from minga.identity.access import orders as order_types
from minga.identity.access.ledger import AccessLedger, InvalidOrderError, Organisers
from minga.identity.access.orders import Amendment, Regroup, Revocation, Transfer
from minga.identity.keys.keys import Identity, verify

FIRST, SECOND, NEXT = (Identity.from_seed(bytes([i]) * 32) for i in (210, 211, 212))
NOW = 1_800_000_000
SPEC = RunSpec.from_mapping({"name": "changed"}).published({})
RUN = bytes.fromhex(SPEC.run_id)


def key(identity: Identity) -> bytes:
    return bytes.fromhex(identity.peer_id)


def ledger(*organisers: Identity) -> AccessLedger:
    keys = frozenset(each.peer_id for each in organisers or (FIRST,))
    return AccessLedger(SPEC.run_id, Organisers(keys, 1), FIRST.peer_id, is_open=True)


def amendment(number: int, signer: Identity = FIRST, term: int = 0, value: str = "0.5") -> Amendment:
    changes = (("optimizer.learning_rate", value),)
    return Amendment(RUN, term, NOW, (), number, 0, changes).signed_by(signer)


def regroup(number: int, signer: Identity = FIRST, term: int = 0) -> Regroup:
    return Regroup(RUN, term, NOW, (), number, 3, (key(SECOND),)).signed_by(signer)


def transfer(book: AccessLedger) -> Transfer:
    return Transfer(RUN, 0, NOW, (), (key(NEXT),), 1, (), book.standing()).signed_by(FIRST)


def bar(subject: Identity, signer: Identity) -> Revocation:
    return Revocation(RUN, 0, NOW, (), key(subject), 1, "stolen").signed_by(signer)


def test_an_order_is_verified_once_for_each_signer_and_not_at_all_if_it_says_nothing_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []

    def counted(signer: str, *rest: Any, **context: Any) -> bool:
        tried.append(signer)
        return verify(signer, *rest, **context)

    monkeypatch.setattr(order_types, "verify", counted)
    book = ledger(FIRST, SECOND)
    forged = order_types.Signature(key(FIRST), bytes(64))
    many = msgspec.structs.replace(amendment(1), signatures=(forged,) * 8)
    with pytest.raises(InvalidOrderError):
        book.take(many)
    assert tried == [FIRST.peer_id]
    assert book.take(bar(NEXT, FIRST))
    assert len(tried) == 2
    for again in (bar(NEXT, FIRST), msgspec.structs.replace(bar(NEXT, FIRST), signatures=(forged,))):
        assert not book.take(again)
    assert len(tried) == 2


def test_a_retired_organiser_changes_the_run_no_more() -> None:
    book = ledger()
    kept, gone = amendment(1), amendment(1 << 20, value="9.0")
    for order in (kept, regroup(1)):
        assert book.take(order)
    handed_over = transfer(book)
    assert book.take(gone)
    assert book.take(regroup(1 << 20))
    assert book.take(handed_over)
    assert [each.id for each in book.amendments] == [kept.id]
    assert [each.number for each in book.regroups] == [1]
    assert not book.take(gone)
    assert not book.take(regroup(7))
    assert not book.take(amendment(2))
    assert book.amendments.next_number == 2, "its numbers do not block those of its successors"
    assert book.take(amendment(2, NEXT, term=1))
    with pytest.raises(InvalidOrderError, match="0 of the 1"):
        book.take(amendment(3, FIRST, term=1))


def test_a_newcomer_takes_the_changes_that_were_handed_over_in_any_order_and_no_others() -> None:
    book = ledger()
    kept = amendment(1)
    assert book.take(kept)
    handed_over = transfer(book)
    for orders in ((handed_over, kept), (kept, handed_over)):
        newcomer = ledger()
        assert [newcomer.take(order) for order in orders] == [True, True]
        assert not newcomer.take(amendment(2))
        assert list(newcomer.orders()) == [handed_over, kept]


def test_the_changes_of_a_barred_organiser_are_void_for_members_and_newcomers_alike() -> None:
    member, newcomer = ledger(FIRST, SECOND), ledger(FIRST, SECOND)
    stolen, honest = amendment(5, FIRST), amendment(1, SECOND, value="0.1")
    for order in (stolen, honest, regroup(1, FIRST)):
        assert member.take(order)
    assert member.amendments.due(0) == (stolen.id,)
    assert member.take(bar(FIRST, SECOND))
    for order in member.orders():
        assert newcomer.take(order)
    assert not newcomer.take(stolen), "and a peer that passes it on in good faith is not to blame"
    with pytest.raises(InvalidOrderError):
        newcomer.take(amendment(6, NEXT))
    assert member.amendments.due(0) == newcomer.amendments.due(0) == (honest.id,)
    assert list(member.regroups) == list(newcomer.regroups) == []
    assert stolen.id in member.amendments, "a round that began by it ends by it"
    assert member.amendments.changes([stolen.id]) == {"optimizer.learning_rate": "0.5"}


def test_a_change_whose_other_signer_was_barred_lacks_that_signature() -> None:
    """Where two have to sign, what is left is the word of one."""
    organisers = Organisers(frozenset(each.peer_id for each in (FIRST, SECOND, NEXT)), 2)
    member, newcomer = (AccessLedger(SPEC.run_id, organisers, FIRST.peer_id, is_open=True) for _ in range(2))
    change = amendment(1, FIRST).signed_by(SECOND)
    assert member.take(change)
    assert member.amendments.due(0) == (change.id,)
    for signer in (SECOND, NEXT):
        assert member.take(bar(FIRST, signer))
    for order in member.orders():
        assert newcomer.take(order)
    assert not newcomer.take(change)
    assert member.amendments.due(0) == newcomer.amendments.due(0) == ()


def test_a_later_regroup_takes_the_place_of_one_that_is_void() -> None:
    book = ledger(FIRST, SECOND)
    false = regroup(1 << 20, FIRST)
    assert book.take(false)
    orders = StandingOrders(SPEC, book)
    assert orders.regroup(0) == false
    assert orders.regroup(false.epoch) is None
    assert book.take(bar(FIRST, SECOND))
    assert orders.regroup(false.epoch) is None, "there is none to follow yet"
    true = regroup(1, SECOND)
    assert book.take(true)
    assert orders.regroup(false.epoch) == true
    assert orders.regroup(true.epoch) is None


def test_what_counts_does_not_depend_on_what_was_heard_first() -> None:
    """One bars another; a third one, who has not heard of it, hands over and lets the other's orders stand."""
    barred, change, again = bar(SECOND, signer=NEXT), amendment(1, signer=SECOND), regroup(1, signer=SECOND)
    books = [ledger(FIRST, SECOND, NEXT) for _ in range(2)]
    for book in books:
        assert book.take(change)
        assert book.take(again)
    hand = Transfer(RUN, 0, NOW, (), (key(FIRST),), 1, books[0].all_barred(), books[0].standing()).signed_by(FIRST)
    for book, order in zip(books, ((barred, hand), (hand, barred)), strict=True):
        for each in order:
            book.take(each)
    newcomer = ledger(FIRST, SECOND, NEXT)
    for each in books[0].orders():
        newcomer.take(each)
    for book in (*books, newcomer):
        assert [each.id for each in book.amendments] == [change.id]
        assert [each.epoch for each in book.regroups] == [again.epoch]
