"""What members apply: the same numbers as one process that does the same samples."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import Any

import pytest
import torch

from minga.averaging.allreduce.round import Round, RoundOutcome
from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.matchmaking.attempt import OutOfSyncError
from minga.averaging.messages import GroupMember, Part, Plan
from minga.core.errors import ClosedError
from minga.core.events.bus import Event
from minga.core.spec.run_spec import RunSpec
from minga.network.interface import Address, PeerId
from minga.network.virtual.internet import HostSettings
from minga.optim import SGD
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.bridge.gradient_port import GradientPort
from minga.training.record_kinds import Progress
from minga.training.replica.replica import Replica
from tests.worlds.swarm_tools import (
    assert_equal_states,
    make_spec,
    pull,
    rounds,
    same_step,
    vector_replica,
    virtually,
)

LR = 0.1


class Ledger:
    """Notes each micro-batch that was computed: the step of the parameters it was computed with, and its gradient."""

    def __init__(self) -> None:
        self.computed: dict[str, list[tuple[int, torch.Tensor]]] = defaultdict(list)
        self.applied: dict[str, dict[int, torch.Tensor]] = defaultdict(dict)
        self.calls: dict[str, int] = defaultdict(int)

    def gradient(self, peer: SimulatedPeer, samples: int) -> None:
        """Depends on parameters, peer and count, so that no two are alike."""
        self.calls[peer.name] += 1
        seed = 1009 * self.calls[peer.name] + int(peer.network.peer_id[:8], 16)
        generator = torch.Generator().manual_seed(seed)
        for parameter in peer.replica.vector.parameters():
            parameter.grad = parameter.detach() - torch.randn(parameter.shape, generator=generator)
        flat = torch.cat([p.grad.reshape(-1) for p in peer.replica.vector.parameters() if p.grad is not None])
        self.computed[peer.name].append((peer.replica.step, flat.clone()))

    def parameters(self, peer: SimulatedPeer) -> torch.Tensor:
        return torch.cat([p.detach().reshape(-1) for p in peer.replica.vector.parameters()]).clone()

    def watch(self, peer: SimulatedPeer) -> None:
        self.applied[peer.name][0] = self.parameters(peer)

        def note(event: Event) -> None:
            if event.kind == "step.applied":
                self.applied[peer.name][int(str(event.fields["step"]))] = self.parameters(peer)

        peer.session.events.subscribe(note)


async def train(
    strategy: str, steps: int, monkeypatch: pytest.MonkeyPatch, latency_s: float = 0.01
) -> tuple[Swarm, Ledger]:
    """Three trainers of different speed and micro-batch; only micro-batches that were taken stay in the ledger."""
    ledger = Ledger()
    swarm = Swarm(make_spec(48, training={"strategy": strategy}), seed=3, gradient=ledger.gradient)
    taken = GradientPort.add
    by_port: dict[int, str] = {}

    def add(port: GradientPort, samples: int, loss: float | None = None) -> bool:
        name = by_port.setdefault(id(port), next(n for n, p in swarm.peers.items() if p.port is port))
        kept = taken(port, samples, loss)
        if not kept:
            ledger.computed[name].pop()
        return kept

    monkeypatch.setattr(GradientPort, "add", add)
    for micro_batch, seconds in ((4, 0.1), (2, 0.13), (1, 0.04)):
        ledger.watch(swarm.add(HostSettings(latency_s=latency_s), TrainerSettings(micro_batch, seconds)))
    try:
        await swarm.run_until_step(steps, limit_s=300)
        await asyncio.sleep(0.01)  # the event of the last step comes a little after the step
        await assert_equal_states(swarm)
    finally:
        await swarm.close()
    return swarm, ledger


def replay(swarm: Swarm, ledger: Ledger, steps: int) -> tuple[float, list[int]]:
    """Compare each step with what one process would have done; returns the largest error and all ages of gradients."""
    begun, position = rounds(swarm), dict.fromkeys(swarm.peers, 0)
    worst, ages = 0.0, []
    reference = next(iter(swarm.peers))
    for step in range(steps):
        (samples_by_peer,) = begun[step].values()
        total, weight = torch.zeros(27, dtype=torch.float64), 0
        for name, samples in samples_by_peer.items():
            settings = swarm.peers[name].settings
            assert settings is not None
            count, rest = divmod(samples, settings.micro_batch)
            assert rest == 0
            for computed_at, gradient in ledger.computed[name][position[name] : position[name] + count]:
                ages.append(step - computed_at)
                total += gradient.double() * settings.micro_batch
            position[name] += count
            weight += samples
        expected = ledger.applied[reference][step].double() - LR * total / weight
        worst = max(worst, float((expected - ledger.applied[reference][step + 1]).abs().max()))
    return worst, ages


@pytest.mark.promise("the-model-is-right")
def test_synchronous_steps_are_those_of_one_large_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm, ledger = virtually(train)("synchronous", 12, monkeypatch)
    # From the second step on everybody is in from the beginning: all that was computed is accounted for.
    worst, ages = replay(swarm, ledger, 12)
    assert worst < 1e-6
    assert set(ages) == {0}


def test_delayed_steps_use_gradients_that_are_at_most_one_step_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """theta[t+1] = theta[t] - lr * mean of g(theta[c]) with c = t or t - 1."""
    swarm, ledger = virtually(train)("delayed", 12, monkeypatch, latency_s=0.05)
    worst, ages = replay(swarm, ledger, 12)
    assert worst < 1e-6
    assert set(ages) == {0, 1}
    assert sum(ages) > 0.2 * len(ages)


@pytest.mark.parametrize("others", [1, 2])
def test_who_comes_to_another_end_than_the_others_takes_theirs(others: int) -> None:
    """Nobody would follow the last step that shows the difference."""

    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(24, training={"stop_after_steps": 3}), seed=2)
        peers = [swarm.add(HostSettings(latency_s=0.02), TrainerSettings(2, 0.1)) for _ in range(1 + others)]
        odd = peers[-1].replica
        apply = odd.apply

        def apply_otherwise(mean: torch.Tensor, step: int) -> None:
            apply(mean, step)
            if step == 3:
                odd.write_values(odd.read_values() + 1.0)

        odd.apply = apply_otherwise  # type: ignore[method-assign]
        try:
            for peer in peers:
                await peer.ended.wait()
            await assert_equal_states(swarm)
            assert [e.peer for e in swarm.log.of("member.diverged")]
            assert {peer.replica.step for peer in peers} == {3}
        finally:
            await swarm.close()

    main()


def test_a_run_ends_for_everybody_after_its_last_step() -> None:
    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(24, training={"stop_after_steps": 4}), seed=2)
        peers = [swarm.add(HostSettings(), TrainerSettings(2, 0.1)) for _ in range(3)]
        auxiliary = swarm.add(HostSettings(), auxiliary=True)
        try:
            await swarm.run_until_step(4, limit_s=100)
            for peer in [*peers, auxiliary]:
                while not [e for e in swarm.log.of("run.finished") if e.peer == peer.name]:
                    await asyncio.sleep(0.01)
            await same_step(swarm)
            await assert_equal_states(swarm)
            assert {peer.replica.step for peer in peers} == {4}
            assert [peer.error for peer in swarm.peers.values()] == [None] * 4
            begun = {m for g in rounds(swarm).values() for members in g.values() for m in members}
            assert auxiliary.name in begun  # it reduces, without samples
            assert {s for g in rounds(swarm).values() for m in g.values() for n, s in m.items() if n == "peer-3"} == {0}
        finally:
            await swarm.close()

    main()


@pytest.mark.parametrize("micro_batch_s", [8.0, 30.0])
def test_who_was_slow_in_the_last_steps_takes_the_state_of_the_others_or_is_told(
    micro_batch_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Its micro-batch lasted longer than these: it found nobody, took them alone, and ended with another model."""

    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(24, training={"stop_after_steps": 4}), seed=2)
        peers = [swarm.add(HostSettings(), TrainerSettings(2, 0.1)) for _ in range(3)]

        async def leave_at_the_end(peer: SimulatedPeer) -> None:
            await peer.ended.wait()
            await peer.session.close()

        try:
            await swarm.run_until_step(1, limit_s=100)
            peers[-1].settings = TrainerSettings(2, micro_batch_s)
            await asyncio.gather(*map(leave_at_the_end, peers))
            digests = [peer.replica.digest() for peer in peers]
        finally:
            await swarm.close()
        assert {peer.replica.step for peer in peers} == {4}
        assert digests[0] == digests[1]
        warned = [each.message for each in caplog.records if "alone at step 3, is another than theirs" in each.message]
        assert (digests[2] == digests[0], len(warned)) == ((True, 0) if micro_batch_s < 10.0 else (False, 1))

    with caplog.at_level(logging.WARNING, "minga.training"):
        main()


