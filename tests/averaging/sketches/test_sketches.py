"""Sketches: what the suite asks of them, residuals of the vector itself, and runs that train by them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minga.averaging.codecs.interface import CONTRIBUTION_LIMIT
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.registry import CODECS
from minga.averaging.codecs.residual import MOST_ROUNDS_KEPT, KeptResidual, Residuals
from minga.averaging.sketches.dct64 import DCT64
from minga.averaging.sketches.interface import SKETCHES, IdentitySketch, Sketch, make_sketch
from minga.averaging.sketches.powersgd import PowerSGD, PowerSGDSettings
from minga.averaging.sketches.projection import Projection, RoundProjections
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.network.virtual.internet import HostSettings
from minga.optim import SGD
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.size_only_model import SizeOnlyModel, SizeOnlyReplica
from minga.simulation.swarm.swarm import Swarm
from minga.testing import other_process
from minga.testing.sketch_suite import SKETCH_CHECKS, MakeSketch, Violation, check_processes, check_sketch
from minga.training.plugins_of_run import uses
from minga.training.replica.replica import Replica
from tests.worlds import forked, loudest_codec
from tests.worlds.seeds import soaked
from tests.worlds.sketches import ENTRIES, BlockMeans, SomeElements
from tests.worlds.swarm_tools import (
    assert_equal_states,
    assert_one_group_per_step,
    kill_in_a_round,
    make_spec,
    offences,
    virtually,
)

WHOLE = VectorLayout(((8, 6), (5,)), "float32")


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, entry in ENTRIES.items():
        monkeypatch.setitem(SKETCHES._builtin, name, entry)
    monkeypatch.setitem(CODECS._builtin, "loudest", loudest_codec.ENTRY)


def normal(seed: int, numel: int = WHOLE.total) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def low(**settings: int) -> MakeSketch:
    return lambda whole: PowerSGD(whole, PowerSGDSettings(**settings))


ALL: dict[str, MakeSketch] = {
    "identity": IdentitySketch,
    "block_means": BlockMeans,
    "powersgd": low(rank=2, start=0),
    "powersgd, dense at first": low(rank=4, start=3),
    "dct64": DCT64,
}


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_conformance(make: MakeSketch) -> None:
    for check in SKETCH_CHECKS:
        if check is not check_processes:  # of all sketches at once below
            check(make)


def test_another_process_has_the_same_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_process, "subprocess", SimpleNamespace(run=forked.run_for_suite))
    with pytest.raises(Violation, match="by_hash: another process"):  # and not what is before it
        check_processes(*ALL.values(), PowerSGD, RankTwo, ByHash)


class ByHash(SomeElements):
    name = "by_hash"

    def _chosen(self, step: int) -> torch.Tensor:
        return super()._chosen(hash(("some", step)) % 1000)


class TooLong(BlockMeans):
    def project(self, vector: torch.Tensor, step: int) -> torch.Tensor:
        return super().project(vector, step) * 1.1


class NotLinear(SomeElements):
    def project(self, vector: torch.Tensor, step: int) -> torch.Tensor:
        return super().project(vector, step).abs()


class Whimsical(SomeElements):
    def expand(self, values: torch.Tensor, step: int) -> torch.Tensor:
        return super().expand(values, step) + 1e-3 * torch.rand(self.whole.total)


class Destructive(SomeElements):
    def project(self, vector: torch.Tensor, step: int) -> torch.Tensor:
        values = super().project(vector, step)
        vector.zero_()
        return values


class AlwaysTheSame(SomeElements):
    def _chosen(self, step: int) -> torch.Tensor:
        return super()._chosen(0)


class RankTwo(PowerSGD):
    def __init__(self, whole: VectorLayout) -> None:
        super().__init__(whole, PowerSGDSettings(rank=2, start=0))


class NewBasis(RankTwo):
    def absorb(self, mean: torch.Tensor, step: int) -> None:
        super().absorb(mean, step)
        self._basis = {name: tensor.clone() for name, tensor in super().basis().items()}

    def basis(self) -> Mapping[str, torch.Tensor]:
        return getattr(self, "_basis", super().basis())


class HiddenBasis(RankTwo):
    def basis(self) -> Mapping[str, torch.Tensor]:
        return {}


class Unshaped(SomeElements):
    def layout(self, step: int) -> VectorLayout:
        return VectorLayout(self.shapes(step), "float32")


class Drifting(RankTwo):
    def absorb(self, mean: torch.Tensor, step: int) -> None:
        super().absorb(mean, step)
        for tensor in self.basis().values():
            tensor.mul_(1.01)


class NotLossless(RankTwo):
    needs_residual = False


@pytest.mark.parametrize(
    "make",
    [TooLong, NotLinear, Whimsical, Destructive, AlwaysTheSame, NewBasis, HiddenBasis, Unshaped, Drifting, NotLossless],
)
def test_the_suite_finds_what_is_wrong(make: MakeSketch) -> None:
    with pytest.raises(Violation):
        check_sketch(make)


def test_what_is_left_out_comes_later_and_a_round_that_came_to_nothing_changes_nothing() -> None:
    projection, vector = Projection(SomeElements(WHOLE)), normal(1)
    first = projection.contribution(vector, 4, 0, "first")
    assert first is not None
    assert not projection.residual.mass.any()
    again = projection.contribution(vector, 4, 0, "again")  # the round was given up, and begins anew
    assert again is not None
    assert torch.equal(first, again)
    applied = projection.absorb(again, 0, counted_in="again")
    assert torch.allclose(projection.residual.mass, 4 * (vector - applied))
    held = projection.residual.mass.clone()
    assert projection.contribution(None, 0, 1, "received") is None  # only receives
    projection.absorb(torch.zeros(projection.layout_of(1).total), 1, counted_in=None)
    assert torch.equal(projection.residual.mass, held)
    values = projection.contribution(vector, 2, 2, "later")
    assert values is not None
    assert torch.allclose(values, projection.sketch.project(vector + held / 2, 2))


def test_a_codec_that_draws_rounds_by_the_seeds_of_the_round_and_not_before() -> None:
    layout = VectorLayout(((64, 64),), "int4(rounding=stochastic)")
    sketch, vector = make_sketch("powersgd(start=0)", layout), normal(3, 4096)
    values = Projection(sketch).contribution(vector, 4, 0, "a round")
    assert values is not None
    assert torch.equal(values, sketch.project(vector, 0))


def test_each_round_keeps_a_share_of_what_it_leaves_out() -> None:
    projection, vector = Projection(SomeElements(WHOLE), Residuals(decay=0.75)), normal(1)
    for step, counted_in in enumerate(("a round", None)):
        held = projection.residual.mass.clone()
        values = projection.contribution(vector, 4, step, "a round")
        assert values is not None
        applied = projection.absorb(values, step, counted_in=counted_in)
        rest = held + 4 * vector - (4 * applied if counted_in else 0.0)
        torch.testing.assert_close(projection.residual.mass, 0.75 * rest)


@pytest.mark.parametrize(("missed", "kept"), [(MOST_ROUNDS_KEPT, True), (MOST_ROUNDS_KEPT + 1, False), (-1, False)])
def test_what_was_left_out_long_ago_is_forgotten(missed: int, kept: bool) -> None:
    projection, vector = Projection(SomeElements(WHOLE)), normal(1)
    values = projection.contribution(vector, 1, 20, "a round")
    assert values is not None
    projection.absorb(values, 20, counted_in="a round")
    projection.contribution(vector, 1, 20 + missed, "another")
    assert bool(projection.residual.mass.any()) == kept


def test_a_contribution_that_is_not_finite_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    projection, vector = Projection(BlockMeans(WHOLE)), normal(1)
    values = projection.contribution(vector, 1, 0, "a round")
    assert values is not None
    projection.absorb(values, 0, counted_in="a round")
    mass = projection.residual.mass
    left_out, vector[3] = mass.clone(), torch.nan
    assert projection.contribution(vector, 1, 1, "another") is None
    assert "left out of step" in caplog.text
    assert mass.any()
    assert torch.equal(mass, left_out), "it was the vector that could not be sent"
    mass.fill_(0.9 * CONTRIBUTION_LIMIT)
    assert projection.contribution(normal(1), 1, 2, "a third") is None
    assert not mass.any()


def test_a_contribution_that_was_not_in_the_round_is_not_taken_for_one_that_was() -> None:
    """It was sealed for a round that came to nothing here; the state of a later step came by a download."""
    projection = Projection(SomeElements(WHOLE))
    projection.contribution(normal(1), 1, 3, "a round")
    projection.absorb(torch.zeros(projection.layout_of(7).total), 7, counted_in="another")
    assert not projection.residual.mass.any()


def test_a_round_that_counts_without_this_peer_leaves_out_all_that_it_gave() -> None:
    """What the means applied and what is left out is what was contributed, whether or not a round had it in it."""
    projection, vector, applied = Projection(SomeElements(WHOLE)), normal(1), torch.zeros(WHOLE.total)
    for step, counted in enumerate((True, False, False, True)):
        values = projection.contribution(vector, 3, step, f"round {step}")
        assert values is not None
        mean = values if counted else torch.full_like(values, 7.0)  # an earlier result, which other peers made
        expanded = projection.absorb(mean, step, counted_in=f"round {step}" if counted else None)
        applied += 3 * expanded if counted else 0
        torch.testing.assert_close(applied + projection.residual.mass, 3.0 * (step + 1) * vector)


def test_shapes_name_and_version_are_in_the_fingerprint() -> None:
    turned = VectorLayout(((6, 8), (5,)), "float32")
    assert turned.fingerprint == WHOLE.fingerprint == IdentitySketch(WHOLE).layout(0).fingerprint
    newer = type("Newer", (SomeElements,), {"version": 2})
    layouts = [each.layout(0) for each in (SomeElements(WHOLE), SomeElements(turned), newer(WHOLE))]
    assert len({layout.fingerprint for layout in layouts}) == 3
    assert SomeElements(WHOLE).layout(0) == SomeElements(WHOLE).layout(5)
    assert BlockMeans(WHOLE).layout(0) != BlockMeans(WHOLE).layout(1)


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="sketch: 'unheard_of' is none of identity"):
        make_sketch("unheard_of", WHOLE)
    monkeypatch.setitem(SKETCHES._builtin, "other", ENTRIES["block_means"])
    with pytest.raises(ConfigurationError, match="brings as 'other' is"):
        make_sketch("other", WHOLE)
    with pytest.raises(ConfigurationError, match="both leave something out"):
        make_sketch("block_means", VectorLayout((50,), "loudest", "float32"))
    with pytest.raises(ConfigurationError, match="a ghost model has no numbers: the sketch"):
        SizeOnlyReplica(make_spec(4, averaging={"sketch": "block_means"}), SizeOnlyModel.of_size(100))


def test_a_run_names_its_sketch_and_other_runs_are_what_they_were() -> None:
    plain, sketched = make_spec(4), make_spec(4, averaging={"sketch": "block_means"})
    assert b"sketch" not in plain.canonical_bytes()
    assert RunSpec.from_canonical(plain.canonical_bytes()) == plain
    assert RunSpec.from_canonical(sketched.canonical_bytes()) == RunSpec.from_toml(sketched.to_toml()) == sketched
    assert plain.run_id != sketched.run_id
    assert (SKETCHES, "block_means") in uses(sketched)


def matrix_replica(spec: RunSpec) -> Replica:
    """A small linear model: a matrix and a bias, under momentum."""
    torch.manual_seed(1)
    model = torch.nn.Linear(7, 6)
    return Replica(spec, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5), model=model)


def pull_to_number(peer: SimulatedPeer, samples: int) -> None:
    """Gradients of the distance of all parameters to 3, with noise."""
    chance = torch.Generator().manual_seed(peer.samples_done * 1009 + int(peer.network.peer_id[:8], 16))
    for weight in peer.replica.vector.parameters():  # type: ignore[attr-defined]
        weight.grad = weight.detach() - 3.0 + 0.1 * torch.randn(weight.shape, generator=chance)


@pytest.mark.parametrize(
    ("sketch", "codec", "strategy"),
    [
        ("powersgd(rank=1, ratio=1.0, start=3)", "float16", "delayed"),
        soaked("dct64", "loudest", "synchronous"),  # in the next test it is played
    ],
)
def test_a_run_with_a_sketch(sketch: str, codec: str, strategy: str) -> None:
    """A member dies in a round and newcomers take the state over, the basis included; all end in the same state.

    One codec sends the largest of its values alone: of a sketch that loses nothing.
    """

    @virtually
    async def main() -> None:
        averaging = {"sketch": sketch, "codec": codec, "download_codec": "float16"}
        spec = make_spec(8, averaging=averaging, training={"strategy": strategy})
        swarm = Swarm(spec, make_replica=matrix_replica, gradient=pull_to_number, seed=11)
        peers = [swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, 0.1)) for _ in range(3)]
        try:
            await swarm.run_until_step(5, limit_s=100)
            await kill_in_a_round(swarm, peers[1])
            newcomer = swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, 0.1))
            await swarm.run_until_step(12, limit_s=300)
            swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, 0.1))
            await swarm.run_until_step(18, limit_s=600)
            await assert_equal_states(swarm)
            bases = [peer.replica._projections.sketch.basis() for peer in swarm.alive()]  # type: ignore[attr-defined]
            assert len(bases) == 4
            assert all(torch.equal(bases[0][name], basis[name]) for basis in bases for name in bases[0])
            assert_one_group_per_step(swarm)
            assert not offences(swarm)
            wrong = float((newcomer.replica.read_values()[:48] - 3.0).norm() / 3.0 / 48**0.5)
            assert wrong < 0.2
            names = [entry.name for entry in newcomer.replica.capture().tensors if entry.name.startswith("sketch/")]
            assert names == (["sketch/left", "sketch/right"] if sketch.startswith("powersgd") else [])
        finally:
            await swarm.close()

    main()


def two_matrices(spec: RunSpec) -> Replica:
    """A model with a matrix in each of two fragments."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(7, 6), torch.nn.Linear(6, 7))
    return Replica(spec, torch.optim.SGD(model.parameters(), lr=0.1), model=model)


