"""The benchmarks run, at sizes that say nothing about speed, and their summaries are as they should be."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import _machine, _processes, _report
from benchmarks._processes import WorkerError, Workers
from benchmarks.btard_cost import formula_bytes
from tests.worlds import forked
from tests.worlds.seeds import soaked

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the benchmarks read /proc")


@pytest.fixture(autouse=True)
def _workers_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(words: list[str], *, text: bool, **options: Any) -> subprocess.Popen[str]:
        assert text
        return forked.start(*words[1:], **options)

    monkeypatch.setattr(_processes, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": start}))


def summary(name: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a benchmark; its exit status and its summary."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as output:
        patch.setattr("sys.argv", [name, "--json", *arguments])
        code = importlib.import_module(f"benchmarks.{name}").main()
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [line.get("summary", False) for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["benchmark"] == name
    assert code == (0 if lines[-1]["ok"] else 1)
    return code, lines[-1]


def test_each_can_be_started() -> None:
    """Also those that take too long to be run here, and are not missed until somebody wants to measure."""
    for path in (ROOT / "benchmarks").glob("[!_]*.py"):
        importlib.import_module(f"benchmarks.{path.stem}")


def test_the_path_of_a_gradient_on_an_accelerator_crosses_the_bus_once_a_round_each_way() -> None:
    code, figures = summary("gpu", "--device", "cpu", "--only", "transfers")
    assert code == 0
    for strategy in ("synchronous", "delayed", "local"):
        found = figures["transfers"][strategy]
        assert found["full_vector_transfers_per_micro_batch"] == 0
        assert 0.9 < found["crossings_to_host_per_round"] <= 1.0, "the sum of the gradients"
        assert 0.9 < found["crossings_to_device_per_round"] <= 1.0, "the mean"
        assert found["host_reads_per_micro_batch"] == (3.25 if strategy == "local" else 1.25)


@pytest.mark.soak
def test_a_peer_on_a_card_is_compared_with_bare_pytorch() -> None:
    words = ("--device", "cpu", "--turns", "1", "--micro-batches", "1", "--seconds", "0.3")
    code, figures = summary("gpu", *words)
    assert code == 0
    assert set(figures["pairs"]) == {"synchronous", "delayed", "local"}
    assert all(found["samples_per_s"] > 0 for found in figures["pairs"].values())
    assert all(found["micro_batch_s"] > 0 and found["state"]["digest_s"] > 0 for found in figures["alone"].values())


def test_each_codec_has_its_figures() -> None:
    words = ("--steps", "0", "--elements", "8192", "--only", "powersgd", "int4(block=32)", "sign", "union")
    *rows, sketch = summary("codecs", *words)[1]["rows"]
    found = {row["codec"]: row for row in rows}
    assert list(found) == ["int4(block=32)", "sign", "union"]
    assert sketch["sketch"] == "powersgd"
    assert 0 < sketch["both_mb_s"] < sketch["project_mb_s"]
    assert found["int4(block=32)"]["bits"] == 4.5
    assert found["sign"]["error"] == pytest.approx(0.363, abs=0.02)
    assert found["union"]["error"] < 1e-6


@pytest.mark.promise("the-model-is-right")
def test_equivalence_holds() -> None:
    _, figures = summary("equivalence", "--steps", "3")
    assert figures["ok"]
    assert figures["rel_err"] < 1e-5


def test_the_formula_of_btard_cost_gives_the_table_of_btard_section_7() -> None:
    assert [formula_bytes(members) for members in (16, 64, 256)] == [20_480, 229_376, 3_276_800]


def test_btard_cost_counts_bytes_and_times_steps() -> None:
    _, figures = summary("btard_cost", "--members", "4", "--steps", "1", "--peers", "2", "--mib", "1", "--rounds", "1")
    (found,) = figures["control_bytes"].values()
    assert found["measured"] == pytest.approx(found["formula"], rel=0.2)
    assert found["measured"] < found["with_calls"] < found["with_paths"]
    assert len(set(figures["longer_vector"]["measured"])) == 1
    assert figures["steps_correct"] == figures["steps"] == 1
    assert figures["step_ratio"] > 0.0


@pytest.mark.parametrize("codec", [soaked("float32"), "int8"])
def test_allreduce_is_correct(codec: str) -> None:
    _, figures = summary(
        "allreduce", "--peers", "2", "--mib", "1", "--rounds", "1", "--codec", codec, "--quiet-wait", "0"
    )
    assert figures["rounds_correct"] == figures["rounds"] == 1
    assert figures["wire_mib"][0] > 0.2
    assert len(figures["matchmaking_s"]) == len(figures["allreduce_s"]) == 3


@pytest.mark.soak
def test_recovery_survives_one_case() -> None:
    _, figures = summary("recovery", "--cases", "kill-leader-during", "--millions", "0.2", "--micro-batch", "0.02")
    assert figures["cases"] == 1
    assert "worst_gap_s" in figures


def test_a_worker_that_fails_is_reported_and_leaves_nothing() -> None:
    with Workers() as workers:
        worker = workers.start("wrong", "benchmarks.equivalence:no_such_function", {})
        with pytest.raises(WorkerError, match="no_such_function"):
            worker.receive(60)
        folder = workers.directory
    assert worker.process.poll() is not None
    assert not folder.exists()


def test_machine_figures() -> None:
    me = os.getpid()
    assert me in _machine.process_tree(os.getppid())
    assert _machine.cpu_s([me]) > 0
    assert 0 < _machine.memory_bytes(me) <= _machine.memory_bytes(me, peak=True)
    moment = _machine.machine_time()
    assert 0 < moment.busy_s < moment.total_s
    assert _machine.others_share(moment, moment, 1.0) == 0.0
    assert _report.spread([]) is None
    assert _report.spread([3.0, 1.0, 2.0]) == [2.0, 1.0, 3.0]
