"""The benchmark of strategies: its rounds are those of the network, its bytes and times are those of the formulas."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import _strategy_tasks
from benchmarks._strategy_clock import FIXED_S, Clock
from benchmarks._strategy_gaps import auto_rows, write_gaps
from benchmarks._strategy_methods import DILOCO, OURS, REFERENCE, Method, method_of
from benchmarks._strategy_run import Cell, Record, Sealed, SwarmRun, reduce, run_cell
from benchmarks._strategy_table import Timeline, bytes_row
from benchmarks._strategy_tasks import Task
from benchmarks.strategies import APART, Results, Series, speeds_of
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import Residual
from minga.averaging.solver.division import Division, PartShare
from minga.simulation.virtual_time import run_virtual
from tests.worlds.recipe_text import GENESIS
from tests.worlds.reduce_world import World
from tests.worlds.seeds import soaked

NUMEL = 1 << 17
EIGHT = (1.0,) * 8
KAPPAS = (0.1, 1.0, 10.0)
TINY = Task(
    "tiny",
    "causal-lm",
    {
        "size": "tiny",
        "max_length": 16,
        "vocabulary_size": 300,
        "overrides": {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16},
        "data": {"source": "files", "files": [str(GENESIS)], "heldout_fraction": 0.1},
    },
    {"name": "adamw", "learning_rate": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1},
    "heldout_loss",
    "a larger one",
    1_000_000,
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_strategy_tasks.TASKS, "tiny", TINY)


def layout_of(method: Method, numel: int = NUMEL) -> VectorLayout:
    averaging = method.spec["averaging"]
    return VectorLayout((numel,), averaging["codec"], averaging.get("download_codec"))


def given(layout: VectorLayout, names: list[str]) -> list[Sealed]:
    random = torch.Generator().manual_seed(1)
    vectors = [torch.randn(layout.total, generator=random) for _ in names]
    return [
        Sealed(name, vector, i + 1, i + 1, None) for i, (name, vector) in enumerate(zip(names, vectors, strict=True))
    ]


@pytest.mark.parametrize(
    ("codec", "download"), [("float32", None), ("float16", None), ("int8", None), ("topk(k=41)", "gtopk")]
)
def test_a_round_of_the_benchmark_is_a_round_of_the_network_bit_by_bit(codec: str, download: str | None) -> None:
    """What residuals keep of it, too."""
    layout = VectorLayout((9000, 300), codec, download)

    async def over_the_network() -> tuple[torch.Tensor, list[Sealed], list[Residual]]:
        world = World(4)
        await world.start()
        sealed = given(layout, [party.peer_id for party in world.parties[:3]])
        plan = world.divide(layout, Division((PartShare(1.0, 3),)))
        residuals = [Residual(layout.total) for _ in world.parties]
        vectors = [*(each.vector for each in sealed), None]
        results, _ = await world.reduce(
            plan, layout, vectors, [each.weight for each in sealed] + [0], residuals=residuals
        )
        await world.close()
        return results[0], sealed, residuals

    mean, sealed, residuals = run_virtual(over_the_network())
    ours = [each._replace(residual=Residual(layout.total)) for each in sealed]
    assert torch.equal(reduce(layout, 0, ours).mean, mean)
    for each, theirs in zip(ours, residuals, strict=False):
        assert each.residual is not None
        assert torch.equal(each.residual.mass, theirs.mass)


@pytest.mark.parametrize("name", ["float16", "float32", "int8", "int4", "topk"])
def test_encoded_bytes_and_times_are_those_of_the_formulas(name: str) -> None:
    """Of gradients that differ from peer to peer, as independent ones do; times without fixed costs and codecs."""
    layout, bits = layout_of(method_of(name)), method_of(name).bits
    assert bits is not None
    result = reduce(layout, 0, given(layout, [f"{i}" for i in range(8)]))
    assert 8 * max(result.up_bytes) / NUMEL == pytest.approx(bits[0], rel=0.01)
    assert 8 * result.down_bytes / NUMEL == pytest.approx(bits[1], rel=0.01)
    for kappa in KAPPAS if bits[0] == bits[1] else ():
        clock = Clock(EIGHT, kappa, NUMEL, 17_800_000)
        transfer_s = clock.transfer_s(result.up_bytes, result.down_bytes)
        assert transfer_s / clock.batch_s == pytest.approx(kappa * bits[0] / 16, rel=0.05)


def test_a_run_that_is_trained_once_is_replayed_at_each_kappa_and_kept(tiny: None, tmp_path: Path) -> None:
    results = Results(tmp_path)
    reference, delayed = (
        Cell("tiny", method_of(name), 1, EIGHT, 256, kappa, evaluations=4)
        for name, kappa in ((REFERENCE, None), ("delayed", 10.0))
    )
    results.fill([reference, delayed])
    record, other = results.get(reference), results.get(delayed)
    assert record is not None
    assert other is not None
    assert [len(each["rounds"]) for each in (record, other)] == [8, 8]
    for kappa in KAPPAS:
        run = Timeline(reference, record, kappa)
        assert run.row(run)["too_short"]
        fixed_s = 8 * (FIXED_S + run.clock.cost.seconds(8, TINY.parameters))
        assert (run.seconds[-1] - fixed_s) / (8 * run.clock.batch_s) == pytest.approx(1 + kappa, rel=0.05)
        row = bytes_row(run)
        assert row is not None
        assert row["ok"]
    run = Timeline(delayed, other, 10.0)
    fixed_s = 8 * (FIXED_S + run.clock.cost.seconds(8, TINY.parameters))
    assert (run.seconds[-1] - fixed_s) / (8 * run.clock.batch_s) == pytest.approx(10.0, rel=0.15), "the first waits"
    results.fill([reference])
    assert results.get(reference) == record


def made_up(losses: tuple[float, float]) -> Record:
    """Of 30 rounds of two peers that each send and get 1000 bytes."""
    once = {"samples": 32, "batches": 1.0, "up": [1000, 1000], "down": 1000}
    curve = [{"round": r, "samples": 32 * r, "loss": loss} for r, loss in zip((0, 30), losses, strict=True)]
    return {"numel": 1000, "cost": [0.0] * 4, "rounds": [once] * 30, "curve": curve}


def test_measured_gaps_take_the_place_of_those_of_the_literature(tmp_path: Path) -> None:
    path = tmp_path / "gaps.json"
    kept = {"strategy": "delayed", "codec": "float16", "percent": [0.0, 1.0], "basis": "literature"}
    guessed = {"strategy": "synchronous", "codec": "int8", "percent": [-9.0, 9.0], "basis": "literature"}
    path.write_text(json.dumps({"about": "a table", "exponent": 0.2, "rows": [guessed, kept]}))
    results = Results(tmp_path, processes=0)
    for name, seed in ((REFERENCE, 1), (REFERENCE, 2), ("int8", 1), ("int8", 2)):
        last = {REFERENCE: 2.0, "int8": 2.0 + 0.02 * seed}[name]
        results.keep(Cell("albert", method_of(name), seed, (1.0, 1.0), 32 * 30), made_up((4.0, last)), 1.0)
    methods = [method_of(REFERENCE), method_of("int8")]
    series = Series(results, ["albert"], methods, [1, 2], [0.1, 1.0], (1.0, 1.0), 32 * 30)
    rows = [row for row, _ in series.run()]
    assert [row["gap_percent"] for row in rows] == 2 * [[0.0] * 3, [1.5, 1.0, 2.0]]
    assert write_gaps(rows, path) == write_gaps(rows, path) == 1
    table = json.loads(path.read_text("utf-8"))
    measured = {"strategy": "synchronous", "codec": "int8", "percent": [1.0, 2.0], "basis": "measured"}
    measured |= {"task": "albert", "seeds": 2}
    assert table == {"about": "a table", "exponent": 0.2, "rows": [kept, measured]}


def test_gaps_with_another_optimizer_are_relative_to_synchronous_steps_with_it_and_at_the_best_rate(
    tmp_path: Path,
) -> None:
    path = tmp_path / "gaps.json"
    path.write_text(json.dumps({"about": "a table", "exponent": 0.2, "rows": []}))
    losses = {REFERENCE: 2.0, "float16-muon": 1.9, "float16-muon-x2": 1.6}
    losses |= {"local-1-int4-muon": 1.9, "local-1-int4-muon-x2": 1.64, "local-1-int4-muon-x4": 1.8}
    results = Results(tmp_path, processes=0)
    for name, last in losses.items():
        results.keep(Cell("gpt", method_of(name), 1, (1.0, 1.0), 32 * 30), made_up((4.0, last)), 1.0)
    methods = [method_of(name) for name in losses]
    series = Series(results, ["gpt"], methods, [1], [1.0], (1.0, 1.0), 32 * 30)
    assert write_gaps([row for row, _ in series.run()], path) == 1
    (row,) = json.loads(path.read_text("utf-8"))["rows"]
    wanted = {"strategy": "local", "codec": "int4", "optimizer": "muon", "percent": [2.5, 2.5], "basis": "measured"}
    assert row == {**wanted, "task": "gpt", "seeds": 1}


def test_a_loss_that_is_never_reached_is_a_result() -> None:
    cells = [Cell("albert", method_of(name), 1, (1.0, 1.0), 960) for name in ("int8", REFERENCE)]
    runs = [Timeline(cell, made_up((4.0, last)), 1.0) for cell, last in zip(cells, (3.5, 2.0), strict=True)]
    targets = runs[0].row(runs[1])["targets"]
    assert [targets[share]["loss"] for share in ("60%", "80%", "95%")] == [2.8, 2.4, 2.1]
    assert all(target["hours"] is None and target["up_gb"] is None for target in targets.values())
    own = runs[1].row(runs[1])["targets"]["80%"]
    assert own["share_of_reference"] == 1.0
    assert own["samples"] == 768
    assert own["up_gb"] == pytest.approx(24 * 17_800_000 / 1e9, rel=1e-4), "as the model it stands for"


@pytest.mark.parametrize(
    "name",
    [
        "local-100-int4-overlap-f2",
        "powersgd",
        *map(
            soaked,
            (
                "local-30-int4-r1-m0-warm30",
                "leader",
                "local-100-overlap-muon-warm30",
                "local-20-batch",
                "sparseloco-30",
                "demo",
                "float16",
            ),
        ),
    ],
)
def test_peers_share_one_state_with_every_kind_of_method(tiny: None, tmp_path: Path, name: str) -> None:
    """Overlapped or not, in fragments, warm or cold, with residuals and sketches, of all peers or of the best."""
    method = dataclasses.replace(method_of(name), batches=2)
    kappa = 1.0 if method.is_overlapped else None
    run = SwarmRun(Cell("tiny", method, 1, (1.0, 1.0, 2.0), 320, kappa, evaluations=1), tmp_path)
    curve = run.train()["curve"]
    assert curve[-1]["loss"] < curve[0]["loss"] - 0.01
    shared = [peer.strategy.shared_tensors() for peer in run.peers]
    assert all(torch.equal(shared[0][key], other[key]) for other in shared[1:] for key in shared[0])


def test_muon_and_a_learning_rate_stand_after_any_name() -> None:
    sparse, plain = method_of("sparseloco-10-r2-muon-x3"), method_of("sparseloco-10-r2")
    assert (sparse.batches, sparse.rate, sparse.optimizer) == (10, 3.0, "muon")
    assert {**sparse.spec, "optimizer": None} == {**plain.spec, "optimizer": None}
    assert plain.spec["strategy"]["local"]["outer_learning_rate"] == 2.0
    assert method_of("topk-muon-x6").rate == 6 * method_of("topk").rate
    assert method_of("float16-muon").spec == method_of("float16-muon-x1").spec
    assert not method_of("powersgd-muon").usual, "plans know nothing of its sketch"
    for name in ("sparseloco", "topk-muo", "muon-x2"):
        with pytest.raises(KeyError):
            method_of(name)


def test_fast_peers_compute_more(tiny: None, tmp_path: Path) -> None:
    run = SwarmRun(Cell("tiny", method_of("int8"), 1, speeds_of("mixed", 8), 32, evaluations=1), tmp_path)
    assert run.clock.quotas(32, run.sizes).samples == (2, 2, 2, 2, 4, 4, 8, 8)


def test_local_steps_with_float32_are_diloco_in_plain_torch(tiny: None, tmp_path: Path) -> None:
    """Four peers, six rounds of five inner steps: losses, times and bytes of every round."""
    methods = [dataclasses.replace(method, batches=5) for method in (OURS, DILOCO)]
    cells = [Cell("tiny", method, 1, (1.0,) * 4, 6 * 32 * 5, evaluations=6) for method in methods]
    ours, plain = (run_cell(cell, tmp_path) for cell in cells)
    losses = [each["loss"] for each in ours["curve"]]
    assert len(losses) == 7
    assert losses[-1] < losses[0] - 1.0
    assert [each["loss"] for each in plain["curve"]] == pytest.approx(losses, rel=APART)
    hours = [Timeline(cell, run, 10.0).seconds[-1] for cell, run in zip(cells, (ours, plain), strict=True)]
    assert hours[1] == pytest.approx(hours[0], rel=0.01), "but for the flags in a vector, and the time of codecs"


def test_what_auto_chooses_is_compared_with_the_best_method() -> None:
    def row(method: str, share: float | None) -> dict[str, Any]:
        target = {"share_of_reference": share if share is None else [share] * 3}
        return {"task": "gpt", "kappa": 10.0, "method": method, "targets": {"80%": target}}

    shares = {"float16": 1.0, "local-27-int4": 0.22, "local-30-int4": 0.2, "topk": None}
    (found,) = auto_rows([row(method, share) for method, share in shares.items()], 8)
    assert found["chosen"] == "local H=27, int4"
    assert (found["method"], found["best"], found["ratio"]) == ("local-27-int4", "local-30-int4", 1.1)
    rates = {"float16": 1.0, "local-10-sign2-overlap-muon": 0.14, "local-10-sign2-overlap-muon-x3": 0.08}
    _, found = auto_rows([row(method, share) for method, share in rates.items()], 8)
    assert found["optimizer"] == "muon"
    assert (found["method"], found["ratio"]) == ("local-10-sign2-overlap-muon-x3", 1.0), "at the best rate"