@pytest.mark.parametrize(
    ("sketch", "codec"), [soaked("powersgd(rank=1, ratio=1.0, start=2)", "bfloat16"), ("dct64", "loudest")]
)
def test_a_run_whose_fragments_take_turns(sketch: str, codec: str) -> None:
    """Each peer steps alone; every other round averages how far the same fragment moved. The second peer dies."""

    @virtually
    async def main() -> None:
        averaging = {"sketch": sketch, "codec": codec, "download_codec": "float32"}
        settings = {"fragments": 2, "outer_learning_rate": 1.0, "outer_momentum": 0.0}
        spec = make_spec(8, averaging=averaging, training={"strategy": "local"}, strategy={"local": settings})
        swarm = Swarm(spec, make_replica=two_matrices, gradient=pull_to_number, seed=11)
        peers = [swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, 0.1)) for _ in range(3)]
        try:
            await swarm.run_until_step(6, limit_s=100)
            await kill_in_a_round(swarm, peers[1])
            newcomer = swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, 0.1))
            await swarm.run_until_step(22, limit_s=600)
            await assert_equal_states(swarm)
            assert not offences(swarm)
            layouts = {newcomer.replica.layout_of(step).fingerprint for step in range(14, 22)}
            assert len(layouts) == (4 if sketch.startswith("powersgd") else 2)
            wrong = float((newcomer.replica.read_values()[:97] - 3.0).norm() / 3.0 / 97**0.5)
            assert wrong < 0.2
        finally:
            await swarm.close()

    main()


