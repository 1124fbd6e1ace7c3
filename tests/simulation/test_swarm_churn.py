"""Swarms whose members come and go, fall behind, and die altogether; of splits see `test_partitions`."""

from __future__ import annotations

import asyncio
import random

import pytest

from minga.averaging.election import ranking
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from tests.worlds.seeds import seeds, soaked
from tests.worlds.swarm_tools import (
    assert_equal_states,
    grow,
    longest_gap_s,
    make_spec,
    offences,
    pull,
    rounds,
    same_step,
    vector_replica,
    virtually,
)

SILENCE_S = 1.75
"""Seconds until a silent peer is noticed on a stream: 1.25 s, four round trips, two ticks."""

STALL_BOUND_S = 3 * SILENCE_S + 3.0
"""A leader that dies, its successor, and an aggregator in the round that follows; three seconds are the step."""


async def churn(swarm: Swarm, rng: random.Random, seconds: float) -> None:
    """Poisson arrivals, departures and deaths, on average one in four seconds."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    while loop.time() < until_s:
        await asyncio.sleep(rng.expovariate(1 / 4.0))
        names = [peer.name for peer in swarm.alive()]
        kind = rng.choice(("join", "join", "kill", "leave"))
        if kind == "join" or len(names) <= 4:
            if len(names) < 9:
                swarm.add(HostSettings(latency_s=rng.uniform(0.005, 0.03)), TrainerSettings(4, rng.uniform(0.1, 0.4)))
        elif kind == "kill":
            swarm.internet.kill(rng.choice(names))
        else:
            await swarm.peers[rng.choice(names)].session.close("enough")


async def churned(seed: int) -> tuple[Swarm, float]:
    """A swarm whose members came and went for ten seconds, and when that began."""
    rng = random.Random(seed)
    swarm = Swarm(make_spec(80), seed=seed)
    for _ in range(6):
        swarm.add(HostSettings(latency_s=rng.uniform(0.005, 0.03)), TrainerSettings(4, rng.uniform(0.1, 0.4)))
    try:
        await swarm.run_until_step(2, limit_s=60)
        began_s = asyncio.get_running_loop().time()
        await churn(swarm, rng, 10.0)
        await asyncio.sleep(3 * SILENCE_S)
        await swarm.run_until_step(max(p.replica.step for p in swarm.alive()) + 2, limit_s=60)
        await assert_equal_states(swarm)
    finally:
        events = len(swarm.log.events)
        await swarm.close()
        del swarm.log.events[events:]
    return swarm, began_s


@pytest.mark.promise("any-peer-may-die")
@pytest.mark.parametrize("seed", seeds(1, of=3))
def test_no_stall_and_no_blame_under_churn(seed: int) -> None:
    swarm, began_s = virtually(churned)(seed)
    assert longest_gap_s(swarm, began_s) < STALL_BOUND_S
    assert offences(swarm) == []
    for groups in rounds(swarm, "round.reduced").values():
        assert len(groups) == 1


@virtually
async def test_a_late_peer_downloads_the_state_and_drops_its_gradient() -> None:
    swarm = Swarm(make_spec(24), seed=4)
    grow(swarm, 4, random.Random(4))
    try:
        await swarm.run_until_step(2, limit_s=60)
        swarm.internet.stall("peer-3")
        others = ["peer-0", "peer-1", "peer-2"]
        late = swarm.peers["peer-3"]
        behind = late.replica.step
        await swarm.run_until_step(behind + 3, limit_s=60, peers=others)
        swarm.internet.resume("peer-3")
        resumed = asyncio.get_running_loop().time()
        synced: list[int] = []
        late.session.events.subscribe(
            lambda event: synced.append(late.port.report().samples) if event.kind == "sync.finished" else None  # type: ignore[union-attr]
        )
        while late.replica.step <= behind + 3:
            await asyncio.sleep(0.05)
        assert synced[0] == 0  # what it had accumulated is gone
        assert swarm.log.of("member.out_of_sync")[-1].peer == "peer-3"
        await swarm.run_until_step(late.replica.step + 2, limit_s=20)
        assert asyncio.get_running_loop().time() - resumed < 15.0
        await assert_equal_states(swarm)
        last = rounds(swarm)[max(rounds(swarm, "round.reduced"))]
        assert [len(members) for members in last.values()] == [4]
    finally:
        await swarm.close()


@pytest.mark.promise("newcomers-get-in")
@pytest.mark.parametrize("seed", seeds(1, of=3))
@virtually
async def test_a_newcomer_gets_in_however_short_the_steps_are(seed: int) -> None:
    # A step takes a few hundredths of a second, a download of the state about one.
    swarm = Swarm(make_spec(4), seed=seed, make_replica=vector_replica(50_000), gradient=pull)
    host = HostSettings(latency_s=0.01)
    for _ in range(3):
        swarm.add(host, TrainerSettings(2, 0.03))
    try:
        await swarm.run_until_step(20, limit_s=60)
        newcomer = swarm.add(HostSettings(latency_s=0.05, down_bytes_per_s=2e5), TrainerSettings(2, 0.03))
        joined = asyncio.get_running_loop().time()
        while not any(newcomer.name in m for g in rounds(swarm, "round.reduced").values() for m in g.values()):
            await asyncio.sleep(0.1)
            assert asyncio.get_running_loop().time() - joined < 15.0
        await assert_equal_states(swarm)
    finally:
        await swarm.close()


@pytest.mark.parametrize("seed", seeds(1, of=5))
def test_a_peer_that_was_killed_and_comes_back_at_once_takes_part_at_once(seed: int) -> None:
    """The others' connections to its former self seem open for 30 s yet."""

    @virtually
    async def main() -> float:
        swarm = Swarm(make_spec(96), seed=seed, checkpoint_every=2)
        grow(swarm, 4, random.Random(seed))
        try:
            await swarm.run_until_step(4, limit_s=60)
            swarm.internet.kill("peer-3")
            await asyncio.sleep(1.0)
            swarm.restart("peer-3")
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(6.0)
        finally:
            await swarm.close()
        assert swarm.log.of("round.aborted") == []
        return (
            min(e.event.time for e in swarm.log.of("round.reduced") if e.peer == "peer-3" and e.event.time > began)
            - began
        )

    assert main() < 6.0