def test_nobody_waits_in_the_end_for_a_minority_that_was_lost_before_the_last_round() -> None:
    """Fewer than half of a group wait for the others, so they have no steps of their own to compare."""

    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(24, training={"stop_after_steps": 5}), seed=2)
        peers = [swarm.add(HostSettings(), TrainerSettings(2, 0.1)) for _ in range(4)]
        try:
            await swarm.run_until_step(2, limit_s=100)
            swarm.internet.kill(peers[-1].network)
            await swarm.run_until_step(5, limit_s=100)
            last_s = asyncio.get_running_loop().time()
            while len(swarm.log.of("run.finished")) < 3:
                await same_step(swarm)
                await asyncio.sleep(0.05)
            assert asyncio.get_running_loop().time() - last_s < 1.0
        finally:
            await swarm.close()

    main()


def test_a_lying_member_is_found_out_by_its_next_join() -> None:
    """One member applies other numbers than the rest, as if a round had been repaired behind its back."""

    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(24, digest_every=1000), seed=5)
        for _ in range(4):
            swarm.add(HostSettings(), TrainerSettings(2, 0.1))
        try:
            await swarm.run_until_step(2, limit_s=60)
            member = swarm.peers["peer-1"].session.member
            assert member is not None
            reduce, spoiled = member._all_reduce.reduce, []

            async def reduce_wrongly(*given: Any, **more: Any) -> Any:
                plan, _, _, _, result, *_ = given
                outcome = await reduce(*given, **more)
                if not spoiled:
                    spoiled.append(plan.step)
                    result.add_(1.0)
                return outcome

            member._all_reduce.reduce = reduce_wrongly  # type: ignore[method-assign]
            await swarm.run_until_step(7, limit_s=60)
            await assert_equal_states(swarm)
            assert spoiled
            assert {e.peer for e in swarm.log.of("member.out_of_sync")} == {"peer-1"}
        finally:
            await swarm.close()

    main()


