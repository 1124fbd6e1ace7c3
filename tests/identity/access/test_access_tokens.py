"""Access tokens, orders of organisers and the ledger that follows from them, without any network."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.core.errors import LinkError
from minga.identity.access.ledger import (
    CLOCK_SKEW_S,
    MAX_WATCH_S,
    AccessLedger,
    InvalidOrderError,
    NoAccessError,
    Organisers,
)
from minga.identity.access.orders import MAX_TERMS, Barred, Grant, Revocation, Transfer
from minga.identity.access.token import MAX_TOKEN_BYTES, Login, Token
from minga.identity.keys.keys import Identity
from minga.identity.links.links import EntryPoint, Link, LinkAccess
from minga.network.authorizer import MAX_CREDENTIAL_BYTES

pytestmark = pytest.mark.promise("who-may-take-part")

RUN, OTHER_RUN = "ab" * 32, "cd" * 32
A, B, C, PEER, OTHER, GUEST = (Identity.from_seed(bytes([i]) * 32) for i in range(1, 7))
NOW, HOUR_S = 1_000_000_000, 3600
ONE, TWO_OF_THREE = (A,), (A, B, C)


def key(identity: Identity) -> bytes:
    return bytes.fromhex(identity.peer_id)


def ledger(organisers: tuple[Identity, ...] = ONE, needed: int = 1) -> AccessLedger:
    return AccessLedger(RUN, Organisers(frozenset(o.peer_id for o in organisers), needed), A.peer_id)


def grant(*signers: Identity, subject: Identity = PEER, **changes: Any) -> Grant:
    fields = {"run": RUN, "term": 0, "issued": NOW, "uses": 0, "version": 1, "expires": NOW + HOUR_S, **changes}
    made = Grant(
        bytes.fromhex(fields["run"]), fields["term"], fields["issued"], (), key(subject),
        fields["uses"], fields["version"], fields["expires"],
    )  # fmt: skip
    for signer in signers or (A,):
        made = made.signed_by(signer)
    return made


def revocation(
    signer: Identity, subject: Identity = PEER, version: int = 1, term: int = 0, why: str = ""
) -> Revocation:
    return Revocation(bytes.fromhex(RUN), term, NOW, (), key(subject), version, why).signed_by(signer)


def transfer(
    *signers: Identity, to: tuple[Identity, ...] = (B,), needed: int = 1, term: int = 0, **more: Any
) -> Transfer:
    made = Transfer(bytes.fromhex(RUN), term, NOW, (), tuple(map(key, to)), needed, **more)
    for signer in signers:
        made = made.signed_by(signer)
    return made


def refusal(book: AccessLedger, token: Token | None, peer: Identity = PEER, now: float = NOW) -> str:
    with pytest.raises(NoAccessError) as caught:
        book.check(token, peer.peer_id, now)
    return str(caught.value)


# ---- tokens


def test_organisers_and_who_signed_the_spec_need_no_token() -> None:
    book = AccessLedger(RUN, Organisers(frozenset({B.peer_id}), 1), A.peer_id)
    assert book.check(None, A.peer_id, NOW).expires is None
    assert book.check(None, B.peer_id, NOW).expires is None
    assert "for members only" in refusal(book, None)
    assert PEER.peer_id in refusal(book, None), "who reads it can pass it on to the organiser"
    assert "join with the new link" in refusal(book, None), "the old one admits nobody, whoever is admitted"


def test_an_invitation_admits_who_has_its_secret() -> None:
    invitation = LinkAccess(grant(subject=GUEST, uses=3), GUEST.seed)
    token = invitation.token_for(PEER.peer_id)
    access = ledger().check(token, PEER.peer_id, NOW)
    assert (access.invitation, access.uses) == (GUEST.peer_id, 3)
    assert "another peer" in refusal(ledger(), token, OTHER), "replayed by another key"
    assert "another peer" in refusal(ledger(), Token(grant(subject=GUEST, uses=3))), "without the secret"
    assert "another peer" in refusal(ledger(), Token(grant(subject=GUEST, uses=3)), GUEST), "an invitation is no peer"


@pytest.mark.parametrize(
    ("token", "cause"),
    [
        (Token(grant(run=OTHER_RUN)), "another run"),
        (Token(grant(subject=OTHER)), "another peer"),
        (Token(grant(B)), "0 of the 1 organisers"),
        (Token(grant(term=1)), "of term 1"),
        (Token(msgspec.structs.replace(grant(), expires=NOW + 2 * HOUR_S)), "0 of the 1 organisers"),
        (Token(msgspec.structs.replace(grant(), signatures=())), "0 of the 1 organisers"),
        (Token(grant(issued=NOW + 1921)), "not valid yet"),
        (Token(grant(expires=NOW - 121)), "expired"),
        (Token(grant(), b"x" * 64), "another peer"),
        (Token(None), "grants nothing"),
    ],
)
def test_what_is_no_token_is_refused_in_words(token: Token, cause: str) -> None:
    assert cause in refusal(ledger(), token)


@pytest.mark.parametrize("skew_s", [-CLOCK_SKEW_S, -60, 60, CLOCK_SKEW_S])
def test_clocks_may_differ(skew_s: float) -> None:
    book, token = ledger(), Token(grant())
    book.check(token, PEER.peer_id, NOW + skew_s)
    book.check(token, PEER.peer_id, NOW + HOUR_S + skew_s)
    book.check(Token(grant(issued=NOW + 1800)), PEER.peer_id, NOW + skew_s)


@given(st.binary(max_size=MAX_TOKEN_BYTES + 8))
def test_garbage_is_no_token(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"access token"):
        Token.decode(body)


def test_no_truncation_and_no_changed_byte_passes() -> None:
    body, book = Token(grant()).encode(), ledger()
    for end in range(len(body)):
        with pytest.raises(ValueError, match="access token"):
            Token.decode(body[:end])
    for index in range(len(body)):
        changed = bytearray(body)
        changed[index] ^= 1
        try:
            token = Token.decode(bytes(changed))
        except ValueError:
            continue
        refusal(book, token)


def test_the_largest_token_fits() -> None:
    many = tuple(Identity.from_seed(bytes([i]) * 32) for i in range(50, 57))
    access = LinkAccess(grant(*many, subject=GUEST, uses=10_000, version=2**53, expires=1 << 40), GUEST.seed)
    token = access.token_for(PEER.peer_id)
    watched = Token.for_watcher(RUN, PEER, token, OTHER.peer_id, NOW + HOUR_S)
    assert len(watched.encode()) <= MAX_TOKEN_BYTES
    login = Token.by_login(access.grant, GUEST, PEER.peer_id, Login("n" * 64, 1 << 40))
    named = Token.for_watcher(RUN, PEER, login, OTHER.peer_id, NOW + HOUR_S)
    assert MAX_TOKEN_BYTES - 100 < len(named.encode()) <= MAX_TOKEN_BYTES == MAX_CREDENTIAL_BYTES
    book = ledger(many, 7)
    assert book.check(token, PEER.peer_id, NOW).uses == 10_000
    assert book.check(watched, OTHER.peer_id, NOW).only_watches
    assert book.check(named, OTHER.peer_id, NOW).only_watches
    assert book.check(login, PEER.peer_id, NOW).name == "n" * 64
    link = Link(RUN, A.peer_id, (EntryPoint(A.peer_id, ("192.0.2.1:9",)),), access)
    assert Link.parse(str(link)) == link


def test_a_second_signature_of_one_organiser_counts_once() -> None:
    once = grant(A)
    twice = msgspec.structs.replace(once, signatures=once.signatures * 2)
    assert "1 of the 2" in refusal(ledger(TWO_OF_THREE, 2), Token(twice))
    ledger(TWO_OF_THREE, 2).check(Token(grant(A, C)), PEER.peer_id, NOW)


# ---- who looks on


def test_a_member_lets_another_key_look_on() -> None:
    book, mine = ledger(), Token(grant())
    token = Token.for_watcher(RUN, PEER, mine, OTHER.peer_id, NOW + HOUR_S)
    assert book.check(token, OTHER.peer_id, NOW).only_watches
    assert book.check(Token.for_watcher(RUN, A, None, OTHER.peer_id, NOW + 9), OTHER.peer_id, NOW).only_watches
    assert "another peer" in refusal(book, token, GUEST)
    assert "expired" in refusal(book, token, OTHER, NOW + HOUR_S + 121)
    far = Token.for_watcher(RUN, PEER, mine, OTHER.peer_id, NOW + MAX_WATCH_S + 121)
    assert "longer" in refusal(book, far, OTHER)
    assert "for members only" in refusal(book, Token.for_watcher(RUN, PEER, None, OTHER.peer_id, NOW + 9), OTHER)
    chained = msgspec.structs.replace(token, watch=Token.for_watcher(RUN, OTHER, token, GUEST.peer_id, NOW + 9).watch)
    assert "another peer" in refusal(book, chained, GUEST), "who only looks on lets nobody look on"
    book.take(revocation(A, GUEST))
    assert "barred this peer" in refusal(book, Token.for_watcher(RUN, PEER, mine, GUEST.peer_id, NOW + 9), GUEST)
    book.take(revocation(A))
    assert "barred" in refusal(book, token, OTHER)


# ---- revocations


def test_a_revocation_wins_over_admissions_of_its_version_and_below() -> None:
    book = ledger()
    assert book.take(revocation(A, version=5, why="sent nonsense"))
    assert not book.take(revocation(A, version=5))
    assert not book.take(revocation(A, version=4))
    for version in (1, 5):
        assert "barred this peer from the run: sent nonsense" in refusal(book, Token(grant(version=version)))
    assert book.next_version == 6
    later = LinkAccess(grant(subject=GUEST, uses=3, version=6), GUEST.seed)
    assert "barred this peer" in refusal(book, later.token_for(PEER.peer_id)), "what is for many lifts nobody's ban"
    book.check(later.token_for(OTHER.peer_id), OTHER.peer_id, NOW)
    book.check(Token(grant(version=6)), PEER.peer_id, NOW)


def test_who_ends_an_invitation_ends_what_came_of_it() -> None:
    book = ledger()
    token = LinkAccess(grant(subject=GUEST, uses=3), GUEST.seed).token_for(PEER.peer_id)
    book.take(revocation(A, GUEST))
    assert "barred this invitation" in refusal(book, token)


def test_organisers_who_disagree_come_to_the_same_end_in_any_order() -> None:
    # One admits with the version with which another bars; two bar each other.
    orders = [revocation(A, PEER, 3), revocation(B, PEER, 2), revocation(A, B, 4), revocation(B, A, 4)]
    ends = set()
    for order in itertools.permutations(orders):
        book = ledger((A, B), 1)
        for item in order:
            book.take(item)
        ends.add((tuple(book.barred()), refusal(book, Token(grant(B, version=3))), refusal(book, None, B)))
    assert len(ends) == 1


def test_several_organisers_have_to_bar_where_several_have_to_sign() -> None:
    book, token = ledger(TWO_OF_THREE, 2), Token(grant(A, B, version=4))
    book.take(revocation(A, version=6))
    assert (book.barred(), book.proposed()) == ({}, {PEER.peer_id: 1})
    book.check(token, PEER.peer_id, NOW)
    book.take(revocation(C, version=3))
    book.check(token, PEER.peer_id, NOW)  # so far they agree only on what was granted up to version 3
    book.take(revocation(C, version=7))
    assert "barred" in refusal(book, token)
    assert book.proposed() == {}


def test_a_barred_organiser_signs_nothing_any_more() -> None:
    book, token = ledger((A, B), 1), Token(grant(B))
    book.check(token, PEER.peer_id, NOW)
    book.take(revocation(A, B, 9))
    assert "0 of the 1" in refusal(book, token)
    with pytest.raises(InvalidOrderError, match="0 of the 1"):
        book.take(transfer(B))
    assert book.take(revocation(B, OTHER)), "but what it bars stays barred"


@pytest.mark.parametrize(
    "order",
    [
        revocation(PEER, A),
        msgspec.structs.replace(revocation(A), version=9),
        msgspec.structs.replace(revocation(A), signatures=()),
        msgspec.structs.replace(revocation(A), run=bytes(32)),
        revocation(A, term=1),
        transfer(PEER),
        transfer(A, needed=2),
        transfer(A, to=(B, B)),
        transfer(A, term=1),
    ],
)
def test_what_is_no_order_changes_nothing(order: Transfer | Revocation) -> None:
    book = ledger()
    with pytest.raises(InvalidOrderError):
        book.take(order)
    assert not list(book.orders())
    assert book.term == 0


# ---- the organisers' role


def test_the_role_is_handed_over() -> None:
    book = ledger()
    book.take(revocation(A, OTHER))
    assert book.take(transfer(A, to=(B, C), needed=2, barred=book.all_barred()))
    assert (book.term, book.organisers) == (1, Organisers(frozenset({B.peer_id, C.peer_id}), 2))
    assert "barred" in refusal(book, Token(grant(subject=OTHER)), OTHER), "who was barred stays so"
    book.check(Token(grant()), PEER.peer_id, NOW)  # who was admitted stays so, too
    assert "1 of the 2" in refusal(book, Token(grant(B, term=1)))
    book.check(Token(grant(B, C, term=1)), PEER.peer_id, NOW)
    assert not book.take(revocation(A, PEER)), "the old organiser bars nobody any more"
    assert not book.take(transfer(A, to=(PEER,))), "and the first transfer of a term stays"
    newcomer = ledger()
    for order in book.orders():
        newcomer.take(order)
    assert newcomer.organisers == book.organisers
    assert newcomer.barred() == book.barred()


def test_transfers_have_an_end() -> None:
    book = ledger()
    for term in range(MAX_TERMS - 1):
        assert book.take(transfer(A, to=(A,), term=term))
    assert not book.take(transfer(A, to=(A,), term=MAX_TERMS - 1))


def test_transfers_are_bounded() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(
            msgspec.msgpack.encode(transfer(A, barred=(Barred(key(PEER), 1),) * 7001)), type=Transfer
        )


# ---- links


def test_links_carry_what_admits() -> None:
    entries = (EntryPoint(A.peer_id, ("192.0.2.1:9",)),)
    invitation = LinkAccess(grant(subject=GUEST, uses=1), GUEST.seed)
    link = Link(RUN, A.peer_id, entries, invitation)
    assert Link.parse(str(link)) == link
    assert len(str(link)) < 600
    with pytest.raises(LinkError, match="another run"):
        Link(RUN, A.peer_id, entries, LinkAccess(grant(run=OTHER_RUN)))
    with pytest.raises(LinkError, match=f"admits the peer {PEER.peer_id[:10]} and no other"):
        LinkAccess(grant()).token_for(OTHER.peer_id)


@pytest.mark.parametrize(
    "access",
    [
        LinkAccess(grant(subject=GUEST, uses=1), OTHER.seed),
        LinkAccess(grant(subject=GUEST, uses=1)),
        LinkAccess(grant(), PEER.seed),
        LinkAccess(grant(subject=GUEST, uses=1), b"short"),
    ],
)
def test_a_secret_that_does_not_fit_is_no_link(access: LinkAccess) -> None:
    with pytest.raises(LinkError, match="does not understand"):
        Link.parse(str(Link(RUN, A.peer_id, (EntryPoint(A.peer_id),), access)))
