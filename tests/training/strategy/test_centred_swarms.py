"""Elastic and leader in virtual swarms: what travels, who dies, who comes, and how a run ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from minga.averaging.allreduce import sender
from minga.averaging.allreduce.round import Round
from minga.averaging.clocking.sample_quota import Registration
from minga.averaging.codecs.residual import Encoder
from minga.averaging.messages import PeerScore, Plan
from minga.averaging.planning.plan_maker import PlanMaker
from minga.network.interface import PeerId
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.strategy.centred import Centred
from tests.worlds.fault_search import search
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import assert_equal_states, make_spec, offences, pull, vector_replica, virtually

NUMEL = 30_000
CHUNKS = 8
"""About as many chunks as the only contribution of a round goes in here."""
SPEEDS = (0.32, 0.08, 0.02)
"""Seconds of a micro-batch, so that speeds are as 1 : 4 : 16."""


def centred_swarm(strategy: str, count: int, *, speeds: tuple[float, ...] = (0.1,), **training: Any) -> Swarm:
    spec = make_spec(8 * count, training={"strategy": strategy, **training})
    swarm = Swarm(spec, make_replica=vector_replica(NUMEL), gradient=pull, seed=2)
    for index in range(count):
        swarm.add(HostSettings(latency_s=0.02), TrainerSettings(2, speeds[index % len(speeds)]))
    return swarm


def parameters(peer: SimulatedPeer) -> torch.Tensor:
    return peer.replica.read_values()


def strategy_of(peer: SimulatedPeer) -> Centred:
    assert peer.port is not None
    strategy = peer.port._strategy
    assert isinstance(strategy, Centred)
    return strategy


class Uploads:
    """Counts the chunks of own contributions by round and peer; `before` is called before each is sent."""

    def __init__(self, swarm: Swarm, patch: pytest.MonkeyPatch) -> None:
        self.sent: dict[str, dict[str, int]] = {}
        self.kill_at: tuple[int, int] | None = None
        self.killed: list[str] = []
        send_own, uploads = sender._send_own, self

        async def counted(round: Round, own: Encoder, index: int, buffer: memoryview, stream: MessageStream) -> None:
            name = swarm.name_of(round.node.peer_id)
            counts = uploads.sent.setdefault(round.plan.round_id, {})
            if uploads.kill_at == (round.plan.step, sum(counts.values())) and not uploads.killed:
                uploads.killed.append(name)
                swarm.internet.kill(swarm.peers[name].network)
            counts[name] = counts.get(name, 0) + 1
            await send_own(round, own, index, buffer, stream)

        patch.setattr(sender, "_send_own", counted)


def test_one_peer_alone_uploads_in_each_round_of_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three trainers that cannot be dialled, and so reduce nothing for others, and an auxiliary that does."""

    @virtually
    async def main() -> None:
        spec = make_spec(24, training={"strategy": "leader"})
        swarm = Swarm(spec, make_replica=vector_replica(NUMEL), gradient=pull, seed=3)
        uploads = Uploads(swarm, monkeypatch)
        swarm.add(HostSettings(latency_s=0.02), auxiliary=True)
        for _ in range(3):
            swarm.add(HostSettings(latency_s=0.02, dialable=False), TrainerSettings(2, 0.1))
        try:
            await swarm.run_until_step(8, limit_s=200)
            await assert_equal_states(swarm)
        finally:
            await swarm.close()
        begun: dict[str, dict[str, int]] = {}
        for logged in swarm.log.of("round.reduced"):
            if logged.peer != "peer-0":
                fields = logged.event.fields
                begun.setdefault(str(fields["round"]), {})[logged.peer] = int(str(fields["bytes_sent"]))
        leaders = set()
        for round_id, sent in begun.items():
            (leader,) = uploads.sent[round_id]
            leaders.add(leader)
            assert sent == {name: 4 * (NUMEL + 1) if name == leader else 0 for name in sent}  # and a number of presence
        assert len(begun) >= 8
        assert len(leaders) > 1

    main()


