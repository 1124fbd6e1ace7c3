"""What the demo concludes from the events of its processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree as ET

import pytest

from minga.cli.demo.cut_model import missed
from minga.cli.demo.demo import _result_directory
from minga.cli.demo.report import (
    DemoFacts,
    check,
    draw_terminal,
    in_words,
    recovery_s,
)
from minga.cli.demo.stage import Child
from minga.core.errors import ConfigurationError, StorageError
from minga.recipes.albert.recipe import AlbertRecipe
from minga.recipes.interface import DemoGoal, Metric

KILL_TIME = 1020.0
PROMISING = type("Promising", (AlbertRecipe,), {"demo_goal": DemoGoal(6.4, steps=60)})


class FakeChild:
    """As much of a child as the report looks at; its steps come every second, later ones `late_s` later."""

    steps = Child.steps
    first = Child.first
    of = Child.of
    summary = Child.summary

    def __init__(self, name: str, *, begun: float = 1000.0, late_s: float = 0.0, **summary: Any) -> None:
        self.name, self.begun = name, begun
        self.process = SimpleNamespace(poll=lambda: 0)
        self.events: list[dict[str, Any]] = [{"event": "ready", "t": begun + 4.0, "step": 0}]
        for step in range(1, 60):
            time = 1000.0 + step + (late_s if 1000.0 + step > KILL_TIME else 0.0)
            if time > begun:
                self.events.append({"event": "step.applied", "t": time, "step": step, "samples": 8})
        self.events.append(
            {"summary": True, "step": 60, "digest": "d" * 64, "samples": 100, "headline": "heldout_mlm_loss", **summary}
        )


def facts(**changes: Any) -> DemoFacts:
    organiser = FakeChild("organiser", first={"heldout_mlm_loss": 9.0}, last={"heldout_mlm_loss": 6.2})
    newcomer = FakeChild("newcomer", begun=1030.0)
    killed = FakeChild("trainer 3")
    killed.process = SimpleNamespace(poll=lambda: -9)
    values: dict[str, Any] = {
        "recipe": PROMISING,
        "organiser": organiser,
        "survivors": [FakeChild("trainer 1"), FakeChild("trainer 2", late_s=0.5), newcomer],
        "newcomer": newcomer,
        "killed": killed,
        "kill_time": KILL_TIME,
        "normal_step_s": 1.0,
        "last_step": 60,
        "left_over": 0,
        "seconds": 60.0,
    }
    return DemoFacts(**cast(Any, {**values, **changes}))


def test_all_is_well(tmp_path: Path) -> None:
    summary = check(facts(), 3.0, 3)
    assert summary["ok"] is True
    assert summary["failed"] == []
    expected = {
        "steps": 60,
        "headline_first": 9.0,
        "headline_last": 6.2,
        "improvement": pytest.approx(2.8),
        "killed": 1,
        "recovery_s": 0.5,
        "late_join_s": 4.0,
        "late_join_contributed": True,
        "digests_equal": True,
        "leftover_processes": 0,
    }
    assert expected.items() <= summary.items()
    text = "\n".join(in_words(facts(), summary, None, tmp_path))
    assert "heldout_mlm_loss 9 → 6.2" in text
    assert "Not as promised" not in text


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"left_over": 1}, "leftover_processes"),
        ({"last_step": 61}, "digests_equal"),
        ({"survivors": [FakeChild("a"), FakeChild("b", digest="e" * 64)]}, "digests_equal"),
        ({"survivors": [FakeChild("a", late_s=3.5)]}, "recovery_s"),
        ({"newcomer": FakeChild("n", begun=2000.0)}, "late_join_contributed"),
        ({"killed": FakeChild("k")}, "killed"),
        ({"organiser": FakeChild("o", step=12, last={"heldout_mlm_loss": 6.0})}, "headline_first"),
        (
            {"organiser": FakeChild("o", first={"heldout_mlm_loss": 9.0}, last={"heldout_mlm_loss": 6.5})},
            "headline_last",
        ),
    ],
)
def test_each_bound_is_checked(changes: dict[str, Any], failed: str, tmp_path: Path) -> None:
    summary = check(facts(**changes), 3.0, 3)
    assert summary["ok"] is False
    assert failed in summary["failed"]
    text = "\n".join(in_words(facts(**changes), summary, None, tmp_path))
    assert "Not as promised: " in text
    assert "_" not in text.partition("Not as promised: ")[2], "words, no names of figures"


@pytest.mark.parametrize(("state_bytes", "holds"), [(300_000, True), (900_000, False)])
def test_a_newcomer_that_has_the_base_fetches_what_is_trained_and_little_else(state_bytes: int, holds: bool) -> None:
    newcomer = FakeChild("newcomer", begun=1030.0)
    costs = {"event": "costs", "parameters": 25_000, "files_bytes": 500_000}
    newcomer.events += [costs, {"event": "state.downloaded", "received_bytes": state_bytes}]
    summary = check(facts(newcomer=newcomer, has_base=True), 3.0, 3)
    assert (summary["late_join_bytes"], summary["trained_bytes"]) == (500_000 + state_bytes, 100_000)
    assert ("late_join_bytes" not in summary["failed"]) == holds


def slow(child: FakeChild, times: float) -> FakeChild:
    """The same on a machine on which everything takes that much longer."""
    for event in child.events:
        if "t" in event:
            event["t"] = 1000.0 + times * (event["t"] - 1000.0)
    child.begun = 1000.0 + times * (child.begun - 1000.0)
    return child


def test_a_busy_machine_keeps_what_an_idle_one_promises() -> None:
    peers = {"survivors": [FakeChild("a", late_s=2.9), FakeChild("b")], "newcomer": FakeChild("n", begun=1030.0)}
    changes: dict[str, Any] = {
        "survivors": [slow(each, 8.0) for each in (*peers["survivors"], peers["newcomer"])],
        "newcomer": peers["newcomer"],
        "kill_time": 1000.0 + 8.0 * (KILL_TIME - 1000.0),
        "normal_step_s": 8.0,
        "seconds": 480.0,
    }
    summary = check(facts(**changes), 8.0, 3)
    assert (summary["ok"], summary["recovery_s"], summary["late_join_s"]) == (True, pytest.approx(23.2), 32.0)


def test_a_demo_of_few_steps_only_has_to_improve() -> None:
    few = FakeChild("o", step=20, first={"heldout_mlm_loss": 9.0}, last={"heldout_mlm_loss": 8.0})
    assert "headline_last" not in check(facts(organiser=few), 2.0, 3)["failed"]
    worse = FakeChild("o", first={"heldout_mlm_loss": 9.0}, last={"heldout_mlm_loss": 9.1})
    assert check(facts(organiser=worse), 2.0, 3)["failed"] == ["headline_last"]


def test_a_cut_model_that_had_no_time_to_learn_is_not_measured_by_it() -> None:
    figures = {
        "batches": {"without NoPeek": [301, 320], "with NoPeek": [340, 299]},
        "heldout_accuracy": {"without NoPeek": [0.9, 0.84], "with NoPeek": [0.9, 0.9]},
        "distance_correlation": {"without NoPeek": 0.5, "with NoPeek": 0.6},
        "leftover_processes": 1,
    }
    assert missed(figures) == ["leftover_processes"]
    figures["batches"] = {"without NoPeek": [301, 320], "with NoPeek": [340, 300]}
    assert missed(figures) == ["heldout_accuracy", "distance_correlation", "leftover_processes"]


def test_figures_that_should_rise() -> None:
    rising = type("Rising", (AlbertRecipe,), {"headline": Metric("accuracy", "higher"), "demo_goal": DemoGoal(0.8, 50)})
    for last, failed in ((0.9, []), (0.7, ["headline_last"]), (0.1, ["headline_last"])):
        organiser = FakeChild("o", first={"accuracy": 0.2}, last={"accuracy": last})
        assert check(facts(recipe=rising, organiser=organiser), 3.0, 3)["failed"] == failed


@pytest.mark.parametrize("kill_time", [1020.0, 1020.2, 1020.9])
def test_a_kill_costs_what_its_step_took_longer_at_whatever_moment_it_came(kill_time: float) -> None:
    late = [FakeChild("a", late_s=1.5), FakeChild("b", late_s=2.0)]
    assert recovery_s(facts(survivors=late, kill_time=kill_time)) == 2.0


def test_a_kill_after_the_round_counts_in_the_next_step() -> None:
    killed = FakeChild("k")
    killed.events.append({"event": "round.reduced", "t": 1019.95, "step": 19})  # it led to step 20
    quick, slow = FakeChild("a"), FakeChild("b", late_s=2.0)
    assert recovery_s(facts(survivors=[quick], killed=killed, kill_time=1019.97)) == 0.0
    slow.events = [event for event in slow.events if event.get("step") != 21]
    assert recovery_s(facts(survivors=[slow], killed=killed, kill_time=1019.97)) == 3.0


def test_results_never_overwrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _result_directory(None).name == "minga-demo"
    assert _result_directory(None).name == "minga-demo-2"
    (tmp_path / "minga-demo" / "file").touch()
    with pytest.raises(ConfigurationError, match="not empty"):
        _result_directory(tmp_path / "minga-demo")
    with pytest.raises(ConfigurationError, match="not empty"):
        _result_directory(tmp_path / "minga-demo" / "file")


def test_a_picture_shows_the_lines_and_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "terminal.svg"
    draw_terminal("minga demo --minutes 1", ["0:00  <b>first</b> & [red]last[/red]"], path)
    text = "".join(ET.fromstring(path.read_text("utf-8")).itertext()).replace("\u00a0", " ")
    assert "$ minga demo --minutes 1" in text
    assert "0:00  <b>first</b> & [red]last[/red]" in text, "no markup of the lines is obeyed"
    assert "url(http" not in path.read_text("utf-8")
    with pytest.raises(StorageError, match="cannot be written"):
        draw_terminal("x", [], path / "below-a-file")
