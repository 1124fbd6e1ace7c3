"""Open runs in virtual time: bans of keys and of address ranges; and every combination of the two settings."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest

from minga.core.errors import RejectedError
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import AccessLedger, InvalidOrderError
from minga.identity.access.orders import MAX_RANGES, RangeBan
from minga.identity.access.token import parse_range
from minga.identity.keys.keys import Identity
from minga.identity.links.links import LinkAccess
from minga.network.virtual.internet import EPOCH_S
from minga.simulation.swarm.simulated_peer import SimulatedPeer
from minga.simulation.swarm.swarm import Swarm
from tests.identity.access.test_members import ended, grow, invitation, is_unknown, order, revocation, train_on
from tests.worlds.swarm_tools import make_spec, offences
from tests.worlds.swarm_tools import virtually as virtually_for

ORGANISER, SECOND = (Identity.from_seed(bytes([i]) * 32) for i in (200, 201))
NOW = int(EPOCH_S)
virtually = functools.partial(virtually_for, limit_s=900.0)


def range_ban(spec: RunSpec, addresses: str, signer: Identity = ORGANISER, **changes: Any) -> RangeBan:
    fields = {"issued": NOW, "expires": NOW + 600, "reason": "floods", "term": 0, **changes}
    return RangeBan(bytes.fromhex(spec.run_id), signatures=(), range=addresses, **fields).signed_by(signer)


def open_swarm(**security: Any) -> Swarm:
    return Swarm(make_spec(16, security=security), organiser=ORGANISER)


async def first_three(swarm: Swarm) -> tuple[str, str, str]:
    first, second, third = (swarm.add().name for _ in range(3))
    await swarm.run_until_step(2, peers=[first, second, third])
    return first, second, third


async def wait_for_end(peer: SimulatedPeer, why: str) -> None:
    await peer.ended.wait()
    assert isinstance(peer.error, RejectedError)
    assert why in str(peer.error)


@virtually
async def test_a_key_that_is_barred_from_an_open_run_goes_and_a_new_key_comes_in() -> None:
    swarm = open_swarm()
    first, second, barred = await first_three(swarm)
    peer = swarm.peers[barred]
    order(swarm, first, revocation(swarm.spec, peer.network.peer_id, why="sent nonsense"))
    await wait_for_end(peer, "sent nonsense")
    assert ended(swarm, barred).keys() >= {first, second}
    await peer.session.close()
    swarm.internet.kill(barred)
    await wait_for_end(swarm.restart(barred), "sent nonsense")
    assert is_unknown(swarm, barred, [first, second])
    await train_on(swarm, [first, second, swarm.add().name])
    assert offences(swarm) == []
    await swarm.close()


@virtually
async def test_peers_of_a_barred_range_stay_out_until_its_time_is_over() -> None:
    swarm = open_swarm()
    first, second, barred = await first_three(swarm)
    peer = swarm.peers[barred]
    address = peer.network.address.direct[0].partition(":")[0]
    order(swarm, first, range_ban(swarm.spec, f"{address}/32"))
    await wait_for_end(peer, f"barred the addresses {address}/32 from the run for a time: floods")
    await train_on(swarm, [first, second])
    assert is_unknown(swarm, barred, [first, second])
    members = [swarm.peers[name].session.admission for name in (first, second)]
    with pytest.raises(RejectedError, match="for a time"):
        members[0].meet(peer.network.peer_id, b"")  # though its record is gone from the board
    lifted = range_ban(swarm.spec, f"{address}/32", issued=NOW + 1, expires=NOW + 1)
    order(swarm, first, lifted)
    members[0].meet(peer.network.peer_id, b"")
    assert offences(swarm) == []
    await swarm.close()


@pytest.mark.parametrize(
    ("admission", "verification"), list(itertools.product(("open", "members"), ("none", "byzantine")))
)
def test_every_admission_goes_with_every_verification(admission: str, verification: str) -> None:
    founders = {"founders": 3, "micro_batch_size": 4, "peers_per_validator": 2}
    security = {"admission": admission, "verification": verification, **founders}
    training = {"target_batch_size": 12, "stop_after_steps": 4}

    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(12, security=security, training=training), organiser=ORGANISER)
        access: LinkAccess | None = invitation(swarm.spec) if admission == "members" else None
        names = [swarm.add(access=access).name for _ in range(3)]
        if admission == "members":
            await wait_for_end(swarm.add(), "for members only")
        for name in names:
            await swarm.peers[name].ended.wait()
        assert [(swarm.peers[name].error, swarm.peers[name].replica.step) for name in names] == [(None, 4)] * 3
        assert len({swarm.peers[name].replica.digest() for name in names}) == 1
        await swarm.close()

    main()


@virtually
async def test_organisers_bar_a_member_of_a_verified_run_for_members() -> None:
    founders = {"founders": 4, "micro_batch_size": 4, "peers_per_validator": 4}
    spec = make_spec(16, security={"admission": "members", "verification": "byzantine", **founders})
    swarm = Swarm(spec, organiser=ORGANISER)
    *others, barred = await grow(swarm, invitation(spec), 4)
    peer = swarm.peers[barred]
    order(swarm, others[0], revocation(spec, peer.network.peer_id, why="left the project"))
    await wait_for_end(peer, "left the project")
    step = max(swarm.peers[name].replica.step for name in others)
    await swarm.run_until_step(step + 3, peers=others)
    members = swarm.peers[others[0]].session.member
    assert members is not None
    assert peer.network.peer_id not in members.view
    await swarm.close()


# ---- ranges


def test_a_range_is_bounded_and_has_one_spelling() -> None:
    assert str(parse_range("203.0.113.77/24")) == "203.0.113.0/24"
    assert str(parse_range("2001:db8::7")) == "2001:db8::7/128"
    for text, why in [("0.0.0.0/0", "too large"), ("2001::/16", "too large"), ("peer.example", "no address range")]:
        with pytest.raises(ValueError, match=why):
            parse_range(text)


def test_orders_about_ranges_are_checked_and_counted() -> None:
    keys = sorted([ORGANISER.peer_id, SECOND.peer_id])
    spec = make_spec(16, security={"organisers": keys, "organisers_needed": 2})
    ledger = AccessLedger.of_spec(spec.run_id, spec, ORGANISER.peer_id)
    stranger = Identity.from_seed(bytes([9]) * 32)
    for wrong in ("0.0.0.0/0", "203.0.113.7/24", "nonsense"):
        with pytest.raises(InvalidOrderError):
            ledger.take(range_ban(spec, wrong))
    with pytest.raises(InvalidOrderError, match="no organiser"):
        ledger.take(range_ban(spec, "203.0.113.0/24", stranger))
    assert ledger.take(range_ban(spec, "203.0.113.0/24"))
    assert not ledger.take(range_ban(spec, "203.0.113.0/24"))
    ledger.check_address("ab" * 32, ["203.0.113.9:1"], NOW)  # one of two organisers is not enough
    assert ledger.take(range_ban(spec, "203.0.113.0/24", SECOND, expires=NOW + 60))
    for signer in (ORGANISER, SECOND):
        ledger.take(range_ban(spec, "2001:db8:7::/48", signer))
    for endpoint, now_s, is_barred in [
        ("203.0.113.9:1", NOW, True),
        ("203.0.114.9:1", NOW, False),
        ("[2001:db8:7::9]:1", NOW, True),
        ("[2001:db8:8::9]:1", NOW, False),
        ("[::ffff:1]:1", NOW, False),
        ("no address", NOW, False),
        ("203.0.113.9:1", NOW + 61, False),
    ]:
        barred = ledger.ranges.ban_of([endpoint], 2, now_s) is not None
        assert barred == is_barred, endpoint
    ledger.check_address(ORGANISER.peer_id, ["203.0.113.9:1"], NOW)  # organisers cannot shut themselves out
    orders = [
        range_ban(spec, f"198.51.100.{i}/32", issued=NOW + i, expires=NOW + 1000 - i) for i in range(MAX_RANGES + 1)
    ]
    ledger = AccessLedger.of_spec(spec.run_id, spec, ORGANISER.peer_id)
    for each in orders[:0:-1]:
        ledger.take(each)
    assert not ledger.ranges.may_ban(ORGANISER.peer_id, parse_range("192.0.2.0/24"), NOW + 998)
    assert ledger.ranges.may_ban(ORGANISER.peer_id, parse_range(orders[1].range), NOW + 998)
    assert ledger.ranges.may_ban(ORGANISER.peer_id, parse_range("192.0.2.0/24"), NOW + 999)
    assert not ledger.take(orders[0]), "of too many those count that were signed last"
    other = AccessLedger.of_spec(spec.run_id, spec, ORGANISER.peer_id)
    for each in orders:
        other.take(each)
    assert set(other.ranges.orders()) == set(orders[1:]) == set(ledger.ranges.orders())


def test_a_range_ban_that_was_lifted_does_not_come_back_when_the_list_is_full() -> None:
    spec = make_spec(16)
    ledger = AccessLedger.of_spec(spec.run_id, spec, ORGANISER.peer_id)
    ban = range_ban(spec, "203.0.113.0/24", expires=NOW + 9999)
    assert ledger.take(ban)
    assert ledger.take(range_ban(spec, ban.range, issued=NOW + 1, expires=NOW + 61))
    later = [range_ban(spec, f"198.51.100.{i}/32", issued=NOW + 2) for i in range(MAX_RANGES)]
    assert all(map(ledger.take, later))
    assert not ledger.take(ban), "a member that slept still knows the ban, and nobody the end of it"
    assert set(ledger.ranges.orders()) == set(later)
