"""The authorizer of a peer that knows many members."""

from __future__ import annotations

import functools

import pytest

from minga.access.admission import Admission
from minga.identity.access.ledger import AccessLedger, Organisers, draft_range_ban
from minga.identity.access.orders import Grant
from minga.identity.access.token import Token
from minga.identity.keys import keys
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.rpc.run_clock import RunClock

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
    verified = keys._verified.cache_info().misses
    for _ in range(3):
        now_s[0] += 1.0
        assert not admission.ended()
    assert keys._verified.cache_info().misses == verified