def test_parameters_of_low_precision_have_a_basis_of_float32() -> None:
    """Gradients are averaged as float32, so nothing mixes types; also where all of them are 0."""
    spec = make_spec(4, averaging={"sketch": "powersgd(rank=2, start=0)", "codec": "bfloat16"})
    replicas = []
    for _ in range(2):
        torch.manual_seed(1)
        model = torch.nn.Linear(40, 48).bfloat16()
        replicas.append(Replica(spec, SGD(model.parameters(), lr=0.1, momentum=0.5), model=model))
    before = replicas[0].read_values()
    for step in range(4):
        gradients = []
        for number, replica in enumerate(replicas):
            vector = replica.vector.new()
            for parameter in replica.vector.parameters():
                parameter.grad = torch.full_like(parameter, float(number)) if step < 3 else torch.zeros_like(parameter)
            assert replica.accumulate(vector, 1.0)
            gradients.append(replica.project(vector, 1, step, "the round"))
        mean = torch.stack([each for each in gradients if each is not None]).mean(0)
        for replica in replicas:
            replica.apply(replica.expand(mean, step, counted_in="the round"), step + 1)
        assert replicas[0].digest() == replicas[1].digest()
    tensors = replicas[0].capture().tensors
    assert {entry.dtype for entry in tensors if entry.name.startswith("sketch/")} == {"float32"}
    assert (replicas[0].read_values() - before)[: replicas[0].vector.parameters_numel].max() < -0.1


