"""Runs for members, in virtual time: who is let in, who is not, and whose access ends."""

from __future__ import annotations

from typing import Any

from swarm_tools import assert_equal_states, make_spec, offences, virtually

from minga.core._errors import RejectedError
from minga.core._run_spec import RunSpec
from minga.identity._access_orders import Grant
from minga.identity._keys import Identity
from minga.identity._link_access import LinkAccess
from minga.network._virtual_host import EPOCH_S
from minga.simulation._swarm import Swarm

ORGANISER, SECOND, THIRD = (Identity.from_seed(bytes([i]) * 32) for i in (200, 201, 202))
NOW = int(EPOCH_S)
DAY_S = 86_400


def members_spec(batch: int = 16, organisers: tuple[Identity, ...] = (), needed: int = 1, **sections: Any) -> RunSpec:
    security = {
        "mode": "members",
        "organisers": [organiser.peer_id for organiser in organisers],
        "organisers_needed": needed,
    }
    return make_spec(batch, security=security, **sections)


def grant(spec: RunSpec, subject: str, *signers: Identity, **changes: Any) -> Grant:
    fields = {"uses": 0, "version": 1, "expires": NOW + DAY_S, "issued": NOW, "term": 0, **changes}
    unsigned = Grant(run=bytes.fromhex(spec.run_id), subject=bytes.fromhex(subject), signatures=(), **fields)
    for signer in signers or (ORGANISER,):
        unsigned = unsigned.signed_by(signer)
    return unsigned


def invitation(spec: RunSpec, *signers: Identity, uses: int = 10, seed: int = 77, **changes: Any) -> LinkAccess:
    key = Identity.from_seed(bytes([seed]) * 32)
    return LinkAccess(grant(spec, key.peer_id, *signers, uses=uses, **changes), key.seed)


def make_swarm(spec: RunSpec) -> Swarm:
    return Swarm(spec, organiser=ORGANISER)


@virtually
async def test_who_is_invited_trains_and_a_stranger_is_refused() -> None:
    spec = members_spec()
    swarm = make_swarm(spec)
    invited = invitation(spec)
    for _ in range(3):
        swarm.add(access=invited)
    await swarm.run_until_step(3)
    stranger = swarm.add(name="stranger")
    await stranger.ended.wait()
    assert isinstance(stranger.error, RejectedError)
    assert stranger.error.code == "access"
    assert "for members only" in str(stranger.error)
    late = swarm.add(access=invited)
    step = max(peer.replica.step for peer in swarm.alive())
    members = [peer.name for peer in swarm.alive() if peer is not stranger]
    await swarm.run_until_step(step + 3, peers=members)
    assert late.samples_done > 0
    await assert_equal_states(swarm, members)
    assert all(stranger.network.peer_id not in swarm.peers[name].session.board.store.owners for name in members)
    assert offences(swarm) == []
    await swarm.close()
