"""The delayed strategy: how long a step takes, how old gradients are, and how large a batch gets."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from statistics import fmean

import pytest

from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import assert_equal_states, make_spec, rounds, vector_replica, virtually

PEERS, BATCH, MICRO_BATCH_S = 4, 80, 0.2
COMPUTE_S = BATCH / PEERS / 2 * MICRO_BATCH_S
NUMEL = 70_000
SENT_BYTES = 4 * NUMEL * (1 + (PEERS - 2) / PEERS)


class Ages:
    """By step, how many steps old the parameters were that each micro-batch was computed with, when it was applied."""

    def __init__(self) -> None:
        self.of_peer: dict[str, list[int]] = defaultdict(list)

    def gradient(self, peer: SimulatedPeer, samples: int) -> None:
        del samples
        (weight,) = peer.replica.vector.parameters()
        weight.grad = weight.detach() - 1.0
        self.of_peer[peer.name].append(peer.replica.step)

    def at_rounds(self, swarm: Swarm, only: str | None = None) -> list[int]:
        """The ages of all micro-batches of all rounds: each peer's go into them in the order of their computation."""
        ages = []
        for name, computed in self.of_peer.items():
            taken = 0
            for step, groups in sorted(rounds(swarm).items()) if only in (None, name) else ():
                (samples,) = groups.values()
                count = samples.get(name, 0) // 2  # the last round may be only about to begin
                ages += [step - at for at in computed[taken : taken + count]]
                taken += count
        return ages


def make_swarm(transfer_s: float, ages: Ages) -> Swarm:
    """Four trainers whose rounds take `transfer_s` seconds at best."""
    spec = make_spec(BATCH, training={"strategy": "delayed"})
    swarm = Swarm(spec, seed=2, make_replica=vector_replica(NUMEL), gradient=ages.gradient)
    rate = SENT_BYTES / transfer_s
    for _ in range(PEERS):
        swarm.add(HostSettings(up_bytes_per_s=rate, down_bytes_per_s=rate), TrainerSettings(2, MICRO_BATCH_S))
    return swarm


def sizes(swarm: Swarm) -> list[int]:
    return [sum(samples.values()) for _, groups in sorted(rounds(swarm).items()) for samples in groups.values()]


@pytest.mark.parametrize("transfer_s", [0.2, soaked(1.0), 4.0, soaked(10.0)])
@virtually
async def test_a_step_takes_as_long_as_the_longer_of_computation_and_transfer(transfer_s: float) -> None:
    ages = Ages()
    swarm = make_swarm(transfer_s, ages)
    try:
        await swarm.run_until_step(6, limit_s=600)
        await assert_equal_states(swarm)
    finally:
        await swarm.close()
    applied = [e.event.time for e in swarm.log.of("step.applied") if e.peer == "peer-0"]
    step_s = fmean(b - a for a, b in itertools.pairwise(applied[1:]))
    if transfer_s < COMPUTE_S:
        assert COMPUTE_S - 0.1 <= step_s <= 1.05 * COMPUTE_S
    else:  # by then the next step's samples are there
        assert transfer_s <= step_s <= 1.08 * transfer_s
    assert set(ages.at_rounds(swarm)) == {0, 1}
    # Where the transfer is longer there would be time for many more samples.
    assert all(BATCH <= size <= 1.1 * BATCH for size in sizes(swarm)[:6])


def test_a_batch_that_grew_too_large_does_not_stay_so() -> None:
    @virtually
    async def main() -> Swarm:
        swarm = make_swarm(6.0, Ages())
        try:
            await swarm.run_until_step(2, limit_s=600)
            for peer in swarm.alive():
                assert peer.port is not None
                peer.port.add(40)
            await swarm.run_until_step(6, limit_s=600)
        finally:
            await swarm.close()
        return swarm

    after = sizes(main())
    assert max(after) > 1.5 * BATCH
    assert after[-1] <= 1.1 * BATCH


@virtually
async def test_no_gradient_is_older_than_a_step_when_members_die_and_come_back() -> None:
    ages = Ages()
    swarm = make_swarm(3.0, ages)
    try:
        await swarm.run_until_step(2, limit_s=600)
        await asyncio.sleep(1.5)  # in the middle of a round
        swarm.internet.kill("peer-3")
        await swarm.run_until_step(4, limit_s=600)
        swarm.restart("peer-3")
        await swarm.run_until_step(6, limit_s=600)
        await assert_equal_states(swarm)
    finally:
        await swarm.close()
    for name in ("peer-0", "peer-1", "peer-2"):
        assert set(ages.at_rounds(swarm, name)) == {0, 1}
