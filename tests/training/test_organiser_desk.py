"""What the desk of an organiser says of orders that several have to sign."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import AccessBannedError, AccessLedger, draft_revocation
from minga.identity.access.orders import Grant, Regroup
from minga.identity.access.token import Token
from minga.identity.keys.keys import Identity
from minga.identity.links.links import EntryPoint, Link
from minga.training.organiser import Organiser

FIRST, SECOND, THIRD = KEYS = [Identity.from_seed(bytes([240 + i]) * 32) for i in range(3)]
PEER = "ab" * 32
RATE = {"optimizer.learning_rate": 0.5}
SPEC = RunSpec.from_mapping(
    {
        "name": "several",
        "security": {"admission": "members", "organisers": [key.peer_id for key in KEYS], "organisers_needed": 2},
    }
)


def ledger_of(*barring: Identity, barred: str = PEER) -> AccessLedger:
    """What a peer knows once these organisers barred a key."""
    ledger = AccessLedger.of_spec(SPEC.run_id, SPEC, FIRST.peer_id)
    for signer in barring:
        ledger.take(draft_revocation(ledger, barred, "", 1).signed_by(signer))
    return ledger


def desk(key: Identity, ledger: AccessLedger) -> Organiser:
    """That of one organiser, where no peer answers."""
    files = cast(Any, SimpleNamespace(keep_orders=lambda _: None))
    link = Link(SPEC.run_id, FIRST.peer_id, (EntryPoint(FIRST.peer_id),))
    return Organiser(link, SPEC, ledger, key, files, None)


def test_the_signature_of_an_organiser_that_was_barred_since_is_missing() -> None:
    early = desk(FIRST, ledger_of())
    amendment, link = early.amend(RATE, 5), early.invite(1, 600.0)
    assert link.access is not None
    late = desk(SECOND, ledger := ledger_of(SECOND, THIRD, barred=FIRST.peer_id))
    assert late.signatures_missing(link.access) == 2
    order, in_force = late.put_in_force(amendment)
    assert not in_force
    assert not list(ledger.amendments)
    assert desk(THIRD, ledger).put_in_force(order)[1]
    assert [each.id for each in ledger.amendments] == [amendment.id]


def test_a_transfer_that_waits_for_signatures_does_not_undo_what_was_ordered_meanwhile() -> None:
    heirs = [FIRST.peer_id, PEER]
    ledger = ledger_of()
    before = desk(FIRST, ledger).propose_transfer(heirs, 1)
    for signer in (FIRST, SECOND):
        ledger.take(draft_revocation(ledger, "cd" * 32, "", 2).signed_by(signer))
    with pytest.raises(ConfigurationError, match="would undo what was barred"):
        desk(SECOND, ledger).put_in_force(before)
    between = desk(FIRST, ledger).propose_transfer(heirs, 1)
    rate, _ = desk(FIRST, ledger).put_in_force(desk(SECOND, ledger).amend(RATE, 5))
    with pytest.raises(ConfigurationError, match="or changed"):
        desk(SECOND, ledger).put_in_force(between)
    assert ledger.term == 0
    assert desk(SECOND, ledger).put_in_force(desk(FIRST, ledger).propose_transfer(heirs, 1))[1]
    assert (ledger.term, list(ledger.barred()), list(ledger.amendments)) == (1, ["cd" * 32], [rate])


def test_an_order_that_waited_for_signatures_while_later_ones_overruled_it_is_not_put_in_force() -> None:
    ledger = ledger_of()
    first, second = desk(FIRST, ledger), desk(SECOND, ledger)
    waits = first.amend(RATE, 5)
    second.put_in_force(first.amend({"checkpoints.keep": 3}, 5))
    second.put_in_force(first.amend({"optimizer.learning_rate": 0.25}, 4))
    with pytest.raises(ConfigurationError, match="later orders change all"):
        second.put_in_force(waits)
    regroups = [
        Regroup(bytes.fromhex(SPEC.run_id), 0, 1, (), number, 7, (bytes(32),)).signed_by(FIRST) for number in (1, 2)
    ]
    assert second.put_in_force(regroups[1])[1]
    with pytest.raises(ConfigurationError, match="who goes on"):
        second.put_in_force(regroups[0])


def test_to_bar_again_whom_the_others_have_not_barred_yet_is_no_error() -> None:
    ledger = ledger_of(FIRST)
    stands = list(ledger.orders())
    assert not desk(FIRST, ledger).bar(PEER, "")
    assert list(ledger.orders()) == stands
    assert desk(SECOND, ledger).bar(PEER, "")


def test_who_was_barred_and_admitted_anew_by_its_key_is_barred_again() -> None:
    ledger = ledger_of(FIRST, SECOND)
    grant = Grant(bytes.fromhex(SPEC.run_id), 0, 1, (), bytes.fromhex(PEER), 0, ledger.next_version, 1 << 32)
    token = Token(grant.signed_by(FIRST).signed_by(SECOND))
    ledger.check(token, PEER, 2.0)
    for key in (FIRST, SECOND):
        desk(key, ledger).bar(PEER, "")
    with pytest.raises(AccessBannedError):
        ledger.check(token, PEER, 2.0)
