"""Runs that average several vectors in turn: which one, follows from the number of the round."""

from __future__ import annotations

import asyncio

import pytest
import torch

from minga.averaging.codecs.layout import Cut, VectorLayout
from minga.averaging.codecs.registry import CODECS
from minga.averaging.codecs.residual import MOST_ROUNDS_KEPT, RoundVectors
from minga.core.spec.run_spec import RunSpec
from minga.network.virtual.internet import HostSettings
from minga.optim import SGD
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm, small_replica
from minga.training.replica.replica import Replica
from tests.worlds.loudest_codec import ENTRY
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import (
    assert_equal_states,
    assert_one_group_per_step,
    kill_in_a_round,
    make_spec,
    offences,
    pull,
    vector_replica,
    virtually,
)

NUMEL = 64
CUT = 40


class HalfByHalf(Replica):
    """Rounds of even steps average the first 40 elements, those of odd steps the rest, which has another length."""

    def _span(self, step: int) -> slice:
        return slice(0, CUT) if step % 2 == 0 else slice(CUT, NUMEL)

    def layout_of(self, step: int) -> VectorLayout:
        span, whole = self._span(step), self.vector.layout
        label = f"half {step % 2} of 2"
        return VectorLayout((span.stop - span.start,), whole.codec_choice, whole.download_choice, label)

    def project(
        self, vector: torch.Tensor | None, weight: int, step: int, round_id: str, cut: Cut | None = None
    ) -> torch.Tensor | None:
        return None if vector is None else vector[self._span(step)]

    def expand(self, mean: torch.Tensor, step: int, *, counted_in: str | None) -> torch.Tensor:
        whole = self.vector.new()
        whole[self._span(step)] = mean
        return whole


def half_by_half(spec: RunSpec) -> Replica:
    torch.manual_seed(1)
    model = torch.nn.Linear(NUMEL, 1, bias=False)
    return HalfByHalf(spec, SGD(model.parameters(), lr=0.1), model=model)


@pytest.fixture
def with_loudest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CODECS._builtin, "loudest", ENTRY)


@pytest.mark.parametrize(("codec", "strategy"), [soaked("float32", "delayed"), ("loudest", "synchronous")])
def test_two_vectors_take_turns(codec: str, strategy: str, with_loudest: None) -> None:
    """One member dies in the middle of a round, and a newcomer arrives; all end in one state, both halves trained."""

    @virtually
    async def main() -> None:
        averaging = {"codec": codec} | ({"download_codec": "float16"} if codec == "loudest" else {})
        spec = make_spec(8, averaging=averaging, training={"strategy": strategy})
        swarm = Swarm(spec, make_replica=half_by_half, gradient=pull, seed=11)
        peers = [swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, 0.1)) for _ in range(4)]
        begun = half_by_half(spec).read_values()
        try:
            await swarm.run_until_step(5, limit_s=100)
            await kill_in_a_round(swarm, peers[1])
            newcomer = swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, 0.1))
            await swarm.run_until_step(14, limit_s=300)
            assert newcomer.replica.step >= 14
            await assert_equal_states(swarm)
            assert_one_group_per_step(swarm)
            assert not offences(swarm)
            moved = (peers[0].replica.read_values() - begun).abs()
            assert moved[:CUT].any()
            assert moved[CUT:].any()
            if codec == "loudest":
                vectors = peers[0].session.member.vectors  # type: ignore[union-attr]
                masses = [vectors.residual(step).mass for step in (0, 1)]
                assert [mass.numel() for mass in masses] == [CUT, NUMEL - CUT]
                assert all(mass.any() for mass in masses)
        finally:
            await swarm.close()

    main()


def test_a_peer_whose_rounds_have_other_vectors_is_not_taken_in() -> None:
    """It averages the whole vector, the others half of it: they refuse it, and go on as before."""

    @virtually
    async def main() -> None:
        def make(spec: RunSpec) -> Replica:
            odd_one = len(made) == 2
            made.append(None)
            return vector_replica(NUMEL)(spec) if odd_one else half_by_half(spec)

        made: list[None] = []
        swarm = Swarm(make_spec(4), make_replica=make, gradient=pull, seed=5)
        peers = [swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, 0.1)) for _ in range(2)]
        try:
            await swarm.run_until_step(3, limit_s=100)
            other = swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, 0.1))
            await asyncio.sleep(20)
            assert min(peer.replica.step for peer in peers) > 10
            rounds = [e for e in swarm.log.of("round.begun") if e.peer != other.name and e.event.fields["step"] > 3]
            assert {e.event.fields["members"] for e in rounds} == {2}
            await assert_equal_states(swarm, [peer.name for peer in peers])
        finally:
            await swarm.close()

    main()


def layouts_of(count: int) -> RoundVectors:
    layouts = [VectorLayout((10 + 5 * (i // 2),), "loudest", "float32", f"fragment {i}") for i in range(count)]
    return RoundVectors(lambda step: layouts[step % count], torch.zeros)


def test_memory_is_by_length_and_residuals_are_by_layout(with_loudest: None) -> None:
    vectors = layouts_of(4)
    assert [vectors.result(step).numel() for step in range(8)] == [10, 10, 15, 15] * 2
    assert vectors.result(0) is vectors.result(1) is vectors.result(4) is not vectors.result(2)
    assert vectors.residual(0) is vectors.residual(4) is not vectors.residual(1)
    assert vectors.described(2).numel == 15
    assert vectors.encoded_bytes(2) == vectors.layout_of(2).encoded_bytes(0, 15)
    plain = RoundVectors(lambda step: VectorLayout((5,), "int8"), torch.zeros)
    assert plain.residual(0) is None


@pytest.mark.parametrize("count", [1, 4, 30])
@pytest.mark.parametrize("missed", [MOST_ROUNDS_KEPT, MOST_ROUNDS_KEPT + 1])
def test_residuals_age_by_the_rounds_of_their_own_vector(count: int, missed: int, with_loudest: None) -> None:
    vectors = layouts_of(count)
    residual = vectors.residual(2 * count)
    assert residual is not None
    vector = torch.ones(residual.mass.numel())
    residual.seal(vector, 1, 2 * count).settle((), vector)
    residual.mass.fill_(3.0)
    residual.seal(vector, 1, (2 + missed) * count)
    assert bool(residual.mass.any()) == (missed <= MOST_ROUNDS_KEPT)


def test_the_usual_run_has_one_vector() -> None:
    replica = small_replica(make_spec(4))
    assert {replica.layout_of(step).fingerprint for step in range(5)} == {replica.vector.layout.fingerprint}
    vector = replica.vector.new()
    assert replica.project(vector, 8, 3, "a round") is vector
