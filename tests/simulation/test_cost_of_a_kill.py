"""What the death of a peer costs the others, at whatever moment of a step it comes: three trainers and an auxiliary."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from minga.averaging.election import ranking
from minga.core.events.bus import Event
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import assert_equal_states, assert_one_group_per_step, later, make_spec, virtually

pytestmark = pytest.mark.promise("any-peer-may-die")

EARLIEST_STEP = 3
BATCH, MICRO_BATCH, MICRO_BATCH_S = 96, 8, 0.25
USUAL_S = BATCH / MICRO_BATCH / 3 * MICRO_BATCH_S
GIVEN_UP_S = 1.75
"""Until a peer counts as gone: 1.25 s of silence, and two ticks of the clocks that count it."""
PROCESS_S = 1.0
"""What the end of a process may cost whose machine lives: it closes its TCP connections."""
MOMENTS = (0.2, 0.6, 0.9, 1.0, 1.08)
"""In shares of a usual step, from its start on: the last ones are while the step is closed, and in its round."""
TRIED = ((0.2, True), (0.9, False), (1.08, True))
PAIRS = [
    (moment, leads) if (moment, leads) in TRIED else soaked(moment, leads)
    for moment in MOMENTS
    for leads in (False, True)
]


class Scene:
    """A trainer dies at some moment of a step that it leads, or does not lead."""

    def __init__(self, seed: int, moment: float, *, leads: bool, is_noticed: bool = False) -> None:
        self.swarm = Swarm(make_spec(BATCH), seed=seed)
        self.leads, self.moment, self.step, self.killed_s = leads, moment, 0, 0.0
        self.is_noticed = is_noticed
        self.organiser = self.swarm.add(HostSettings(latency_s=0.0005), auxiliary=True)
        trainer = TrainerSettings(MICRO_BATCH, MICRO_BATCH_S, jitter=0.1)
        self.trainers = [self.swarm.add(HostSettings(latency_s=0.0005), trainer) for _ in range(3)]
        self.victim = self.trainers[seed % 3]
        self.victim.session.events.subscribe(self.on_event)

    def on_event(self, event: Event) -> None:
        if event.kind == "step.applied" and not self.step:
            step, everyone = int(str(event.fields["step"])), [p.network.peer_id for p in self.swarm.peers.values()]
            first = ranking(self.swarm.spec.run_id, step, everyone)[0]
            if step >= EARLIEST_STEP and (first == self.victim.network.peer_id) == self.leads:
                self.step = step
                later(self.moment * USUAL_S, self.kill)

    def kill(self) -> None:
        self.killed_s = asyncio.get_running_loop().time()
        self.swarm.internet.kill(self.victim.name, is_noticed=self.is_noticed)

    async def run(self) -> float:
        """By how many seconds longer than before a step took, the longer one of two."""
        survivors = [peer.name for peer in (self.organiser, *self.trainers) if peer is not self.victim]
        try:
            while not self.step:
                await asyncio.sleep(0.1)
            await self.swarm.run_until_step(self.step + 3, peers=survivors, limit_s=60.0)
            await assert_equal_states(self.swarm)
            assert_one_group_per_step(self.swarm)
        finally:
            await self.swarm.close()
        log, costs = self.swarm.log, []
        for name in survivors:
            times = [logged.event.time for logged in log.of("step.applied") if logged.peer == name]
            gaps = list(itertools.pairwise(times))
            usual_s = min(b - a for a, b in gaps if b <= self.killed_s)
            costs.append(max(b - a for a, b in [gap for gap in gaps if gap[1] > self.killed_s][:2]) - usual_s)
        return max(costs)


@virtually
async def cost_of(seed: int, moment: float, leads: bool, is_noticed: bool = False) -> float:
    return await Scene(seed, moment, leads=leads, is_noticed=is_noticed).run()


@pytest.mark.parametrize("seed", [4, *(soaked(seed) for seed in range(12) if seed != 4)])
@pytest.mark.parametrize(("moment", "leads"), PAIRS)
def test_a_kill_costs_the_silence_that_shows_it_and_little_more(moment: float, leads: bool, seed: int) -> None:
    # The others make up for lost samples while the silence lasts, unless it is the leader's, who would tell them to.
    made_up_s = moment * USUAL_S / 2 if leads else 0.0
    assert cost_of(seed, moment, leads) < GIVEN_UP_S + made_up_s


@pytest.mark.parametrize("seed", [4, *(soaked(seed) for seed in range(12) if seed != 4)])
@pytest.mark.parametrize("leads", [soaked(False), True])
@pytest.mark.parametrize("moment", [*map(soaked, (0.2, 0.6, 0.9, 1.0)), 1.08])
def test_the_end_of_a_process_costs_less_than_a_second(moment: float, leads: bool, seed: int) -> None:
    assert cost_of(seed, moment, leads, is_noticed=True) < PROCESS_S