def test_a_mistake_in_the_program_lets_the_trainer_go(caplog: pytest.LogCaptureFixture) -> None:
    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(8), seed=5)
        peer = swarm.add(HostSettings(), TrainerSettings(2, 0.1))
        try:
            await swarm.run_until_step(2, limit_s=60)
            member = peer.session.member
            assert member is not None
            assert peer.port is not None
            member.ready.clear()

            async def form(step: int, avoid: Any) -> Any:
                raise ValueError("no such group")

            member._formation.form = form  # type: ignore[method-assign]
            await asyncio.sleep(2.0)
            with pytest.raises(ClosedError, match="ValueError: no such group") as raised:
                peer.port.poll()
            assert isinstance(raised.value.__cause__, ValueError)
            assert member.ready.is_set()
            assert [e.event.fields["why"] for e in swarm.log.of("member.failed")] == ["ValueError: no such group"]
        finally:
            await swarm.close()

    main()
    assert "no such group" in caplog.text


def test_a_member_that_is_out_of_sync_does_not_leave_its_trainer_parked() -> None:
    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(8), seed=5)
        peer = swarm.add(HostSettings(), TrainerSettings(2, 0.1))
        try:
            await swarm.run_until_step(2, limit_s=60)
            member, port = peer.session.member, peer.port
            assert member is not None
            assert port is not None
            form = member._formation.form

            async def stop_and_refuse(step: int, avoid: Any) -> Any:
                member._formation.form = form  # type: ignore[method-assign]
                port.limit(0)
                raise OutOfSyncError("the leader is in another state")

            member._formation.form = stop_and_refuse  # type: ignore[method-assign]
            await swarm.run_until_step(6, limit_s=60)  # alone it finds nothing newer, and has to go on
            assert len(swarm.log.of("member.out_of_sync")) == 1
        finally:
            await swarm.close()

    main()


def test_a_round_tells_its_plan_and_doubts_the_rates_if_it_is_late() -> None:
    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(64), seed=3, make_replica=vector_replica(250_000), gradient=pull)
        host = HostSettings(up_bytes_per_s=1e6, down_bytes_per_s=1e6)
        peers = [swarm.add(host, TrainerSettings(2, 0.1)) for _ in range(3)]
        peers.append(swarm.add(host, auxiliary=True))
        try:
            await swarm.run_until_step(5, limit_s=300)
            begun = swarm.log.of("round.begun")[-1].event.fields
            assert (begun["parts"], begun["sites"]) == (4, 0)
            assert begun["predicted_s"] == pytest.approx(1.75, rel=0.3)
            told = {item.owner: item.payload.vector_bytes for item in peers[0].session.board.items(Progress)}
            assert told == {peer.network.peer_id: 1_000_004 for peer in peers}
            before = max(peer.session.node.access_link.doubts for peer in peers)
            assert before == 0
            swarm.script("slow_link peer-1 to 4Mbit at 0s")
            await swarm.run_until_step(6, limit_s=300)
            assert max(peer.session.node.access_link.doubts for peer in peers) > 0
        finally:
            await swarm.close()

    main()


