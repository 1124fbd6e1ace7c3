"""Virtual swarms that step locally: speeds, deaths, newcomers, and checkpoints of another founding."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from minga.averaging.codecs.residual import KeptResidual
from minga.core.events.bus import Event
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.lineage import Lineage
from minga.training.strategy.interface import Recovery
from minga.training.strategy.local import Local
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import assert_equal_states, make_spec, offences, pull, vector_replica, virtually

NUMEL = 9_000
KINDS: dict[str, dict[str, Any]] = {
    "blocking": {},
    "overlapped": {"overlap": True},
    "streaming": {"overlap": True, "fragments": 3},
    "mixing": {"overlap": True, "merge": "mix"},
    "eager": {"overlap": True, "merge": "eager"},
}
TRIED = ["streaming", *map(soaked, ("blocking", "overlapped", "mixing", "eager"))]


def local_swarm(kind: str, batch: int = 24, **training: Any) -> Swarm:
    spec = make_spec(batch, training={"strategy": "local", **training}, strategy={"local": KINDS[kind]})
    return Swarm(spec, make_replica=vector_replica(NUMEL, KINDS[kind].get("fragments", 1)), gradient=pull, seed=3)


def add(swarm: Swarm, count: int, seconds: float = 0.1, **host: Any) -> list[SimulatedPeer]:
    return [swarm.add(HostSettings(latency_s=0.02, **host), TrainerSettings(1, seconds)) for _ in range(count)]


def strategy_of(peer: SimulatedPeer) -> Local:
    assert peer.port is not None
    assert isinstance(peer.port._strategy, Local)
    return peer.port._strategy


@pytest.mark.parametrize("kind", TRIED)
def test_peers_of_any_speed_take_as_many_inner_steps_as_they_can(kind: str) -> None:
    """With speeds 1 : 4 : 16, of which the slowest takes a few steps in each round; no trainer waits for a round."""

    @virtually
    async def main() -> None:
        swarm = local_swarm(kind, 84 * KINDS[kind].get("fragments", 1), stop_after_steps=6)
        peers = [*add(swarm, 1, 0.32), *add(swarm, 1, 0.08), *add(swarm, 1, 0.02)]
        try:
            for peer in peers:
                await peer.ended.wait()
            await assert_equal_states(swarm)
            one, four, sixteen = (peer.samples_done for peer in peers)
            assert four == pytest.approx(4 * one, rel=0.25)
            assert sixteen == pytest.approx(16 * one, rel=0.25)
            if kind != "blocking":
                since_s = asyncio.get_running_loop().time() - min(e.event.time for e in swarm.log.of("round.begun"))
                assert peers[2].computed_s > 0.9 * since_s, "it never waited"
            assert not offences(swarm)
        finally:
            await swarm.close()

    main()


def test_a_round_waits_for_inner_steps_where_a_peers_part_of_the_batch_is_less_than_one() -> None:
    """More peers came than the organiser planned for: together they have the target batch before any has a step."""

    @virtually
    async def main() -> None:
        spec = make_spec(
            8, training={"strategy": "local", "stop_after_steps": 4}, strategy={"local": {"local_batch": 8}}
        )
        swarm = Swarm(spec, make_replica=vector_replica(NUMEL), gradient=pull, seed=3)
        peers = add(swarm, 4)
        try:
            for peer in peers:
                await peer.ended.wait()
            await assert_equal_states(swarm)
            assert not swarm.log.of("round.aborted")
        finally:
            await swarm.close()

    main()


def test_work_on_a_state_of_another_founding_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer comes back with a checkpoint of an earlier founding of the run: nothing of it reaches the others."""
    asked: list[int] = []

    def noted(_: Local, rounds: int) -> Recovery:
        asked.append(rounds)
        return Recovery.REBASE

    monkeypatch.setattr(Local, "missed", noted)

    @virtually
    async def main() -> None:
        swarm = local_swarm("blocking")
        away, *others = add(swarm, 4)[1:]
        try:
            await swarm.run_until_step(2, limit_s=100)
            state = away.replica.capture().of(Lineage.founded("7" * 32))
            swarm.internet.kill(away.name)
            await swarm.run_until_step(4, limit_s=100, peers=[peer.name for peer in others])
            again = swarm.restart(away.name, checkpoint=state)
            while again.session.member is None:
                await asyncio.sleep(0.01)
            vectors = again.session.member.vectors  # type: ignore[union-attr]
            vectors.left_out.restore({"what a codec left out": KeptResidual(1, torch.ones(3))})
            while sum(entry.peer == away.name for entry in swarm.log.of("sync.finished")) < 2:
                await asyncio.sleep(0.01)
            assert (asked, vectors.left_out.kept(-1)) == ([], {})
            await swarm.run_until_step(8, limit_s=100)
            await assert_equal_states(swarm)
        finally:
            await swarm.close()

    main()


PHASES = {"open": "step.applied", "sealed": "round.begun", "reduced": "round.reduced"}


PLACES = [(kind, phase) for kind in KINDS for phase in (*PHASES, "in flight")]


@pytest.mark.parametrize(
    ("kind", "phase"), [each if each == ("blocking", "in flight") else soaked(*each) for each in PLACES]
)
def test_a_peer_dies_in_each_phase_of_a_step(phase: str, kind: str) -> None:
    """The others go on with equal Θ and V, and so does a newcomer that comes in between."""

    @virtually
    async def main() -> None:
        swarm = local_swarm(kind, stop_after_steps=7)
        peers = add(swarm, 5)
        victim, dead = peers[1], asyncio.Event()

        def hear(event: Event) -> None:
            if dead.is_set() or event.kind != PHASES.get(phase, "round.begun") or event.fields["step"] != 4:
                return
            dead.set()
            if phase != "in flight":
                swarm.internet.kill(victim.name)
            else:
                asyncio.get_running_loop().call_later(0.03, swarm.internet.kill, victim.name)

        victim.session.events.subscribe(hear)
        try:
            await dead.wait()
            joiner = add(swarm, 1)[0]
            alive = [peer for peer in (*peers, joiner) if peer is not victim]
            for peer in alive:
                await peer.ended.wait()
            await assert_equal_states(swarm, [peer.name for peer in alive])
            assert [peer.replica.step for peer in alive] == [7] * 5
            assert len({strategy_of(peer)._anchor.sum().item() for peer in alive}) == 1
            assert not swarm.log.of("member.diverged")
            assert not offences(swarm)
        finally:
            await swarm.close()

    main()


@virtually
async def test_fragments_take_turns_by_the_round_number_whoever_comes_and_goes() -> None:
    swarm = local_swarm("streaming", stop_after_steps=9)
    peers = add(swarm, 4)
    try:
        await swarm.run_until_step(3, limit_s=100)
        late = add(swarm, 1)[0]
        await swarm.run_until_step(5, peers=[peer.name for peer in peers], limit_s=100)
        swarm.internet.kill(peers[3].name)
        for peer in (*peers[:3], late):
            await peer.ended.wait()
        await assert_equal_states(swarm, [peer.name for peer in (*peers[:3], late)])
        layouts = {peer.replica.layout_of(step).fingerprint for peer in (*peers, late) for step in (1, 4, 10)}
        assert len(layouts) == 1
        assert len({peers[0].replica.layout_of(step).fingerprint for step in range(6)}) == 3
    finally:
        await swarm.close()
