"""The residual of lossy uploads: nothing is lost, whatever becomes of a round; and training gets where it should."""

from __future__ import annotations

import msgspec
import pytest
import torch

from minga.averaging.allreduce.round import Round, RoundOutcome
from minga.averaging.allreduce.service import RoundAbortedError
from minga.averaging.codecs.interface import CONTRIBUTION_LIMIT
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.registry import CODECS
from minga.averaging.codecs.residual import (
    KEPT_ATTEMPTS,
    MOST_ATTEMPTS_KEPT,
    MOST_ROUNDS_KEPT,
    ContributionFate,
    Residual,
    RoundVectors,
    TakenUp,
)
from minga.averaging.solver.division import Division, PartShare
from minga.core.errors import ConfigurationError
from minga.testing import Violation
from minga.testing.codecs.defence import check_hostile_bytes
from minga.testing.codecs.suite import check_residual
from tests.worlds.loudest_codec import ENTRY, LoudestCodec
from tests.worlds.reduce_world import World
from tests.worlds.swarm_tools import later, virtually

NUMEL = 403
COUNTED, UNCOUNTED = ContributionFate.COUNTED, ContributionFate.UNCOUNTED


@pytest.fixture(autouse=True)
def layout(monkeypatch: pytest.MonkeyPatch) -> VectorLayout:
    monkeypatch.setitem(CODECS._builtin, "loudest", ENTRY)
    return VectorLayout((NUMEL,), "loudest", "float32")


def test_a_mean_cannot_travel_by_a_codec_that_needs_a_residual() -> None:
    for choices in (("loudest",), ("float32", "loudest")):
        with pytest.raises(ConfigurationError, match="they have no residual"):
            VectorLayout((NUMEL,), *choices)


def test_the_suite_finds_a_codec_that_leaves_out_more_than_there_is() -> None:
    class TooLoud(LoudestCodec):
        def _decode_add(self, raw: torch.Tensor, accumulator: torch.Tensor, weight: float) -> None:
            super()._decode_add(raw, accumulator, 3.0 * weight)

    with pytest.raises(Violation, match="it left out more than there was"):
        check_residual(TooLoud())


def test_the_suite_finds_a_codec_that_trusts_a_count_in_the_bytes() -> None:
    class Trusting(LoudestCodec):
        def _check(self, raw: torch.Tensor, numel: int, limit: float) -> None:
            torch.empty(int(raw[:4].clone().view(torch.int32)) & 0xFFFFFF)
            super()._check(raw, numel, limit)

    with pytest.raises(Violation, match="bytes at once"):
        check_hostile_bytes(Trusting())


def test_alone_nothing_is_left_out_but_by_the_codec_of_the_means() -> None:
    @virtually
    async def main() -> None:
        layout = VectorLayout((NUMEL,), "loudest", "float16")
        world, residual, vector = World(1), Residual(NUMEL), torch.linspace(-1, 1, NUMEL)
        await world.start()
        (result,), _ = await world.reduce(world.plan(layout), layout, [vector], [9], residuals=[residual])
        assert torch.equal(result, vector.half().float())
        assert not residual.mass.any()
        await world.close()

    main()


def test_a_contribution_gives_the_same_bytes_again(layout: VectorLayout) -> None:
    residual, (chunk, *_) = Residual(NUMEL), layout.chunks(0, NUMEL, 50)
    residual.mass.copy_(torch.arange(NUMEL))
    sealed = residual.seal(torch.ones(NUMEL), 3, 0)
    first, again = (bytes(sealed.encode(chunk, memoryview(bytearray(chunk.upload_bytes)))) for _ in range(2))
    assert first == again
    sealed.take_back()
    again = bytes(residual.seal(torch.ones(NUMEL), 3, 0).encode(chunk, memoryview(bytearray(chunk.upload_bytes))))
    assert first == again


def test_only_one_contribution_at_a_time() -> None:
    residual = Residual(NUMEL)
    residual.seal(torch.ones(NUMEL), 1, 0)
    with pytest.raises(RuntimeError, match="neither settled nor taken back"):
        residual.seal(torch.ones(NUMEL), 1, 1)


