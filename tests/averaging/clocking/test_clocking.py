"""Swarms clock themselves: everybody who can takes part, batches are right, and the slow cost the others nothing."""

from __future__ import annotations

import pytest

from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.swarm import Swarm, TrainerSettings
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import make_spec, rounds, virtually

pytestmark = pytest.mark.promise("a-step-has-at-least-b-samples-and-little-more")

NEAR, FAR = HostSettings(latency_s=0.005), HostSettings(latency_s=0.04)


def batches(swarm: Swarm, first: int, last: int) -> dict[int, dict[str, int]]:
    """step -> peer -> samples."""
    found = rounds(swarm)
    return {step: dict(members) for step in range(first, last) for members in found[step].values()}


def seconds_between(swarm: Swarm, first: int, last: int) -> float:
    """Seconds from one step to another at `peer-0`."""
    at = {e.event.fields["step"]: e.event.time for e in swarm.log.of("step.applied") if e.peer == "peer-0"}
    return float(at[last] - at[first])


def test_the_second_peer_takes_part_however_small_the_batch() -> None:
    """The first is ten times faster and has the whole batch in a second; the other one is far away."""

    @virtually
    async def main() -> Swarm:
        swarm = Swarm(make_spec(64), seed=1)
        swarm.add(NEAR, TrainerSettings(4, 4 / 64, jitter=0.05))
        swarm.add(FAR, TrainerSettings(1, 1 / 6.4, jitter=0.05))
        await swarm.run_until_step(12, limit_s=120)
        await swarm.close()
        return swarm

    steps = batches(main(), 3, 11)
    assert all(step["peer-0"] and step["peer-1"] for step in steps.values())
    assert all(64 <= sum(step.values()) < 64 + 4 for step in steps.values())


def test_a_slow_peer_counts_again_when_steps_become_long_enough() -> None:
    @virtually
    async def main() -> Swarm:
        swarm = Swarm(make_spec(128), seed=3)
        for _ in range(3):
            swarm.add(NEAR, TrainerSettings(4, 0.25))
        swarm.add(NEAR, TrainerSettings(4, 5.0), name="slow")
        await swarm.run_until_step(6, limit_s=600)
        for name in ("peer-1", "peer-2"):
            await swarm.peers[name].session.close()
        await swarm.run_until_step(12, limit_s=600)
        await swarm.close()
        return swarm

    steps = batches(main(), 9, 11)
    assert all(step["slow"] >= 4 for step in steps.values())


def _with_slow_times(seconds: dict[int, float], steps: int) -> list[int]:
    """Two alike, but that some micro-batches, by number, take the last so many seconds: its samples in each step."""

    @virtually
    async def main() -> Swarm:
        swarm = Swarm(make_spec(64), seed=5)
        swarm.add(NEAR, TrainerSettings(4, 0.25))
        odd = swarm.add(NEAR, TrainerSettings(4, 0.25), name="odd")
        done, compute = 0, odd.compute

        async def uneven(settings: TrainerSettings, usual_s: float) -> None:
            nonlocal done
            done += 1
            await compute(settings, seconds.get(done, usual_s))

        odd.compute = uneven  # type: ignore[method-assign]
        await swarm.run_until_step(steps, limit_s=6000)
        await swarm.close()
        return swarm

    found = batches(main(), 1, steps)
    return [found[step].get("odd", 0) for step in range(1, steps)]


def test_a_peer_whose_first_micro_batches_took_very_long_counts_soon() -> None:
    """It waited for data, or compiled its model for two shapes; then it is as fast as the others."""
    given = _with_slow_times({1: 20.0, 2: 15.0}, 13)
    assert given[0] == 0, "the others do not wait"
    assert sum(given[-5:]) >= 5 * 24


def test_a_peer_that_was_too_slow_for_a_while_comes_back() -> None:
    given = _with_slow_times(dict.fromkeys(range(8, 16), 4.0), 18)
    assert 0 in given
    assert all(given[-5:])


@pytest.mark.parametrize("strategy", ["synchronous", soaked("delayed")])
def test_slow_peers_cost_the_others_nothing_fetch_no_state_and_are_told(strategy: str) -> None:
    def taken(slow: int) -> tuple[Swarm, float]:
        @virtually
        async def main() -> Swarm:
            swarm = Swarm(make_spec(64, training={"strategy": strategy}), seed=2)
            for _ in range(3):
                swarm.add(NEAR, TrainerSettings(4, 0.25, jitter=0.05))
            for number in range(slow):
                swarm.add(NEAR, TrainerSettings(4, 4.0 + 2 * number, jitter=0.05), name=f"slow-{number}")
            await swarm.run_until_step(12, limit_s=6000, peers=["peer-0", "peer-1", "peer-2"])
            await swarm.close()
            return swarm

        swarm = main()
        return swarm, seconds_between(swarm, 8, 12)

    swarm, seconds = taken(2)
    assert seconds <= 1.02 * taken(0)[1]
    assert not [e for e in swarm.log.of("sync.finished") if e.event.time > 30.0]
    told = swarm.log.of("training.too_slow")
    assert {each.peer for each in told} == {"slow-0", "slow-1"}
    assert all("smaller micro-batches would count" in str(each.event.fields["why"]) for each in told)
    assert all(swarm.peers[each.peer].replica.step >= 11 for each in told), "it has the state, and could serve it"


def test_peers_of_which_there_are_more_than_micro_batches_do_not_exceed_the_batch() -> None:
    @virtually
    async def main() -> Swarm:
        swarm = Swarm(make_spec(16), seed=7)
        for _ in range(6):
            swarm.add(NEAR, TrainerSettings(4, 0.25, jitter=0.02))
        await swarm.run_until_step(8, limit_s=600)
        await swarm.close()
        return swarm

    assert all(16 <= sum(step.values()) < 16 + 4 for step in batches(main(), 3, 7).values())


def test_newcomers_make_the_next_step() -> None:
    @virtually
    async def main() -> tuple[Swarm, list[int]]:
        swarm = Swarm(make_spec(64), seed=4)
        for _ in range(3):
            swarm.add(NEAR, TrainerSettings(2, 0.1, jitter=0.05))
        entered = []
        for number in range(2):
            await swarm.run_until_step(5 * number + 5, limit_s=600)
            entered.append(5 * number + 5)
            swarm.add(FAR, TrainerSettings(2, 0.1, jitter=0.05), name=f"new-{number}")
        await swarm.run_until_step(15, limit_s=600)
        await swarm.close()
        return swarm, entered

    swarm, entered = main()
    steps = batches(swarm, 1, 14)
    for number, step in enumerate(entered):
        assert any(f"new-{number}" in steps[later] for later in range(step, step + 3)), "it fetched the state in time"
        assert all(steps[later].get(f"new-{number}") for later in range(step + 4, 14)), "and counts from then on"
    assert all(64 <= sum(step.values()) <= 70 for step in steps.values())