def test_a_state_without_the_basis_does_not_fit() -> None:
    choice = "powersgd(rank=1, ratio=1.0, start=0)"
    plain, sketched, other = (
        matrix_replica(make_spec(4, averaging={"sketch": each})) for each in ("identity", choice, choice)
    )
    with pytest.raises(ConfigurationError, match="the run's state has no `sketch/right`"):
        sketched.restore(plain.capture())
    with pytest.raises(ConfigurationError, match="the run's state has `sketch/right` float32"):
        plain.restore(sketched.capture())
    projected: Any = sketched.project(normal(1, sketched.vector.numel), 4, 0, "a round")
    sketched.expand(projected, 0, counted_in="a round")
    assert other.digest() != sketched.digest()
    other.restore(sketched.capture())
    assert other.digest() == sketched.digest()


def test_each_fragment_has_rounds_of_its_own() -> None:
    """With two fragments each comes to turn in every other round, and yet both sides of its matrices do."""
    whole = VectorLayout(((40, 40), (9,), (48, 40)), "float32")
    fragments = [VectorLayout(((40, 40), (9,)), "float32", label="1 of 2"), VectorLayout(((48, 40),), "float32")]
    projections = RoundProjections(PowerSGD(whole, PowerSGDSettings(rank=2, start=1)))
    projections.divide(fragments, [(0, 1), (2,)])
    shapes = [projections.layout_of(step).shapes for step in range(6)]
    assert shapes == [((40, 40), (9,)), ((48, 40),), ((40, 2), (9,)), ((40, 2),), ((40, 2), (9,)), ((48, 2),)]
    before = {name: tensor.clone() for name, tensor in projections.sketch.basis().items()}
    for step in range(3):
        values = projections.contribution(normal(step, fragments[step % 2].total), 1, step, "a round")
        assert values is not None
        projections.absorb(values, step, counted_in="a round")
    left, right = (projections.sketch.basis()[name] != before[name] for name in ("left", "right"))
    assert not left.any()
    assert right[:40].all()  # of the first fragment
    assert not right[40:].any()