@pytest.mark.parametrize("chunk", [soaked(chunk) if chunk != 3 else chunk for chunk in range(CHUNKS)])
def test_a_leader_that_dies_leaves_the_centre_as_it_was(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    @virtually
    async def main() -> None:
        swarm = centred_swarm("leader", 4)
        uploads = Uploads(swarm, monkeypatch)
        uploads.kill_at = 2, chunk
        try:
            while not uploads.killed:
                await asyncio.sleep(0.01)
            alive = swarm.alive()
            (before,) = {peer.replica.digest() for peer in alive}
            while len(swarm.log.of("round.aborted")) < len(alive):
                await asyncio.sleep(0.01)
            assert {peer.replica.digest() for peer in alive} == {before}
            await swarm.run_until_step(4, limit_s=100)
            await assert_equal_states(swarm)
            assert not offences(swarm)
        finally:
            await swarm.close()

    main()


@pytest.mark.parametrize("strategy", [soaked("leader"), "elastic"])
def test_a_newcomer_begins_at_the_centre_and_agrees_with_all(strategy: str) -> None:
    """Speeds are as 1 : 4 : 16; the slow peers' parameters are their own all the same."""

    @virtually
    async def main() -> None:
        swarm = centred_swarm(strategy, 3, speeds=SPEEDS)
        try:
            await swarm.run_until_step(3, limit_s=200)
            late = swarm.add(HostSettings(latency_s=0.02), TrainerSettings(2, 0.05))
            while not (late.session.member is not None and late.session.member.ready.is_set()):
                await asyncio.sleep(0.01)
            assert torch.equal(parameters(late), strategy_of(late)._centre)
            await swarm.run_until_step(7, limit_s=200)
            await assert_equal_states(swarm)
            centres = {tuple(strategy_of(peer)._centre[:4].tolist()) for peer in swarm.alive()}
            own = {tuple(parameters(peer)[:4].tolist()) for peer in swarm.alive()}
            assert (len(centres), len(own)) == (1, 4)
            assert not swarm.log.of("member.diverged")
        finally:
            await swarm.close()

    main()


def test_the_last_round_of_a_leader_averages_all_peers_by_their_samples() -> None:
    @virtually
    async def main() -> None:
        swarm = centred_swarm("leader", 3, speeds=SPEEDS, stop_after_steps=3)
        given: dict[str, tuple[torch.Tensor, int]] = {}
        contribution = Centred.contribution

        def noted(self: Centred) -> tuple[torch.Tensor | None, int]:
            vector, samples = contribution(self)
            if vector is not None and self.replica.step == 2:
                name = next(peer.name for peer in swarm.peers.values() if peer.replica is self.replica)
                given[name] = (self._centre + vector).double(), samples
            return vector, samples

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Centred, "contribution", noted)
            try:
                for peer in swarm.peers.values():
                    await peer.ended.wait()
                assert sum(samples for _, samples in given.values()) >= 24
                mean = sum(x * n for x, n in given.values()) / sum(n for _, n in given.values())
                for peer in swarm.peers.values():
                    assert torch.allclose(parameters(peer).double(), mean, atol=1e-6)
                    assert torch.equal(parameters(peer), strategy_of(peer)._centre)
                    assert strategy_of(peer).samples == 0, "nobody computes beyond the end"
            finally:
                await swarm.close()

    main()


def test_the_leader_of_a_group_cannot_pass_over_a_better_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """From step 3 on its leader writes into its plans that it alone has a score. Nobody follows them."""
    plan, liars = PlanMaker.plan, list[str]()

    async def lie(self: PlanMaker, step: int, registrations: Mapping[PeerId, Registration]) -> Plan:
        made = await plan(self, step, registrations)
        if step == 3 and not liars:
            liars.append(self._node.peer_id)
        if self._node.peer_id in liars and len(made.members) > 1:
            own = made.scores[0] or PeerScore(0.0)
            made = replace(made, contributors=(0,), scores=(own, *[None] * (len(made.members) - 1)))
        return made

    monkeypatch.setattr(PlanMaker, "plan", lie)

    @virtually
    async def main() -> None:
        swarm = centred_swarm("leader", 4, speeds=(3.0,))
        try:
            while not liars:
                await asyncio.sleep(0.01)
            honest = [name for name, peer in swarm.peers.items() if peer.network.peer_id not in liars]
            await swarm.run_until_step(6, peers=honest, limit_s=400)
            await assert_equal_states(swarm, honest)
            refused = swarm.log.of("plan.refused")
            assert refused
            for logged in refused:
                assert logged.peer in honest
                assert logged.event.fields["peer"] in liars
                assert "is not what this peer told" in str(logged.event.fields["why"])
        finally:
            await swarm.close()

    main()


def test_strategies_hear_of_the_trainers_and_of_the_batch_of_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three trainers and an auxiliary, of which one trainer dies."""
    heard: list[tuple[int, int]] = []
    note = Centred.note_round
    monkeypatch.setattr(Centred, "note_round", lambda self, *said: (heard.append(said), note(self, *said)))

    @virtually
    async def main() -> None:
        swarm = centred_swarm("elastic", 3)
        swarm.add(HostSettings(latency_s=0.02), auxiliary=True)
        try:
            await swarm.run_until_step(4, limit_s=200)
            assert set(heard) == {(3, 24)}
            swarm.internet.kill(swarm.peers["peer-1"].network)
            heard.clear()
            await swarm.run_until_step(7, peers=["peer-0", "peer-2"], limit_s=200)
            assert heard[-1] == (2, 24)
        finally:
            await swarm.close()

    main()


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["leader", "elastic"])
@pytest.mark.parametrize("seed", range(40))
def test_a_swarm_around_a_centre_survives_two_mishaps_at_a_time(seed: int, strategy: str) -> None:
    assert search(seed, strategy) == []