@pytest.mark.parametrize(
    ("predicted_s", "seconds", "late"),
    [(None, 1e6, False), (0.0, 0.2, False), (0.001, 0.2, False), (0.001, 0.3, True), (10.0, 12.9, False),
     (10.0, 13.1, True), (1.75, 1.75, False)],
)  # fmt: skip
def test_a_round_is_late_by_what_was_predicted(predicted_s: float | None, seconds: float, late: bool) -> None:
    member = GroupMember(Address(PeerId("a" * 64)), aggregates=True)
    plan = Plan("0" * 32, 1, (member,), (Part(8, 0),), 1 << 16, predicted_s=predicted_s)
    assert RoundOutcome(plan, {}, seconds, 0, 0, ContributionFate.COUNTED).is_late == late


def test_what_a_sketch_rounds_to_is_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its residual has what that left out. Parts of small vectors are cut anywhere, and not at whole blocks."""
    outcome, looked_at = Round.outcome, list[tuple[int, bool]]()

    def look(self: Round) -> RoundOutcome:
        assert self.own is not None
        for chunk in self.chunks:
            values = self.own.values(chunk).clone()
            body = self.own.encode(chunk, memoryview(bytearray(chunk.upload_bytes)))
            chunk.codecs.upload.decode(body, decoded := torch.empty_like(values))
            looked_at.append((chunk.numel, torch.equal(decoded, values)))
        return outcome(self)

    def make(spec: RunSpec) -> Replica:
        model = torch.nn.Linear(64, 64, bias=False)
        return Replica(spec, SGD(model.parameters(), lr=LR), model=model)

    def gradient(peer: SimulatedPeer, samples: int) -> float:
        for weight in peer.replica.vector.parameters():
            weight.grad = torch.randn(64, 64, generator=torch.Generator().manual_seed(peer.samples_done))
        return 1.0

    monkeypatch.setattr(Round, "outcome", look)

    @virtually
    async def main() -> None:
        averaging = {"codec": "int4(block=32)", "sketch": "powersgd(rank=2,start=0)"}
        swarm = Swarm(make_spec(24, averaging=averaging), make_replica=make, gradient=gradient)
        for _ in range(3):
            swarm.add()
        await swarm.run_until_step(1)
        assert any(numel % 32 for numel, _ in looked_at)
        assert all(is_equal for _, is_equal in looked_at)
        await swarm.close()

    main()


@virtually
async def a_lone_peer_with_a_sum_that_no_sketch_can_send(strategy: str) -> None:
    tries = 0

    class Patient(Replica):
        def project(self, *arguments: Any) -> torch.Tensor | None:
            nonlocal tries
            tries += 1
            assert tries < 30, "it tries the same again and again"
            return super().project(*arguments)

    def gradient(peer: SimulatedPeer, samples: int) -> float:
        loss = pull(peer, samples)
        if peer.replica.step == 1 and peer.samples_done < 12:
            for weight in peer.replica.vector.parameters():
                weight.grad = torch.full_like(weight, 5e28)  # can be sent, and of 64 x 64 of it the sum cannot
        return loss

    def make(spec: RunSpec) -> Replica:
        model = torch.nn.Linear(64, 64, bias=False)
        return Patient(spec, SGD(model.parameters(), lr=LR), model=model)

    spec = make_spec(4, training={"strategy": strategy}, averaging={"codec": "float32", "sketch": "dct64"})
    swarm = Swarm(spec, make_replica=make, gradient=gradient)
    peer = swarm.add()
    await swarm.run_until_step(5)
    values = peer.replica.read_values()
    assert values.abs().max() < 10.0, "it counted nothing of it"
    await swarm.close()


@pytest.mark.parametrize("strategy", ["synchronous", "local"])
def test_a_lone_peer_leaves_out_what_no_sketch_can_send_and_goes_on(
    strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    a_lone_peer_with_a_sum_that_no_sketch_can_send(strategy)
    assert "the sketch of what this peer has for step 1 is not finite" in caplog.text