def test_what_fragments_left_out_is_found_again_once_there_are_fragments() -> None:
    """A peer that is started anew reads its file before its strategy says what the fragments are."""
    whole = VectorLayout(((40, 40), (48, 40)), "float32")
    fragments, places = [VectorLayout((shape,), "float32") for shape in ((40, 40), (48, 40))], [(0,), (1,)]
    first, again = (RoundProjections(PowerSGD(whole, PowerSGDSettings(rank=2, start=0))) for _ in range(2))
    first.divide(fragments, places)
    for step in range(2):
        values = first.contribution(normal(step, fragments[step].total), 3, step, "a round")
        assert values is not None
        first.absorb(values, step, counted_in="a round")
    kept = first.left_out.kept(2)
    assert kept.keys() == {fragment.fingerprint for fragment in fragments}
    again.left_out.restore(kept)
    assert not again.masses.any()
    again.divide(fragments, places)
    assert torch.equal(again.masses, first.masses)
    again.left_out.forget()
    again.divide(fragments, places)
    assert not again.masses.any()
    again.left_out.restore({fragments[0].fingerprint: KeptResidual(0, torch.ones(7))})
    assert not again.masses.any()
    assert again.left_out.kept(2) == {}
    with pytest.raises(ValueError, match="does not consist of the tensors"):
        again.divide(fragments, [(1,), (0,)])