def longest_step_s(swarm: Swarm, name: str, first: int, last: int) -> float:
    """The longest time that one of these steps took a peer."""
    times = {e.event.fields["step"]: e.event.time for e in swarm.log.of("step.applied") if e.peer == name}
    return max(times[step] - times[step - 1] for step in range(first, last + 1))


@pytest.mark.parametrize("seed", [3, *map(soaked, (0, *range(4, 16)))])
@pytest.mark.parametrize("is_after_the_round", [soaked(False), True])
@virtually
async def test_a_stopped_leader_costs_two_seconds_more_than_a_step(seed: int, is_after_the_round: bool) -> None:
    """Before the round all wait for its plan; after it one may lack nothing but the word that the result counts."""
    swarm = Swarm(make_spec(80), seed=seed, make_replica=vector_replica(50_000), gradient=pull)
    for index in range(4):
        line = HostSettings(7.5e5, 7.5e5, latency_s=0.0002, dialable=index < 3)
        swarm.add(line, TrainerSettings(4, 0.2 * (1 + 0.01 * index), jitter=0.05))
    await swarm.run_until_step(6)
    await same_step(swarm)
    if is_after_the_round:
        while not rounds(swarm, "round.reduced")[6]:
            await asyncio.sleep(0.001)
        begun = [e.event.fields for e in swarm.log.of("round.begun") if e.event.fields["step"] == 6]
        leader = swarm.name_of(str(begun[0]["leader"]))
    else:
        able = [peer.network.peer_id for peer in list(swarm.peers.values())[:3]]
        leader = swarm.name_of(ranking(swarm.spec.run_id, 6, able)[0])
        await asyncio.sleep(0.3)
    swarm.internet.stall(leader)
    others = [name for name in swarm.peers if name != leader]
    while min(swarm.peers[name].replica.step for name in others) < 9:
        await asyncio.sleep(0.01)
    for name in others:
        assert longest_step_s(swarm, name, 7, 9) < longest_step_s(swarm, name, 4, 6) + 2.0
    swarm.internet.resume(leader)
    await swarm.close()
