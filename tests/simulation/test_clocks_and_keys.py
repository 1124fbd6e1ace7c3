"""Machines with wrong clocks and with copies of keys that are in use: one history, and a clear word to who is wrong."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest

from minga.core.errors import RejectedError
from minga.core.events.bus import Event
from minga.core.refusal_code import RefusalCode
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from tests.worlds.seeds import seeds, soaked
from tests.worlds.swarm_tools import (
    assert_equal_states,
    assert_one_group_per_step,
    longest_gap_s,
    make_spec,
    offences,
    virtually,
)

QUARTER_S = 840.0


class OneHistory(Swarm):
    """A swarm that notes in which states its peers have been."""

    def __init__(self, seed: int, batch: int = 32) -> None:
        super().__init__(make_spec(batch), seed=seed, checkpoint_every=1)
        self.states: dict[int, set[str]] = defaultdict(set)
        self.went_back: list[str] = []
        self._steps: dict[str, int] = {}
        self._rng = random.Random(seed)

    def join(self, skew_s: float = 0.0, *, key_of: str | None = None, through: list[str] | None = None) -> str:
        host = HostSettings(latency_s=self._rng.uniform(0.005, 0.04), clock_skew_s=skew_s)
        entries = None if through is None else [self.peers[name].network.address for name in through]
        peer = self.add(host, TrainerSettings(4, 0.2, jitter=0.1), key_of=key_of, entries=entries)
        self.note(peer)
        return peer.name

    def note(self, peer: SimulatedPeer) -> None:
        def hear(event: Event) -> None:
            if event.kind == "step.applied":
                self.states[peer.replica.step].add(peer.replica.digest())
                if peer.replica.step < self._steps.get(peer.name, 0):
                    self.went_back.append(f"{peer.name} to step {peer.replica.step}")
                self._steps[peer.name] = peer.replica.step

        peer.session.events.subscribe(hear)

    async def train_on(self, names: list[str], steps: int = 3) -> None:
        await self.run_until_step(
            max(self.peers[name].replica.step for name in names) + steps, peers=names, limit_s=60.0
        )

    async def assert_one_history(self, names: list[str]) -> None:
        await assert_equal_states(self, names)
        assert_one_group_per_step(self)
        assert {step: states for step, states in self.states.items() if len(states) > 1} == {}
        assert self.went_back == []
        assert offences(self) == []


def refusal(swarm: Swarm, name: str) -> RefusalCode:
    error = swarm.peers[name].error
    assert isinstance(error, RejectedError)
    return error.code


@pytest.mark.promise("clocks")
@pytest.mark.parametrize("seed", seeds(1, of=3))
@virtually
async def test_clocks_off_by_a_quarter_of_an_hour_train_together(seed: int) -> None:
    """The organiser's too; one is killed and comes back, one is set right in the middle, and newcomers come."""
    swarm, rng = OneHistory(seed), random.Random(seed)
    names = [swarm.join(rng.choice((-1, 1)) * QUARTER_S)]
    await asyncio.sleep(2.0)
    names += [swarm.join(skew_s) for skew_s in (QUARTER_S, 0.0, -QUARTER_S)]
    await swarm.train_on(names)
    swarm.internet.set_clock(names[0], 0.0)
    swarm.internet.set_clock(names[1], 0.0)
    await swarm.train_on(names)
    swarm.internet.kill(names[3])
    await asyncio.sleep(rng.uniform(0.5, 5.0))
    swarm.note(swarm.restart(names[3]))
    names.append(swarm.join(rng.uniform(-900.0, 900.0)))
    await swarm.train_on(names)
    await swarm.assert_one_history(names)
    assert longest_gap_s(swarm) < 12.0
    await swarm.close()


@pytest.mark.promise("clocks")
@pytest.mark.parametrize(
    ("count", "skew_s"),
    [(2, 3600.0), (3, -3600.0), *map(soaked, (3, 2, 2, 3), (86400.0, -3600.0, 86400.0, 3600.0))],
)
@virtually
async def test_a_clock_that_is_set_wrong_changes_nothing_for_those_who_are_there(count: int, skew_s: float) -> None:
    swarm = OneHistory(3)
    names = [swarm.join() for _ in range(count)]
    await swarm.train_on(names)
    for wrong in (names[0], names[-1]):
        swarm.internet.set_clock(wrong, skew_s)
        await swarm.train_on(names, 8)
        await swarm.assert_one_history(names)
        assert all(peer.replica.lineage.solo == 0 for peer in swarm.peers.values())
        swarm.internet.set_clock(wrong, 0.0)
    assert longest_gap_s(swarm) < 3.0
    await swarm.close()


@pytest.mark.promise("clocks")
@pytest.mark.parametrize(("skew_s", "count"), [(86400.0, 2), soaked(-3600.0, 3)])
@virtually
async def test_a_peer_that_was_cut_off_with_a_wrong_clock_is_let_in_again(skew_s: float, count: int) -> None:
    """And lets the others in, so that two of them do not go on alone for good."""
    swarm = OneHistory(3)
    names = [swarm.join() for _ in range(count)]
    await swarm.train_on(names)
    wrong, *others = reversed(names)
    swarm.internet.set_clock(wrong, skew_s)
    await asyncio.sleep(10.0)
    for other in others:
        swarm.internet.cut(wrong, other)
    await asyncio.sleep(40.0)
    for other in others:
        swarm.internet.restore(wrong, other)
    await asyncio.sleep(20.0)
    solo = [peer.replica.lineage.solo for peer in swarm.peers.values()]
    await swarm.train_on(names)
    await assert_equal_states(swarm, names)
    assert [peer.replica.lineage.solo for peer in swarm.peers.values()] == solo
    await swarm.close()


@pytest.mark.promise("clocks")
@pytest.mark.promise("one-key-one-process")
@virtually
async def test_who_comes_with_a_clock_that_is_an_hour_off_or_a_key_in_use_is_refused_and_changes_nothing() -> None:
    """The key of the organiser, and of a volunteer."""
    swarm = OneHistory(2)
    names = [swarm.join() for _ in range(4)]
    await swarm.train_on(names)

    async def assert_refused(comer: str, code: RefusalCode) -> None:
        await swarm.peers[comer].ended.wait()
        assert refusal(swarm, comer) is code
        assert swarm.peers[comer].replica.step == 0
        await swarm.train_on(names)
        await swarm.assert_one_history(names)

    for skew_s in (3600.0, -3600.0):
        await assert_refused(swarm.join(skew_s), RefusalCode.CLOCK)
    for whose in (names[0], names[2]):
        others = [name for name in names if name != whose]
        await assert_refused(swarm.join(key_of=whose, through=others), RefusalCode.KEY)
    assert longest_gap_s(swarm) < 3.0
    await swarm.close()


@pytest.mark.promise("one-key-one-process")
@pytest.mark.parametrize("seed", seeds(1, of=4))
@virtually
async def test_of_two_machines_with_one_key_that_enter_at_once_one_stays(seed: int) -> None:
    swarm, rng = OneHistory(seed), random.Random(seed)
    names = [swarm.join() for _ in range(4)]
    await swarm.train_on(names)
    first = swarm.join(through=names[:1])
    await asyncio.sleep(rng.uniform(0.01, 0.3))
    second = swarm.join(key_of=first, through=names[-1:])
    async with asyncio.timeout(30.0):
        await swarm.peers[second].ended.wait()
    assert refusal(swarm, second) is RefusalCode.KEY
    names.append(first)
    await swarm.train_on(names)
    await swarm.assert_one_history(names)
    assert longest_gap_s(swarm) < 12.0
    await swarm.close()
