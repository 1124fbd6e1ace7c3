"""What the doctor says of a machine that the organisers of a run banned, from their orders alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from minga.cli.diagnosing.hops import OwnAccess, _try_entry
from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.identity.access.ledger import AccessLedger, Organisers, draft_range_ban, draft_revocation
from minga.identity.access.token import Token
from minga.identity.keys.keys import Identity
from minga.identity.links.links import EntryPoint, Link

RUN, NOW = "ab" * 32, 1_700_000_000
ORGANISER, ME = (Identity.from_seed(bytes([seed] * 32)) for seed in (1, 2))
LINK = Link(RUN, ORGANISER.peer_id, (EntryPoint(ORGANISER.peer_id, ("127.0.0.1:9",), None),))


def ledger(*, is_open: bool = True) -> AccessLedger:
    return AccessLedger(RUN, Organisers(frozenset([ORGANISER.peer_id]), 1), ORGANISER.peer_id, is_open=is_open)


def mine(*endpoints: str) -> OwnAccess:
    return OwnAccess(ME, None, endpoints)


def test_a_machine_that_no_order_bans_may_take_part() -> None:
    ok, said, todo = mine("203.0.113.7:4433").judge(ledger(), NOW)
    assert (ok, todo) == (True, "")
    assert "banned" in said


def test_a_machine_whose_key_is_banned_is_told_so_and_why() -> None:
    orders = ledger()
    orders.take(draft_revocation(orders, ME.peer_id, "too many broken gradients", NOW).signed_by(ORGANISER))
    ok, said, todo = mine().judge(orders, NOW)
    assert not ok
    assert "too many broken gradients" in said
    assert "organiser" in todo
    assert OwnAccess(None, None, ()).judge(orders, NOW)[0], "a machine without a key gets another one"


def test_a_machine_in_a_banned_range_is_told_so_until_the_ban_ends() -> None:
    orders = ledger()
    orders.take(draft_range_ban(orders, "203.0.113.0/24", NOW + 60, "a flood", NOW).signed_by(ORGANISER))
    ok, said, _ = mine("192.168.1.5:4433", "203.0.113.7:4433").judge(orders, NOW)
    assert not ok
    assert "203.0.113.0/24" in said
    assert "a flood" in said
    assert mine("203.0.114.7:4433").judge(orders, NOW)[0]
    assert mine("203.0.113.7:4433").judge(orders, NOW + 61)[0]


def test_a_run_for_members_tells_a_machine_without_access_how_to_get_it() -> None:
    ok, said, todo = mine().judge(ledger(is_open=False), NOW)
    assert (ok, "for members only" in said, "admit" in todo) == (False, True, True)


@pytest.mark.parametrize(
    ("code", "token", "joins"),
    [
        (RefusalCode.ACCESS, None, True),
        (RefusalCode.ACCESS, Token(None), False),
        (RefusalCode.BANNED, None, False),
        (RefusalCode.RUN, None, False),
    ],
)
def test_only_a_run_for_members_that_the_doctor_cannot_enter_may_still_be_joined(
    code: RefusalCode, token: Token | None, joins: bool
) -> None:
    refused = RejectedError("the words do not matter: for members only", code=code)
    assert OwnAccess(ME, token, ()).joins_otherwise(LINK, refused) is joins


def test_a_machine_whose_organisers_an_entry_does_not_know_is_told_to_ask_for_other_entries() -> None:
    async def dial(_: object) -> None:
        raise RejectedError("of which nothing is known here", code=RefusalCode.ORDERS)

    node: Any = SimpleNamespace(dial=dial)
    outcome = asyncio.run(_try_entry(node, LINK.entries[0], LINK, OwnAccess(ME, Token(None), ())))
    assert (outcome.ok, outcome.detail) == (False, "of which nothing is known here")
    assert "by another peer" in outcome.advice
