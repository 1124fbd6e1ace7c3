"""A run that lost its majority at once goes on by the organisers' order, in virtual time, and ends in one history."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from collections.abc import Sequence

import pytest

from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import AccessLedger, InvalidOrderError
from minga.identity.access.orders import MAX_REGROUPS, Regroup
from minga.identity.keys.keys import Identity
from minga.network.virtual.internet import EPOCH_S
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.life.member import Member
from tests.worlds.seeds import seeds
from tests.worlds.swarm_tools import assert_equal_states, grow, make_spec, offences
from tests.worlds.swarm_tools import virtually as virtually_for

pytestmark = pytest.mark.promise("who-may-take-part")

ORGANISER = Identity.from_seed(bytes([200]) * 32)
virtually = functools.partial(virtually_for, limit_s=1800.0)
LONG_S = 6.0
"""After so many seconds nothing happens any more in a swarm that waits: a silent peer is given up in two."""


def regroup(spec: RunSpec, number: int, step: int, members: Sequence[SimulatedPeer]) -> Regroup:
    keys = tuple(bytes.fromhex(peer.network.peer_id) for peer in sorted(members, key=lambda p: p.network.peer_id))
    return Regroup(bytes.fromhex(spec.run_id), 0, int(EPOCH_S), (), number, step, keys).signed_by(ORGANISER)


def newest(peers: Sequence[SimulatedPeer]) -> int:
    return max(peer.replica.step for peer in peers)


async def begin(
    count: int, seed: int, steps: int = 3, last_step: int | None = None
) -> tuple[Swarm, list[SimulatedPeer]]:
    training = {} if last_step is None else {"stop_after_steps": last_step}
    swarm = Swarm(make_spec(48, training=training), organiser=ORGANISER)
    grow(swarm, count, random.Random(seed))
    await swarm.run_until_step(steps)
    return swarm, list(swarm.peers.values())


def cut(swarm: Swarm, one: Sequence[SimulatedPeer], other: Sequence[SimulatedPeer], *, heals: bool = False) -> None:
    for a, b in itertools.product(one, other):
        (swarm.internet.restore if heals else swarm.internet.cut)(a.network, b.network)


def slow_down(peers: Sequence[SimulatedPeer]) -> None:
    """So that few steps are taken while those that were apart find each other."""
    for peer in peers:
        peer.settings = TrainerSettings(micro_batch=4, micro_batch_s=1.0)


def epochs(peers: Sequence[SimulatedPeer]) -> set[int]:
    found = set()
    for peer in peers:
        assert isinstance(peer.session.member, Member)
        found.add(peer.session.member.epoch)
    return found


@virtually
async def test_those_present_go_on_after_the_majority_died_and_one_that_comes_back_fetches_their_state() -> None:
    swarm, peers = await begin(5, 7)
    present, lost = peers[:2], peers[2:]
    for peer in lost:
        swarm.internet.kill(peer.network)
    await asyncio.sleep(LONG_S)
    stuck = newest(present)
    await asyncio.sleep(LONG_S)
    assert newest(present) == stuck  # without the order they wait for good
    order = regroup(swarm.spec, 1, stuck, present)
    assert present[0].session.admission.take([order]) == []
    names = [peer.name for peer in present]
    await swarm.run_until_step(stuck + 3, peers=names)
    back = swarm.restart(lost[0].name)
    await swarm.run_until_step(newest(present) + 3)
    await assert_equal_states(swarm)
    assert epochs([*present, back]) == {order.epoch}
    told = [e.event.fields for e in swarm.log.of("run.regrouped") if e.peer in names]
    assert [fields["members"] for fields in told] == [2, 2]
    assert any(fields["present"] for fields in told)
    assert offences(swarm) == []
    await swarm.close()


@virtually
async def test_who_comes_when_the_run_is_complete_and_was_regrouped_gets_its_last_state() -> None:
    """The order comes as the others are through: newcomers follow it, and so have to look for it where they are."""
    swarm, peers = await begin(3, 7, steps=3, last_step=3)
    await asyncio.sleep(LONG_S)
    assert peers[0].session.admission.take([regroup(swarm.spec, 1, 3, peers)]) == []
    late = swarm.add(peers[0].network.settings)
    await swarm.run_until_step(3, limit_s=60.0)
    assert len(set(swarm.digests().values())) == 1
    assert len(epochs([*peers, late])) == 1
    await swarm.close()


@pytest.mark.parametrize("seed", seeds(1, of=3))
def test_a_partition_in_which_only_one_side_got_the_order_ends_in_one_history(seed: int) -> None:
    @virtually
    async def main() -> None:
        swarm, peers = await begin(5, seed)
        few, many = peers[:2], peers[2:]
        cut(swarm, few, many)
        await swarm.run_until_step(newest(peers) + 3, peers=[peer.name for peer in many])
        await asyncio.sleep(LONG_S)
        stuck, theirs = newest(few), newest(many)
        assert stuck < theirs
        assert few[1].session.admission.take([regroup(swarm.spec, 1, stuck, few)]) == []
        await swarm.run_until_step(stuck + 1, peers=[peer.name for peer in few])
        assert set(swarm.digests([few[0].name]).values()).isdisjoint(swarm.digests([many[0].name]).values())
        slow_down(peers)
        cut(swarm, few, many, heals=True)
        async with asyncio.timeout(300.0):
            while len(epochs(peers)) > 1 or not all(peer.session.member is not None for peer in peers):
                await asyncio.sleep(0.5)
        await asyncio.sleep(0.5 * LONG_S)
        last = newest(few)
        await swarm.run_until_step(last + 3)
        await assert_equal_states(swarm)
        assert len(epochs(peers)) == 1
        went_back = {e.peer for e in swarm.log.of("run.regrouped") if not e.event.fields["present"]}
        assert went_back >= {peer.name for peer in many}
        assert offences(swarm) == []
        await swarm.close()

    main()


@virtually
async def test_of_two_orders_for_two_sides_the_higher_number_wins() -> None:
    swarm, peers = await begin(4, 11)
    one, other = peers[:2], peers[2:]
    cut(swarm, one, other)
    await asyncio.sleep(LONG_S)
    for number, side in ((1, one), (2, other)):
        assert side[0].session.admission.take([regroup(swarm.spec, number, newest(side), side)]) == []
    for side in (one, other):
        await swarm.run_until_step(newest(side) + 2, peers=[peer.name for peer in side])
    slow_down(peers)
    cut(swarm, one, other, heals=True)
    await asyncio.sleep(1.5 * LONG_S)
    await swarm.run_until_step(newest(other) + 3)
    await assert_equal_states(swarm)
    assert {epoch >> 32 for epoch in epochs(peers)} == {2}
    await swarm.close()


def test_regroups_are_signed_and_counted() -> None:
    spec = make_spec(16)
    ledger = AccessLedger.of_spec(spec.run_id, spec, ORGANISER.peer_id)
    run, member = bytes.fromhex(spec.run_id), (b"k" * 32,)
    unsigned = Regroup(run, 0, 0, (), 1, 5, member)
    with pytest.raises(InvalidOrderError, match="0 of the 1"):
        ledger.take(unsigned.signed_by(Identity.from_seed(b"s" * 32)))
    for number in range(1, MAX_REGROUPS + 1):
        order = Regroup(run, 0, 0, (), number, 5, member).signed_by(ORGANISER)
        assert ledger.take(order)
        assert not ledger.take(order)
        assert ledger.regroups.newest == order
    with pytest.raises(InvalidOrderError, match="at most"):
        ledger.take(Regroup(run, 0, 0, (), 99, 5, member).signed_by(ORGANISER))
