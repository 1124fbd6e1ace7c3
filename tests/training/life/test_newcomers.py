"""Newcomers get in, whatever they need for the state, and no step waits for them without end."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from minga.averaging.matchmaking.attempt import LEAST_S, MOST_S, PRICE_S, Patience
from minga.network.interface import PeerId
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.life.board_view import BEGINS_ANEW_S, FORGIVEN_S, Newcomers
from minga.training.record_kinds import Progress, Status
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import (
    assert_equal_states,
    make_spec,
    pull,
    rounds,
    vector_replica,
    virtually,
)

pytestmark = pytest.mark.promise("newcomers-get-in")

STATE_BYTES = 200_000
ONE, OTHER = PeerId("1" * 64), PeerId("2" * 64)


async def trained(seed: int) -> Swarm:
    """Three peers whose steps take half a second."""
    swarm = Swarm(make_spec(24), seed=seed, make_replica=vector_replica(STATE_BYTES // 4), gradient=pull)
    for _ in range(3):
        swarm.add(HostSettings(latency_s=0.01), TrainerSettings(4, 0.25))
    await swarm.run_until_step(4, limit_s=60)
    return swarm


def takes_part(swarm: Swarm, name: str) -> bool:
    return any(name in members for groups in rounds(swarm, "round.reduced").values() for members in groups.values())


@pytest.mark.parametrize("sync_s", [1.0, soaked(5.0)])
def test_whoever_misses_the_step_that_was_held_gets_into_a_later_one(sync_s: float) -> None:
    @virtually
    async def main() -> None:
        swarm = await trained(int(sync_s))
        began = asyncio.get_running_loop().time()
        host = HostSettings(latency_s=0.01, down_bytes_per_s=STATE_BYTES / sync_s)
        newcomer = swarm.add(host, TrainerSettings(4, 0.25))
        while not takes_part(swarm, newcomer.name):
            await asyncio.sleep(0.01)  # the others wait for it now, and soon will not
            assert asyncio.get_running_loop().time() - began < 4 * sync_s + 10.0  # by seeds 1 to 8: 31 to 41 s for 8 s
        await assert_equal_states(swarm)
        came_s = next(e.event.time for e in swarm.log.of("round.begun") if e.peer == newcomer.name)
        steps = [e.event.time for e in swarm.log.of("round.begun") if e.peer == "peer-0" and e.event.time <= came_s]
        assert max(b - a for a, b in itertools.pairwise(steps)) < max(LEAST_S, min(MOST_S, 1.6 * sync_s)) + 2.0
        await swarm.close()

    main()


@virtually
async def test_a_newcomer_that_never_had_a_state_of_the_run_does_not_go_on_without_one() -> None:
    """The swarm went on while it fetched, and then ended."""
    swarm = await trained(3)
    newcomer = swarm.add(HostSettings(latency_s=0.01, down_bytes_per_s=STATE_BYTES / 16), TrainerSettings(4, 0.25))
    for _ in range(600):
        if any(e.peer == newcomer.name for e in swarm.log.of("sync.overtaken")):
            break
        await asyncio.sleep(0.1)
    for name in ("peer-0", "peer-1", "peer-2"):
        swarm.internet.kill(name)
    await asyncio.sleep(90.0)
    assert not [e for e in swarm.log.of("round.begun") if e.peer == newcomer.name]
    (awaited,) = swarm.log.of("state.awaited")
    assert "it was at step" in str(awaited.event.fields["why"])
    await swarm.close()


def test_newcomer_after_newcomer_does_not_hold_the_others_up() -> None:
    """How long rounds take depends on what is known of the newcomers' lines by then: that is the planner's."""

    @virtually
    async def main() -> None:
        swarm = await trained(7)
        began = asyncio.get_running_loop().time()
        for _ in range(3):
            swarm.add(HostSettings(latency_s=0.01, down_bytes_per_s=STATE_BYTES), TrainerSettings(4, 0.25))
            await asyncio.sleep(0.9)
        async with asyncio.timeout(10.0):
            while not all(takes_part(swarm, peer.name) for peer in swarm.alive()):
                await asyncio.sleep(0.1)
        begun = [e.event for e in swarm.log.of("round.begun") if e.event.time > began]
        assert (
            max(float(str(event.fields["waited_s"])) for event in begun) < LEAST_S + 1.0
        )  # samples take half a second
        await swarm.close()

    main()


@virtually
async def test_many_that_come_at_once_to_one_get_in() -> None:
    """Each gets a sixth of its line, and needs longer than any one of them alone may."""
    state_bytes = 4_000_000
    swarm = Swarm(make_spec(8), seed=5, make_replica=vector_replica(state_bytes // 4), gradient=pull)
    swarm.add(HostSettings(latency_s=0.01, up_bytes_per_s=state_bytes / 2.5), TrainerSettings(4, 0.25))
    await swarm.run_until_step(2, limit_s=60)
    came = [swarm.add(HostSettings(latency_s=0.01, dialable=False), TrainerSettings(4, 0.25)) for _ in range(6)]
    async with asyncio.timeout(10.0 * MOST_S):
        while not all(takes_part(swarm, peer.name) for peer in came):
            await asyncio.sleep(0.1)
    await swarm.close()


@virtually
async def test_nobody_waits_longer_for_one_whose_own_line_is_slow() -> None:
    """Once it was in, each round would take as long as it needs."""
    swarm = await trained(9)
    swarm.add(HostSettings(latency_s=0.01, down_bytes_per_s=STATE_BYTES / 40.0), TrainerSettings(4, 0.25))
    await asyncio.sleep(100.0)
    begun = [each.event for each in swarm.log.of("round.begun")]
    assert max(float(str(event.fields["waited_s"])) for event in begun) < MOST_S + 2.0
    await swarm.close()


# ---- how long each has been at it


def progress(step: int, status: Status) -> Progress:
    return Progress(step, 0, 0.0, status)


def test_the_time_that_is_spent_fetching_adds_up() -> None:
    clock = itertools.count()
    newcomers = Newcomers(lambda: float(next(clock)))
    said = {ONE: progress(5, "syncing"), OTHER: progress(5, "training")}
    newcomers.look(said)  # at 0 s
    assert newcomers.syncing(said) == {ONE: 1.0}
    said = {ONE: progress(6, "training"), OTHER: progress(6, "syncing")}
    newcomers.look(said)  # at 2 s
    assert newcomers.syncing(said) == {OTHER: 1.0}
    said = {ONE: progress(9, "syncing")}
    newcomers.look(said)  # at 4 s; the other one died
    assert newcomers.syncing(said) == {ONE: 3.0}


def test_what_was_long_ago_is_forgotten_unless_it_still_goes_on() -> None:
    now = 0.0
    newcomers = Newcomers(lambda: now)
    both = {ONE: progress(5, "syncing"), OTHER: progress(5, "syncing")}
    newcomers.look(both)
    now = 20.0
    newcomers.look({OTHER: both[OTHER]})
    now = FORGIVEN_S + 1.0
    newcomers.look({OTHER: both[OTHER]})
    newcomers.look(both)
    assert newcomers.syncing(both) == {ONE: 0.0, OTHER: now}


def test_whose_state_came_too_late_for_its_step_is_about_to_begin_anew() -> None:
    """A step that is about as long as a download would never see one of these fetch: it tells so when the next round
    has begun.
    """
    now = 0.0
    newcomers = Newcomers(lambda: now)
    newcomers.look({ONE: progress(5, "syncing"), OTHER: progress(6, "syncing")})
    now = 1.0
    said = {ONE: progress(5, "training"), OTHER: progress(6, "training")}
    newcomers.look(said)
    assert newcomers.syncing(said) == {}
    assert newcomers.syncing(said, step=6) == {ONE: BEGINS_ANEW_S}
    now = 10.0
    assert newcomers.syncing(said, step=6) == {}


@pytest.mark.parametrize(("step_s", "members"), [(1.0, 100), (250.0, 100), (1.0, 1)])
def test_who_only_says_that_it_fetches_makes_a_run_slower_by_about_a_twentieth(step_s: float, members: int) -> None:
    now = held_s = 0.0
    newcomers, fetches = Newcomers(lambda: now), {ONE: progress(5, "syncing")}
    while now < 200.0 * max(step_s, PRICE_S / members) or now < 5.0 * FORGIVEN_S:
        now += step_s
        newcomers.look(fetches)
        patience = Patience(step_s, members, giving_s=PRICE_S)
        if patience.waited_for(syncing := newcomers.syncing(fetches)):
            pause_s = patience.hold_s(syncing, 0.0)
            now, held_s = now + pause_s, held_s + pause_s
        newcomers.look({ONE: progress(5, "training")})
    assert held_s <= 0.065 * now
