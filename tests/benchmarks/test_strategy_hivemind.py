"""The comparison of strategies with hivemind, with a stand-in of its optimizer for a peer that is alone."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks import _strategy_hivemind, _strategy_tasks
from benchmarks._strategy_hivemind import METHODS, hivemind_row
from benchmarks._strategy_methods import REFERENCE, method_of
from benchmarks._strategy_run import Cell, run_cell
from tests.benchmarks.test_strategies_benchmark import TINY

SAMPLES = 2 * 5 * 32


class Optimizer:
    """The part of hivemind's that one peer needs: steps of a batch of its own, or local ones."""

    def __init__(self, **options: Any) -> None:
        self.options, self.local_epoch, self._samples = options, 0, 0
        self.optimizer = options["optimizer"](options["params"])
        self.scheduler = options["scheduler"](self.optimizer)
        self.tracker = SimpleNamespace(ready_to_update_epoch=True)
        self.state_averager = SimpleNamespace(step=lambda **_: None)

    def step(self, batch_size: int | None = None) -> None:
        self._samples += self.options["batch_size_per_step"] if batch_size is None else batch_size
        is_full = self._samples >= self.options["target_batch_size"]
        if is_full or self.options.get("use_local_updates"):
            self.optimizer.step()
        if is_full:
            self.scheduler.step()
            self.local_epoch, self._samples = self.local_epoch + 1, 0
            logging.getLogger("hivemind.optim.optimizer").warning("Averaged gradients with 1 peers")

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def shutdown(self) -> None:
        pass


@pytest.fixture(autouse=True)
def hivemind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(_strategy_tasks.TASKS, "tiny", TINY)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(_strategy_hivemind, "LOCAL_ROUND_S", 0.0)
    dht = SimpleNamespace(get_visible_maddrs=lambda: ["here"], shutdown=lambda: None)
    parts = {
        "hivemind": {"Optimizer": Optimizer, "DHT": lambda **_: dht},
        "hivemind.compression": {"Float16Compression": object},
        "hivemind.optim.grad_averager": {"GradientAverager": object},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    yield
    sys.stdin.close()


def said_by_a_peer(method: str, folder: Path) -> dict[str, Any]:
    """The last message of a peer that trains alone."""
    sent: list[dict[str, Any]] = []
    channel: Any = SimpleNamespace(send=lambda **fields: sent.append(fields), commands=lambda: [{"do": "train"}])
    settings = {"task": "tiny", "method": method, "seed": 1, "samples": SAMPLES, "peers": 1}
    _strategy_hivemind.run(channel, {**settings, "folder": str(folder), "index": 0, "initial_peers": []})
    assert sent[0] == {"addresses": ["here"]}
    assert sent[1] == {"ready": True}
    return sent[2]


@pytest.mark.parametrize("method", METHODS)
def test_a_peer_of_hivemind_learns_what_one_of_minga_does(method: str, tmp_path: Path) -> None:
    """The same batches, steps, schedule and clipping, so the same loss but for rounding."""
    cell = Cell("tiny", method_of(method), 1, (1.0,), SAMPLES, evaluations=1)
    ours, theirs = run_cell(cell, tmp_path), said_by_a_peer(method, tmp_path)
    first, last = (each["loss"] for each in ours["curve"])
    assert theirs["loss"] == pytest.approx(last, rel=1e-3)
    assert last < first - 0.1
    assert (theirs["samples"], theirs["rounds"]) == (SAMPLES, len(ours["rounds"]))
    assert theirs["said"] == {"gradients 1": len(ours["rounds"])}


def test_both_are_shown_beside_each_other() -> None:
    cell = Cell("tiny", method_of(REFERENCE), 1, (1.0, 1.0), 64)
    record = {"curve": [{"loss": 4.0, "samples": 64}], "rounds": [{"up": [3e6, 3e6], "down": 3e6}] * 2}
    base = {"curve": [{"loss": 3.2, "samples": 64}]}
    said = [
        {
            "loss": loss,
            "samples": 32,
            "rounds": 2,
            "seconds": 5.0,
            "passed_on": 8e6,
            "said": {"gradients 2": 3, "local": 1},
        }
        for loss in (3.0, 3.8)
    ]
    row = hivemind_row(cell, said, record, base)
    assert row["loss"] == [3.4, 3.0, 3.8]
    assert row["gap_percent"] == [6.25, 25.0]
    assert row["samples"] == [64, 64]
    assert row["ok"]
    assert row["rounds"] == [2, 2]
    assert row["sent_mb"] == [4.0, 6.0]
    assert row["whole"] == 0.75
