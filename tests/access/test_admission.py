"""The authorizer of a peer that knows many members."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from minga.access.admission import ATTEMPT_S, ENTRY_ATTEMPTS, Admission, Entrance
from minga.core.errors import RejectedError, UnreachableError
from minga.core.refusal_code import RefusalCode
from minga.identity.access.ledger import AccessLedger, Organisers, draft_range_ban
from minga.identity.access.orders import Grant, Transfer
from minga.identity.access.token import Token
from minga.identity.keys import keys
from minga.identity.keys.keys import Identity
from minga.network.interface import Address, PeerId
from minga.network.rpc.run_clock import RunClock
from tests.worlds.swarm_tools import virtually

RUN = "ab" * 32
NOW = 1_000_000


def test_a_banned_range_lets_nobody_verify_all_tokens_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_verified", functools.lru_cache(8)(keys._verify_digest))
    organiser, invitation, own, *members = (Identity.from_seed(bytes([number]) * 32) for number in range(33))
    grant = Grant(
        bytes.fromhex(RUN), 0, NOW - 1, (), bytes.fromhex(invitation.peer_id), len(members) + 1, 1, 2 * NOW
    ).signed_by(organiser)
    ledger = AccessLedger(RUN, Organisers(frozenset({organiser.peer_id}), 1), organiser.peer_id)
    ban = draft_range_ban(ledger, "203.0.113.0/24", NOW + 1000, "", NOW - 1).signed_by(organiser)
    ledger.ranges.take(organiser.peer_id, ban)
    now_s = [float(NOW)]
    clock = RunClock(lambda: now_s[0], lambda: now_s[0])
    admission = Admission(PeerId(own.peer_id), clock, Token.by_invitation(grant, invitation, own.peer_id))
    admission.enforce(ledger)
    for member in members:
        admission.meet(PeerId(member.peer_id), Token.by_invitation(grant, invitation, member.peer_id).encode())
    assert not admission.ended()
    looks, in_force = list[float](), ledger.ranges.in_force
    monkeypatch.setattr(ledger.ranges, "in_force", lambda needed, at: (looks.append(at), in_force(needed, at))[1])
    verified = keys._verified.cache_info().misses
    for _ in range(3):
        now_s[0] += 1.0
        assert not admission.ended()
    assert keys._verified.cache_info().misses == verified
    assert looks == [NOW + 1.0, NOW + 2.0, NOW + 3.0], "one look at the bans for all peers"


def test_until_a_newcomer_has_entered_an_entry_may_tell_of_later_organisers_and_nothing_else() -> None:
    organiser, heir, own, member, liar, stranger = (Identity.from_seed(bytes([40 + i]) * 32) for i in range(6))

    def admitted(peer: Identity) -> bytes:
        subject = bytes.fromhex(peer.peer_id)
        return Token(Grant(bytes.fromhex(RUN), 1, NOW, (), subject, 0, 1, 2 * NOW).signed_by(heir)).encode()

    ledger = AccessLedger(RUN, Organisers(frozenset({organiser.peer_id}), 1), organiser.peer_id)
    transfer = Transfer(bytes.fromhex(RUN), 0, NOW, (), (bytes.fromhex(heir.peer_id),), 1).signed_by(organiser)
    admission = Admission(PeerId(own.peer_id), RunClock(lambda: float(NOW), lambda: float(NOW)))
    by_heir, of_heir, by_nobody, of_stranger = (PeerId(each.peer_id) for each in (member, heir, liar, stranger))
    admission.entries = frozenset({by_heir, of_heir, by_nobody})
    shown = {by_heir: admitted(member), of_heir: b"", by_nobody: admitted(member), of_stranger: admitted(stranger)}
    for peer in (by_heir, of_stranger):
        admission.meet(peer, shown[peer])
    assert admission.enforce(ledger) == [of_stranger]
    for peer in (of_heir, by_nobody):
        admission.meet(peer, shown[peer])
    for peer in admission.entries:
        assert admission.permits(peer, "access.orders")
        assert not admission.permits(peer, "board.exchange")
        assert not admission.admits(peer, "address")
        with pytest.raises(RejectedError):
            admission.confirm(peer)
    assert admission.take([transfer]) == []
    admission.confirm(of_heir)
    assert admission.end_entering() == [by_nobody]
    assert {peer for peer in shown if admission.permits(peer, "board.exchange")} == {by_heir, of_heir}
    with pytest.raises(RejectedError):
        admission.meet(by_nobody, shown[by_nobody])


def test_who_may_be_admitted_by_heirs_that_are_not_known_here_is_told_so_and_judged_by_the_orders_it_brings() -> None:
    organiser, heir, own, *others = (Identity.from_seed(bytes([60 + i]) * 32) for i in range(5))
    run = bytes.fromhex(RUN)

    def token(peer: Identity, signer: Identity) -> Token:
        return Token(Grant(run, 1, NOW, (), bytes.fromhex(peer.peer_id), 0, 1, 2 * NOW).signed_by(signer))

    def refusal(peer: Identity, credential: bytes) -> RefusalCode:
        with pytest.raises(RejectedError) as refused:
            admission.meet(PeerId(peer.peer_id), credential)
        return refused.value.code

    ledger = AccessLedger(RUN, Organisers(frozenset({organiser.peer_id}), 1), organiser.peer_id)
    transfer = Transfer(run, 0, NOW, (), (bytes.fromhex(heir.peer_id),), 1).signed_by(organiser)
    admission = Admission(PeerId(own.peer_id), RunClock(lambda: NOW, lambda: NOW), token(own, heir))
    admission.enforce(ledger)
    admission.entries = frozenset({PeerId(heir.peer_id)})
    assert admission.end_entering() == []
    assert admission.ended() == {}, "nobody told yet who gave it this peer's access"
    member, liar = others
    assert refusal(liar, b"") is RefusalCode.ACCESS
    for peer, credential in ((heir, b""), (member, token(member, heir).encode())):
        assert refusal(peer, credential) is RefusalCode.ORDERS
        assert admission.permits(PeerId(peer.peer_id), "access.orders")
        assert not admission.permits(PeerId(peer.peer_id), "board.exchange")
    assert admission.take([transfer]) == []
    admission.meet(PeerId(heir.peer_id), b"")
    admission.meet(PeerId(member.peer_id), token(member, heir).encode())
    assert refusal(liar, token(liar, organiser).encode()) is RefusalCode.ACCESS
    assert admission.ended() == {}


@virtually
async def test_an_entry_that_lacks_orders_or_is_busy_ends_no_attempts_to_enter_by_another_one() -> None:
    stale, other = (Address(PeerId(digit * 64)) for digit in "12")
    dials: Counter[Address] = Counter()

    async def meet(_: PeerId) -> None:
        pass

    async def dial(entry: Address) -> None:
        dials[entry] += 1
        if entry is stale:
            raise RejectedError("of term 1", code=RefusalCode.ORDERS)
        if error := answers.pop(0):
            raise error

    async def enter() -> None:
        dials.clear()
        await Entrance(node, node, [stale, other], meet).enter()

    clock = SimpleNamespace(time_at=lambda _: 1.0, enter_by=lambda *_: None)
    node: Any = SimpleNamespace(dial=dial, clock=clock, synchronise=meet)
    silence = UnreachableError("no answer")
    answers: list[Exception | None] = [silence, RejectedError("enough exchanges", code=RefusalCode.BUSY), None]
    await enter()
    answers = [silence] * ENTRY_ATTEMPTS
    with pytest.raises(RejectedError, match="of term 1"):
        await enter()
    assert dials == {stale: ENTRY_ATTEMPTS, other: ENTRY_ATTEMPTS}
    begun_s = asyncio.get_running_loop().time()
    answers = [RejectedError("no room", code=RefusalCode.FULL), RejectedError("no room", code=RefusalCode.FULL), None]
    await enter()
    assert asyncio.get_running_loop().time() - begun_s == 2 * ATTEMPT_S, "who says so at once may have room soon"
    answers = [RejectedError("banned", code=RefusalCode.BANNED)]
    with pytest.raises(RejectedError, match="banned"):
        await enter()
    assert dials == {stale: 1, other: 1}