class Turning(Sketch):
    """With a basis, and no word on parts of it."""

    name = "turning"

    def __init__(self, whole: VectorLayout) -> None:
        super().__init__(whole)
        self._direction = torch.ones(whole.total) / whole.total**0.5

    def shapes(self, step: int) -> tuple[int]:
        return (1,)

    def project(self, vector: torch.Tensor, step: int) -> torch.Tensor:
        return (vector @ self._direction)[None]

    def expand(self, values: torch.Tensor, step: int) -> torch.Tensor:
        return values * self._direction

    def basis(self) -> dict[str, torch.Tensor]:
        return {"direction": self._direction}


def test_a_basis_of_the_whole_vector_is_none_of_its_fragments() -> None:
    with pytest.raises(ConfigurationError, match='"turning" has a basis of the whole vector, and this run averages'):
        RoundProjections(Turning(WHOLE)).divide([VectorLayout(((8, 6),), "float32")], [(0,)])


def test_what_travels_whole_is_no_part_of_the_sketch_nor_of_what_it_leaves_out() -> None:
    """Of one vector, and of fragments that each have it at their ends."""
    vector = VectorLayout(((40, 40), (48, 40), (40, 40), (3,)), "float32", whole=2)
    fragments = [
        VectorLayout((shape, (40, 40), (3,)), "float32", label=str(shape[0]), whole=2) for shape in ((40, 40), (48, 40))
    ]
    for divided in (False, True):
        sketch = PowerSGD(vector.head, PowerSGDSettings(rank=2, start=0))
        projections = RoundProjections(sketch, whole=vector)
        if divided:
            projections.divide(fragments, [(0, 2, 3), (1, 2, 3)])
        for step in range(4):
            layout = fragments[step % 2] if divided else vector
            given = normal(step, layout.total)
            sent = projections.contribution(given, 4, step, "a round")
            assert sent is not None
            assert sent.numel() == projections.layout_of(step).total < layout.total
            found = projections.absorb(sent, step, counted_in="a round" if step < 3 else None)
            assert torch.equal(found[layout.head_total :], given[layout.head_total :])
            assert not torch.equal(found[: layout.head_total], given[: layout.head_total])
        assert projections.masses.numel() == vector.head_total
        assert projections.masses.any()


def test_the_identity_of_a_vector_of_which_something_travels_whole_is_all_of_it() -> None:
    vector = VectorLayout(((8, 6), (5,)), "topk", whole=1)
    projections = RoundProjections(make_sketch("identity", vector.head), whole=vector)
    given = normal(1, vector.total)
    assert projections.layout_of(0) == vector
    assert projections.contribution(given, 1, 0, "a round") is given
    assert projections.absorb(given, 0, counted_in="a round") is given