@pytest.mark.parametrize(("missed", "kept"), [(MOST_ROUNDS_KEPT, True), (MOST_ROUNDS_KEPT + 1, False), (-1, False)])
def test_a_residual_of_long_ago_is_forgotten(missed: int, kept: bool) -> None:
    residual = Residual(NUMEL)
    residual.mass.fill_(1.0)
    residual.step = 5
    residual.seal(torch.ones(NUMEL), 1, 5 + missed)
    assert bool(residual.mass.any()) is kept


@pytest.mark.parametrize("value", [CONTRIBUTION_LIMIT, float("inf"), float("nan")])
def test_a_residual_that_is_too_large_to_be_sent_is_dropped(value: float, layout: VectorLayout) -> None:
    """With many samples behind it and few before it, what is left out may be far larger than any contribution."""
    residual = Residual(NUMEL)
    residual.mass[NUMEL // 2] = 3 * value
    encoder = residual.seal(torch.ones(NUMEL), 2, 1)
    assert not residual.mass.any()
    for chunk in layout.chunks(0, NUMEL, 1024):
        encoder.encode(chunk, memoryview(bytearray(chunk.upload_bytes)))
    encoder.take_back()
    residual.mass[NUMEL // 2] = CONTRIBUTION_LIMIT
    residual.seal(torch.ones(NUMEL), 2, 1)
    assert residual.mass.any(), "what can be sent is kept"


@pytest.mark.parametrize("value", [1.01 * CONTRIBUTION_LIMIT, float("nan")])
def test_a_vector_that_cannot_be_sent_leaves_the_residual_as_it_is(value: float) -> None:
    residual = Residual(NUMEL)
    residual.mass.fill_(1.0)
    residual.seal(torch.full((NUMEL,), value), 2, 1).take_back()
    assert residual.mass.eq(1.0).all()


FLAT = Division(tuple(PartShare(0.25, root, ()) for root in range(4)), ())
SITES = Division((PartShare(0.5, 0, (0, 2)), PartShare(0.5, 3, (1, 3))), ((0, 1), (2, 3)))


@pytest.mark.parametrize("division", [FLAT, SITES], ids=["flat", "sites"])
def test_rounds_conserve_mass(division: Division, layout: VectorLayout) -> None:
    """Four members, one of which comes to nothing but receiving: what is applied and what is left is what came in."""

    @virtually
    async def main() -> None:
        world, weights = World(4), [3, 0, 5, 2]
        await world.start()
        generator = torch.Generator().manual_seed(1)
        residuals = [Residual(NUMEL) for _ in weights]
        brought, applied = torch.zeros(2, NUMEL, dtype=torch.float64)
        for step in range(12):
            vectors = [torch.randn(NUMEL, generator=generator) for _ in weights]
            plan = world.divide(layout, division, chunk_bytes=1024, step=step)
            results, outcomes = await world.reduce(plan, layout, vectors, weights, residuals=residuals)
            assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes), outcomes
            assert all(torch.equal(result, results[0]) for result in results)
            applied += sum(weights) * results[0].double()
            brought += sum(weight * vector.double() for weight, vector in zip(weights, vectors, strict=True))
        left = sum(residual.mass.double() for residual in residuals)
        assert (brought - applied - left).norm() / brought.norm() < 1e-5
        assert not residuals[1].mass.any()
        assert residuals[2].mass.any()
        await world.close()

    main()


def test_a_round_that_comes_to_nothing_leaves_the_residual_as_it_was(layout: VectorLayout) -> None:
    @virtually
    async def main() -> None:
        world = World(3)
        await world.start()
        residuals = [Residual(NUMEL) for _ in range(3)]
        for residual in residuals:
            residual.mass.fill_(0.5)
        for cut_off in world.parties[1:]:
            later(0.0, cut_off.network.process.kill)
        vectors = [torch.ones(NUMEL)] * 3
        _, (outcome,) = await world.reduce(world.plan(layout), layout, vectors, [1] * 3, who=[0], residuals=residuals)
        assert isinstance(outcome, RoundAbortedError)
        assert torch.equal(residuals[0].mass, torch.full((NUMEL,), 0.5))
        residuals[0].seal(vectors[0], 1, 0).take_back()
        await world.close()

    main()


@pytest.mark.parametrize("division", [FLAT, SITES], ids=["flat", "sites"])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_round_that_adopts_a_result_subtracts_what_was_sent_for_that(
    keeps: bool, division: Division, layout: VectorLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All hold the first result and give the round up; then they seal other vectors, and the second round adopts it.

    The last member gives nothing to the first round: nothing of it is counted. What the others did since is their
    strategies', if these keep it, and else in the vectors of the second round.
    """
    commit = Round.commit

    def give_up_the_first(self: Round, term: int) -> None:
        commit(self, term) if self.plan.adopts else self.abort("it is cut off")

    monkeypatch.setattr(Round, "commit", give_up_the_first)

    @virtually
    async def main() -> None:
        world, weights, later_weights = World(4), [3, 2, 5, 0], [4, 2, 7, 6]
        await world.start()
        generator = torch.Generator().manual_seed(2)
        residuals = [Residual(NUMEL, keeps_uncounted=keeps) for _ in weights]
        for residual in residuals:
            residual.mass.copy_(torch.randn(NUMEL, generator=generator))
        before = sum(residual.mass.double() for residual in residuals)
        vectors = [torch.randn(NUMEL, generator=generator) for _ in weights]
        plan = world.divide(layout, division, chunk_bytes=1024)
        given = [vector if weight else None for vector, weight in zip(vectors, weights, strict=True)]
        results, outcomes = await world.reduce(plan, layout, given, weights, residuals=residuals)
        assert all(isinstance(outcome, RoundAbortedError) for outcome in outcomes), outcomes
        first = results[0].clone()
        assert torch.equal(sum(residual.mass.double() for residual in residuals), before)
        counted = list(zip(weights, vectors, strict=True))
        again = [torch.randn(NUMEL, generator=generator) for _ in weights]
        if not keeps:
            for vector, values in zip(vectors, again, strict=True):
                vector.copy_(values)  # in place, as such a strategy may
            counted = list(zip(later_weights, vectors, strict=True))
        adopting = msgspec.structs.replace(
            plan,
            round_id="f" * 32,
            adopts=plan.round_id,
            holders=(0, 1, 2, 3),
            view=tuple(party.peer_id for party in world.parties),
        )
        _, outcomes = await world.reduce(
            adopting, layout, list(again), later_weights, residuals=residuals, results=results
        )
        assert [isinstance(each, RoundOutcome) and each.fate for each in outcomes] == [COUNTED] * 3 + [UNCOUNTED]
        assert torch.equal(results[0], first)
        brought = before + sum(weight * vector.double() for weight, vector in counted)
        left = sum(residual.mass.double() for residual in residuals)
        assert (brought - sum(weights) * first.double() - left).norm() / brought.norm() < 1e-5
        await world.close()

    main()


def test_where_nobody_can_say_what_was_sent_the_residual_is_forgotten(layout: VectorLayout) -> None:
    residual = Residual(NUMEL)
    residual.mass.fill_(1.0)
    residual.seal(torch.ones(NUMEL), 1, 0).settle_adopted("a round of long ago", torch.ones(NUMEL), counted=True)
    assert not residual.mass.any()
    encoder = residual.seal(torch.full((NUMEL,), torch.nan), 1, 1)
    encoder.set_aside("it could not be sent", [(chunk, True) for chunk in layout.chunks(0, NUMEL, 50)])
    encoder.take_back()
    assert residual.sent_in("it could not be sent") is None


def test_what_was_sent_is_kept_for_the_last_attempts_at_one_step_only(layout: VectorLayout) -> None:
    residual, chunks = Residual(NUMEL), layout.chunks(0, NUMEL, 1000)
    for attempt in range(MOST_ATTEMPTS_KEPT + 1):
        encoder = residual.seal(torch.ones(NUMEL), 1, 4)
        encoder.set_aside(f"round {attempt}", [(chunk, True) for chunk in chunks])
        encoder.take_back()
    known = [residual.sent_in(f"round {attempt}") is not None for attempt in range(MOST_ATTEMPTS_KEPT + 1)]
    assert known == [False] + [True] * MOST_ATTEMPTS_KEPT
    residual.seal(torch.ones(NUMEL), 1, 5).take_back()
    assert residual.sent_in(f"round {MOST_ATTEMPTS_KEPT}") is None


@pytest.mark.parametrize("attempt", range(KEPT_ATTEMPTS + 1))
def test_a_contribution_that_its_strategy_has_no_more_is_taken_for_the_last(attempt: int, layout: VectorLayout) -> None:
    residual, chunks = Residual(NUMEL, keeps_uncounted=True), layout.chunks(0, NUMEL, 1000)
    vectors = [torch.full((NUMEL,), float(number)) for number in range(KEPT_ATTEMPTS + 2)]
    for number, vector in enumerate(vectors):
        encoder = residual.seal(vector, 1 + number, 4)
        if number < KEPT_ATTEMPTS + 1:
            encoder.set_aside(f"round {number}", [(chunk, False) for chunk in chunks])
            encoder.take_back()
            assert len(residual._given) <= KEPT_ATTEMPTS, "each is a vector in memory"
    encoder.settle_adopted(f"round {attempt}", torch.zeros(NUMEL), counted=True)
    counted = attempt or KEPT_ATTEMPTS + 1
    assert torch.equal(residual.mass, (1 + counted) * vectors[counted])


def test_a_decay_forgets_its_share_in_each_round_that_counts(layout: VectorLayout) -> None:
    plain, decaying = Residual(NUMEL), Residual(NUMEL, decay=0.5)
    chunks, vector = layout.chunks(0, NUMEL, 1000), torch.linspace(-1, 1, NUMEL)
    for residual in (plain, decaying):
        residual.seal(vector, 2, 0).settle([(chunk, True) for chunk in chunks], vector)
    assert plain.mass.any()
    assert torch.equal(decaying.mass, plain.mass / 2)
    decaying.seal(vector, 2, 1).take_back()
    assert torch.equal(decaying.mass, plain.mass / 2)
    decaying.seal(vector, 2, 1).settle([(chunk, False) for chunk in chunks], vector)
    assert torch.equal(decaying.mass, (plain.mass / 2 + 2 * vector) / 2)


def test_of_what_travels_whole_nothing_is_kept_whatever_becomes_of_the_round() -> None:
    vectors = RoundVectors(lambda _: VectorLayout((9_000, 5_000), "topk", whole=1), torch.zeros)
    residual = vectors.residual(0)
    assert residual is not None
    for step, fate in enumerate([ContributionFate.UNCOUNTED, ContributionFate.COUNTED]):
        residual.begin(torch.full((14_000,), 0.3), 4, step)
        residual.settle(fate, [TakenUp(0, 14_000, 4, None)])
        assert residual.mass[:9_000].all()
        assert not residual.mass[9_000:].any()


# ---- runs that average several vectors in turn: which one, follows from the number of the round


def layouts_of(count: int) -> RoundVectors:
    layouts = [VectorLayout((10 + 5 * (i // 2),), "loudest", "float32", f"fragment {i}") for i in range(count)]
    return RoundVectors(lambda step: layouts[step % count], torch.zeros)


def test_memory_is_by_length_and_residuals_are_by_layout() -> None:
    vectors = layouts_of(4)
    assert [vectors.result(step).numel() for step in range(8)] == [10, 10, 15, 15] * 2
    assert vectors.result(0) is vectors.result(1) is vectors.result(4) is not vectors.result(2)
    assert vectors.residual(0) is vectors.residual(4) is not vectors.residual(1)
    assert vectors.described(2).numel == 15
    assert vectors.encoded_bytes(2) == vectors.layout_of(2).encoded_bytes(0, 15)
    plain = RoundVectors(lambda step: VectorLayout((5,), "int8"), torch.zeros)
    assert plain.residual(0) is None


@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize("missed", [MOST_ROUNDS_KEPT, MOST_ROUNDS_KEPT + 1])
def test_residuals_age_by_the_rounds_of_their_own_vector(count: int, missed: int) -> None:
    vectors = layouts_of(count)
    residual = vectors.residual(2 * count)
    assert residual is not None
    vector = torch.ones(residual.mass.numel())
    residual.seal(vector, 1, 2 * count).settle((), vector)
    residual.mass.fill_(3.0)
    residual.seal(vector, 1, (2 + missed) * count)
    assert bool(residual.mass.any()) == (missed <= MOST_ROUNDS_KEPT)
