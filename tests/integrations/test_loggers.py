"""`--log-to`: figures of a run for TensorBoard, as it is, and for modules that stand for wandb and trackio."""

from __future__ import annotations

import sys
import threading
import warnings
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import minga
from minga.integrations import loggers
from minga.integrations.loggers import LoggerChoice, RunLog
from minga.monitor.history import History

SPEC = minga.RunSpec.from_mapping({"name": "a run", "model": {"recipe": "custom"}})
FIGURES = {"loss": 2.5, "samples": 64, "members": 3}


class FakeTracker(ModuleType):
    """Stands for wandb or trackio: writes down what it is called with."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.calls: list[tuple[str, Any]] = []
        self.fails = False

    def init(self, **named: Any) -> None:
        self.calls.append(("init", named))

    def log(self, figures: dict[str, float]) -> None:
        if self.fails:
            raise RuntimeError("no space left")
        self.calls.append(("log", figures))

    def finish(self) -> None:
        self.calls.append(("finish", None))


class FakeWandb(FakeTracker):
    def define_metric(self, name: str, step_metric: str) -> None:
        self.calls.append(("define", (name, step_metric)))


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeTracker:
    module = FakeWandb("wandb")
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def trackio(monkeypatch: pytest.MonkeyPatch) -> FakeTracker:
    module = FakeTracker("trackio")
    monkeypatch.setitem(sys.modules, "trackio", module)
    return module


def test_wandb_and_trackio_get_the_figures_of_the_history(wandb: FakeTracker, trackio: FakeTracker) -> None:
    log = RunLog([LoggerChoice.parse("wandb:ours"), LoggerChoice.parse("trackio"), LoggerChoice.parse("trackio")])
    history = History(None)
    history.listeners.append(log)
    history.add(0.0, "step", step=1, **FIGURES)  # before it began: goes nowhere
    log.begin(SPEC, Path())
    log.begin(SPEC, Path())  # after a pause
    history.add(1.0, "step", step=2, **FIGURES)
    history.add(2.0, "joined", peer="p")
    history.add(3.0, "evaluation", step=1, headline="heldout_loss", heldout_loss=2.25, odd=float("nan"), seconds=0.5)
    log.close()
    history.add(4.0, "step", step=3, **FIGURES)
    logged = [
        ("log", {"global_step": 2, "run/loss": 2.5, "run/samples": 64.0, "run/members": 3.0}),
        ("log", {"global_step": 1, "heldout/loss": 2.25}),
        ("finish", None),
    ]
    config = SPEC.model_dump(mode="json")
    begun = {"name": "a run", "config": config}
    assert wandb.calls == [("init", {"project": "ours", **begun}), ("define", ("*", "global_step")), *logged]
    assert trackio.calls == [("init", {"project": "minga", **begun}), *logged]


def test_a_logger_that_fails_is_named_once_and_the_others_go_on(
    wandb: FakeTracker, trackio: FakeTracker, caplog: pytest.LogCaptureFixture
) -> None:
    log = RunLog([LoggerChoice("wandb"), LoggerChoice("trackio")])
    log.begin(SPEC, Path())
    wandb.fails = True
    for step in (1, 2):
        log({"event": "step", "step": step, **FIGURES})
    log.close()
    assert [record.getMessage() for record in caplog.records] == [
        "wandb failed, and training goes on without it: no space left"
    ]
    assert [name for name, _ in trackio.calls] == ["init", "log", "log", "finish"]


def test_a_logger_that_hangs_holds_up_neither_training_nor_the_end(
    wandb: FakeTracker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loggers, "CLOSE_S", 0.05)
    answered = threading.Event()
    monkeypatch.setattr(wandb, "log", lambda figures: answered.wait(20.0), raising=False)
    log = RunLog([LoggerChoice("wandb")])
    log.begin(SPEC, Path())
    for step in range(loggers.MOST_WAITING + 5):
        log({"event": "step", "step": step, **FIGURES})
    log.close()
    assert [record.getMessage() for record in caplog.records] == [
        "wandb: too slow for the figures of this run; some are lost",
        "wandb: some figures are lost, since a logger does not end",
    ]
    answered.set()


def test_a_logger_that_cannot_begin_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    log = RunLog([LoggerChoice("tensorboard", str(tmp_path / "file" / "folder"))])
    with warnings.catch_warnings(action="ignore"):
        log.begin(SPEC, tmp_path)
    log({"event": "step", "step": 1, **FIGURES})
    log.close()
    assert "tensorboard cannot be used" in caplog.text


@pytest.mark.filterwarnings("ignore")  # tensorboard's own
def test_tensorboard_has_a_curve_for_each_figure(tmp_path: Path) -> None:
    log = RunLog([LoggerChoice.parse("tensorboard")])
    log.begin(SPEC, tmp_path)
    for step in (1, 2):
        log({"event": "step", "step": step, **FIGURES})
    log.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["run/loss", "run/members", "run/samples"]
    assert [(each.step, each.value) for each in events.Scalars("run/loss")] == [(1, 2.5), (2, 2.5)]


@pytest.mark.parametrize("text", ["aim", "wandb:", "", "tensorboard,wandb"])
def test_other_loggers_are_refused(text: str) -> None:
    with pytest.raises(minga.ConfigurationError, match=r"say one of tensorboard, wandb, trackio"):
        LoggerChoice.parse(text)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minga.integrations.loggers.find_spec", lambda _: None)
    with pytest.raises(minga.ConfigurationError, match=r"--log-to wandb: .* pip install wandb"):
        LoggerChoice.parse("wandb:project")
