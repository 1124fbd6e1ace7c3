"""The benchmark of strategies: its rounds are those of the network, its bytes and times are those of the formulas."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import _strategy_run, _strategy_tasks
from benchmarks._strategy_auto import auto_rows
from benchmarks._strategy_cells import Results
from benchmarks._strategy_clock import NO_COST, Clock
from benchmarks._strategy_figures import Timeline, figures
from benchmarks._strategy_gaps import write_gaps
from benchmarks._strategy_methods import METHODS, REFERENCE, Method
from benchmarks._strategy_round import Sealed, reduce
from benchmarks._strategy_run import Cell, Record, is_overlapped
from benchmarks._strategy_series import KAPPAS, Series, bytes_row, remarks, speeds_of
from benchmarks._strategy_tasks import TASKS, Task
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import Residual
from minga.averaging.solver.division import Division, PartShare
from minga.simulation.virtual_time import run_virtual
from tests.worlds.recipe_text import GENESIS
from tests.worlds.reduce_world import World

NUMEL = 1 << 17
EIGHT = (1.0,) * 8
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
    {"name": "adamw", "learning_rate": 0.01},
    "heldout_loss",
    "a larger one",
    1_000_000,
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_strategy_tasks, _strategy_run):
        monkeypatch.setitem(module.TASKS, "tiny", TINY)


def layout_of(method: Method, numel: int = NUMEL) -> VectorLayout:
    averaging = method.spec.get("averaging", {})
    return VectorLayout((numel,), averaging.get("codec", "adaptive"), averaging.get("download_codec"))


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


@pytest.mark.parametrize("method", [m for m in METHODS.values() if m.up_bits is not None], ids=lambda m: m.name)
def test_encoded_bytes_are_those_of_the_formulas(method: Method) -> None:
    """Of gradients that differ from peer to peer, as independent ones do."""
    layout = layout_of(method)
    result = reduce(layout, 0, given(layout, [f"{i}" for i in range(8)]))
    assert 8 * max(result.up_bytes) / NUMEL == pytest.approx(method.up_bits, rel=0.01)
    if method.down_bits is not None:
        assert 8 * result.down_bytes / NUMEL == pytest.approx(method.down_bits, rel=0.01)


@pytest.mark.parametrize("method", [m for m in METHODS.values() if m.times], ids=lambda m: m.name)
def test_times_are_those_of_the_formulas(method: Method) -> None:
    """The encoded sizes of the formulas, through planner and prediction, without fixed costs."""
    assert method.up_bits is not None
    assert method.down_bits is not None
    for kappa, expected in zip(KAPPAS, method.times, strict=True):
        clock = Clock(EIGHT, kappa, NUMEL, 17_800_000, fixed_s=0.0)
        transfer_s = clock.round_s([round(method.up_bits * NUMEL / 8)] * 8, round(method.down_bits * NUMEL / 8))
        busy_s = method.batches * clock.batch_s
        step_s = max(busy_s, transfer_s) if is_overlapped(method) else busy_s + transfer_s
        assert step_s / busy_s == pytest.approx(expected, rel=0.05)


def test_a_run_that_is_trained_once_is_replayed_at_each_kappa_and_kept(tiny: None, tmp_path: Path) -> None:
    results = Results(tmp_path)
    reference, delayed = (
        Cell("tiny", METHODS[name], 1, EIGHT, 256, kappa, evaluations=4, bare=True)
        for name, kappa in ((REFERENCE, None), ("delayed", 10.0))
    )
    results.fill([reference, delayed])
    record, other = results.get(reference), results.get(delayed)
    assert record is not None
    assert other is not None
    assert [len(each["rounds"]) for each in (record, other)] == [8, 8]
    for kappa, expected in zip(KAPPAS, METHODS[REFERENCE].times, strict=True):
        run = Timeline(reference, record, kappa)
        assert run.relative_time == pytest.approx(expected, rel=0.05)
        row = bytes_row(run)
        assert row is not None
        assert row["ok"]
    run = Timeline(delayed, other, 10.0)
    assert run.relative_time == pytest.approx(10.0, rel=0.15), "the first batch is computed before any round flies"
    found = figures(run, Timeline(reference, record, 10.0))
    assert found["n_eff"] == 8.0
    assert found["counted_share"] == 1.0
    assert found["too_short"]
    results.fill([reference])
    assert results.get(reference) == record


def made_up(losses: tuple[float, float]) -> Record:
    """Of 30 rounds of two peers that each send and get 1000 bytes."""
    once = {"samples": [16, 16], "weights": [16, 16], "computed": [16, 16], "steps": [1, 1], "batches": 1.0}
    curve = [{"round": r, "samples": 32 * r, "loss": loss} for r, loss in zip((0, 30), losses, strict=True)]
    rounds = [{**once, "up": [1000, 1000], "down": 1000}] * 30
    return {"numel": 1000, "cost": list(NO_COST), "rounds": rounds, "curve": curve}


def test_measured_gaps_take_the_place_of_those_of_the_literature(tmp_path: Path) -> None:
    path = tmp_path / "gaps.json"
    kept = {"strategy": "delayed", "codec": "float16", "percent": [0.0, 1.0], "basis": "literature"}
    guessed = {"strategy": "synchronous", "codec": "int8", "percent": [-9.0, 9.0], "basis": "literature"}
    path.write_text(json.dumps({"about": "a table", "exponent": 0.2, "rows": [guessed, kept]}))
    series = Series(["albert"], [METHODS["int8"]], [1, 2], [0.1, 1.0], ["equal"], 2, 32 * 30)
    results = Results(tmp_path, processes=0)
    for cell in series.cells(series.as_given()):
        last = {REFERENCE: 2.0, "int8": 2.0 + 0.02 * cell.seed}[cell.method.name]
        results.keep(cell, made_up((4.0, last)), 1.0)
    found = list(series.rows(results, series.as_given()))
    assert len(found) == 4
    assert write_gaps(found, path) == write_gaps(found, path) == 1
    table = json.loads(path.read_text("utf-8"))
    measured = {"strategy": "synchronous", "codec": "int8", "percent": [1.0, 2.0], "basis": "measured"}
    measured |= {"task": "albert", "seeds": 2}
    assert table == {"about": "a table", "exponent": 0.2, "rows": [kept, measured]}
    noted = remarks([row for row, _ in found])
    assert [remark.endswith("is the reference well tuned?") for remark in noted] == [True, True], "beyond 1 %"


def test_a_loss_that_is_never_reached_is_a_result() -> None:
    cells = [Cell("albert", METHODS[name], 1, (1.0, 1.0), 960) for name in ("int8", REFERENCE)]
    runs = [Timeline(cell, made_up((4.0, last)), 1.0) for cell, last in zip(cells, (3.5, 2.0), strict=True)]
    targets = figures(*runs)["targets"]
    assert [targets[share]["loss"] for share in ("60%", "80%", "95%")] == [2.8, 2.4, 2.1]
    assert all(target["hours"] is None and target["up_gb_mean"] is None for target in targets.values())
    own = figures(runs[1], runs[1])["targets"]["80%"]
    assert own["share_of_reference"] == 1.0
    assert own["samples"] == 768
    assert own["up_gb_mean"] == pytest.approx(24 * 17_800_000 / 1e9, rel=1e-4), "as the model it stands for"


def test_fast_peers_compute_more_and_a_dead_one_is_replaced(tiny: None, tmp_path: Path) -> None:
    cell = Cell("tiny", METHODS["int8"], 1, speeds_of("mixed", 8), 224, churn=True, evaluations=2)
    record = Results(tmp_path)
    record.fill([cell])
    kept = record.get(cell)
    assert kept is not None
    assert kept["rounds"][0]["samples"] == [2, 2, 2, 2, 4, 4, 8, 8]
    dead, fetched = kept["rounds"][5]["joined"]
    assert kept["rounds"][5]["samples"][dead] == 0
    assert kept["rounds"][6]["samples"][dead] > 0
    assert fetched > 3 * 4 * kept["numel"] * 0.99, "parameters and both moments"
    assert figures(Timeline(cell, kept, 1.0), Timeline(cell, kept, 1.0))["counted_share"] < 1.0


def test_the_loss_of_a_run_is_of_what_peers_share(tiny: None, tmp_path: Path) -> None:
    cell = Cell("tiny", METHODS[REFERENCE], 1, (1.0, 1.0), 512, evaluations=1)
    run = _strategy_run.Run(cell, tmp_path)
    curve = run.train()["curve"]
    assert curve[-1]["loss"] < curve[0]["loss"] - 0.5
    shared = run.peers[0].strategy.shared_tensors()
    assert all(torch.equal(shared[name], other) for name, other in run.peers[1].strategy.shared_tensors().items())
    assert dataclasses.asdict(cell)["samples"] == 512
    assert set(TASKS) >= {"albert", "gpt"}


@pytest.mark.parametrize(
    "name", ["streaming-100-int4", "local-20-eager", "sparseloco-30", "demo", "powersgd", "leader"]
)
def test_peers_share_one_state_with_every_kind_of_method(tiny: None, tmp_path: Path, name: str) -> None:
    """Overlapped or not, whole or in fragments, with residuals and sketches, of all peers or of the best."""
    method = dataclasses.replace(METHODS[name], batches=2)
    kappa = 1.0 if is_overlapped(method) else None
    run = _strategy_run.Run(Cell("tiny", method, 1, (1.0, 1.0, 2.0), 320, kappa, evaluations=1), tmp_path)
    curve = run.train()["curve"]
    assert curve[-1]["loss"] < curve[0]["loss"] - 0.01
    shared = [peer.strategy.shared_tensors() for peer in run.peers]
    assert all(torch.equal(shared[0][key], other[key]) for other in shared[1:] for key in shared[0])


def test_what_auto_chooses_is_compared_with_the_best_method() -> None:
    def row(method: str, share: float | None) -> dict[str, Any]:
        return {
            "task": "gpt",
            "kappa": 10.0,
            "speeds": "equal",
            "method": method,
            "targets": {"80%": {"share_of_reference": share}},
        }

    shares = {"float16": 1.0, "local-30-int4": 0.22, "local-30-int4-overlap": 0.2, "topk": None}
    (found,) = auto_rows([row(method, share) for method, share in shares.items()], 8)
    assert found["chosen"] == "local H=30, int4"
    assert (found["method"], found["best"], found["ratio"]) == ("local-30-int4", "local-30-int4-overlap", 1.1)
