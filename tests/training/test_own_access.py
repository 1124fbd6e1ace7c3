"""Which of its tokens a peer shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from minga.access.access_files import AccessFiles
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import AccessLedger, draft_revocation
from minga.identity.access.orders import Grant
from minga.identity.access.token import Token
from minga.identity.keys.keys import Identity
from minga.identity.links.links import EntryPoint, Link, LinkAccess
from minga.identity.links.signed_spec import SignedRunSpec
from minga.training.own_access import RunAccess

FIRST, SECOND, ANN, INVITATION = (Identity.from_seed(bytes([70 + i]) * 32) for i in range(4))
SPEC = RunSpec.from_mapping(
    {"name": "x", "security": {"admission": "members", "organisers": [FIRST.peer_id, SECOND.peer_id]}}
)
NOW, END = 1_000_000, 2_000_000


def grant(subject: Identity, uses: int, version: int, signer: Identity) -> Grant:
    run, key = bytes.fromhex(SPEC.run_id), bytes.fromhex(subject.peer_id)
    return Grant(run, 0, NOW, (), key, uses, version, END).signed_by(signer)


@pytest.mark.parametrize(
    ("now_s", "barred", "shows_own"),
    [(NOW, None, True), (END + 1, None, False), (NOW, ANN, False), (NOW, FIRST, False)],
    ids=["lasting", "expired", "banned again", "its signer was barred"],
)
def test_a_grant_to_the_own_key_goes_before_a_later_invitation(
    now_s: int, barred: Identity | None, shows_own: bool, tmp_path: Path
) -> None:
    own = Token(grant(ANN, 0, 2, FIRST))
    files = AccessFiles(tmp_path)
    files.keep_token(ANN.peer_id, own)
    known = None
    if barred is not None:
        ledger = AccessLedger.of_spec(SPEC.run_id, SPEC, FIRST.peer_id)
        for version in range(1, 4):
            ledger.take(draft_revocation(ledger, barred.peer_id, "", version).signed_by(SECOND))
        files.keep_orders(list(ledger.orders()))
        known = SignedRunSpec.sign(SPEC, FIRST), SPEC
    invitation = LinkAccess(grant(INVITATION, 5, 4, SECOND), INVITATION.seed)
    link = Link(SPEC.run_id, FIRST.peer_id, (EntryPoint(FIRST.peer_id),), invitation)
    shown = RunAccess(files, link, known, keeps=True).token(ANN.peer_id, now_s)
    assert (shown == own) == shows_own
