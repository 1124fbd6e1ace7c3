"""Whole simulations of scenarios: equal logs, figures that make sense, churn, faults, liars, interruption, pictures."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from minga.cli.simulating import summary_text
from minga.core.errors import ConfigurationError, StorageError
from minga.simulation.event_log import Log, LogWriter
from minga.simulation.outcome import Outcome, draw
from minga.simulation.runner import Simulation
from minga.simulation.scenario.scenario import Scenario, changed, split_change
from minga.simulation.timeline import PHASES, Timeline

SMALL = """
[training]
target_batch_size = 64
[optimizer]
name = "adamw"
learning_rate = 0.003
warmup_steps = 0
[stop]
steps = 4
[[peers]]
name = "home"
count = 4
samples_per_second = "uniform 8 20"
up = "uniform 2Mbit 8Mbit"
down = "10Mbit"
dialable = 0.5
"""
STAY = '[[peers]]\nname = "stay"\ncount = 2\nsamples_per_second = 10\n'


def scenario(text: str = SMALL, *changes: str) -> Scenario:
    return Scenario.from_mapping(changed(tomllib.loads(text), [split_change(each, "--set") for each in changes]))


def simulate(text: str = SMALL, *changes: str, log: Path | None = None) -> Outcome:
    return Simulation(scenario(text, *changes), log).run()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    path = tmp_path_factory.mktemp("logs") / "new" / "small.jsonl"
    return simulate(log=path), path


def kinds(outcome: Outcome, kind: str) -> list[dict[str, Any]]:
    found = [entry for step in outcome.timeline.steps.values() for entry in step.incidents]
    return sorted((entry for entry in found if entry["kind"] == kind), key=lambda entry: entry["t"])


# ---- logs


def test_equal_seeds_give_equal_logs_and_others_do_not(small: tuple[Outcome, Path], tmp_path: Path) -> None:
    again = simulate(log=tmp_path / "again.jsonl")
    assert again.log_digest == small[0].log_digest
    assert (tmp_path / "again.jsonl").read_bytes() == small[1].read_bytes()
    assert simulate(SMALL, "seed=1", "stop.steps=1").log_digest != again.log_digest


def test_a_log_tells_all_that_the_figures_are_made_of(small: tuple[Outcome, Path]) -> None:
    outcome, path = small
    log, timeline = Log(path), Timeline()
    for entry in log:
        timeline.add(entry)
    assert log.is_complete
    assert log.head["scenario"]["peers"][0]["name"] == "home"
    assert timeline.finished() == outcome.steps
    assert timeline.peers == outcome.timeline.peers
    assert (timeline.alive, timeline.counts) == (outcome.timeline.alive, outcome.timeline.counts)


def test_a_changed_log_is_noticed(small: tuple[Outcome, Path], tmp_path: Path) -> None:
    lines = small[1].read_text("utf-8").splitlines(keepends=True)
    for name, text in (("cut", "".join(lines[:-5])), ("changed", "".join([*lines[:3], *lines[4:]]))):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        log = Log(path)
        assert list(log)
        assert not log.is_complete
    for name, text in (("half a line", "".join(lines)[:-100]), ("more after it", "".join([*lines, lines[1]]))):
        (tmp_path / name).write_text(text, "utf-8")
        log = Log(tmp_path / name)
        assert list(log)
        assert not log.is_complete
    for number in ("NaN", "-Infinity", "1e999", "9" * 400):
        (tmp_path / "bad").write_text(lines[0] + f'{{"t": {number}, "kind": "x"}}\n', "utf-8")
        with pytest.raises(ConfigurationError, match="line 2: not JSON"):
            list(Log(tmp_path / "bad"))
    for text, said in (("", "not JSON"), ("[]", "not an object"), ("{}", "not the log of a simulation")):
        (tmp_path / "bad").write_text(text, "utf-8")
        with pytest.raises(ConfigurationError, match=said):
            Log(tmp_path / "bad")
    (tmp_path / "bad").write_text(lines[0] + '{"kind": 3}\n', "utf-8")
    with pytest.raises(ConfigurationError, match="line 2: an entry needs"):
        list(Log(tmp_path / "bad"))


@pytest.mark.skipif(sys.platform == "win32", reason="no such files there")
def test_a_pipe_is_no_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="pipe: not a regular file"):
        Log(tmp_path / "pipe")


def test_numbers_of_a_log_have_one_form(tmp_path: Path) -> None:
    with LogWriter({}, tmp_path / "log") as writer:
        writer.add({"t": 1.00000000001, "kind": "x", "list": [-0.0, 0.1 + 0.2], "b": {"y": 1e-9}, "whole": 3})
    assert json.loads((tmp_path / "log").read_text("utf-8").splitlines()[1]) == {
        "t": 1.0, "kind": "x", "list": [0.0, 0.3], "b": {"y": 0.0}, "whole": 3,
    }  # fmt: skip


def test_a_log_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        simulate(SMALL, log=tmp_path / "file" / "log")


# ---- figures


def test_the_summary_of_a_quiet_run(small: tuple[Outcome, Path]) -> None:
    outcome = small[0]
    summary = outcome.summary()
    assert (summary["ended_by"], summary["steps"], summary["peers"], summary["most_alive"]) == ("steps", 4, 4, 4)
    assert summary["participation"] == summary["least_participation"] == 1.0
    assert summary["split_steps"] == 0
    assert summary["samples_per_step"] >= 64
    assert 0.5 < summary["utilisation"] < 1.0
    assert summary["loss"] < outcome.losses()[0][1]
    assert outcome.steps[-1].sent_bytes > outcome.steps[0].sent_bytes > 0
    assert len(summary["log_digest"]) == 64
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_phases_add_up_to_the_step(small: tuple[Outcome, Path]) -> None:
    for step in small[0].steps[1:]:
        assert step.measured == 4
        assert step.mean_phases_s.keys() == set(PHASES)
        assert sum(step.mean_phases_s.values()) == pytest.approx(step.took_s, rel=0.1)
        assert step.mean_phases_s["communicate"] == pytest.approx(step.round_s, rel=0.5)
        assert step.bound_by == "compute"


def test_a_slow_upload_is_named_as_what_binds() -> None:
    slow = '[[peers]]\nname = "slow"\nsamples_per_second = 10\nup = "60kbit"\ndown = "10Mbit"\ndialable = 0\n'
    outcome = simulate(SMALL + slow, "training.target_batch_size=32", "averaging.codec=float32", "stop.steps=5")
    assert outcome.bound_by.get("upload of slow-1", 0) >= 2, outcome.bound_by


def test_a_line_that_a_fault_slows_is_named_as_what_binds() -> None:
    """Of two peers that send as much in a round: `fast` has twice the rate, until a fault, and again after it."""
    timeline = Timeline()
    slowed = {"kind": "fault", "what": "slow_link fast", "action": "slow_link", "bytes_per_s": 500.0}
    counted = {"kind": "round.reduced", "bytes_sent": 1000, "bytes_received": 0, "seconds": 2.0, "computed_s": 0.0}
    entries: list[dict[str, Any]] = [
        {"kind": "peer.arrived", "peer": name, "up": up, "down": None} for name, up in (("fast", 2e3), ("home", 1e3))
    ]
    for step, fault in enumerate(({}, {**slowed, "ended": False}, {**slowed, "ended": True})):
        entries += [{**fault, "peers": ["fast"]}] if fault else []
        entries += [{**counted, "peer": name, "step": step, "round": str(step)} for name in ("fast", "home")]
    for entry in entries:
        timeline.add({"t": 1.0, **entry})
    busiest = [timeline.steps[step].busiest for step in (1, 2, 3)]
    assert busiest == [(1.0, "home", "upload"), (2.0, "fast", "upload"), (1.0, "home", "upload")]


def test_slow_processors_apply_slowly_and_who_lacks_memory_stays_away() -> None:
    changes = ("peers.home.processor=5000", "peers.home.memory=choice 100kB 1GB", "peers.home.count=6", "stop.steps=3")
    outcome = simulate(SMALL, *changes)
    assert outcome.phases_s["apply"] == pytest.approx(0.35, rel=0.1)
    assert 0 < len(outcome.timeline.peers) < 6


@pytest.mark.parametrize("path", ['latency = "400ms"', 'latency = "1ms"\nrate = "60kbit"'])
def test_a_slow_path_between_regions_makes_rounds_longer(path: str, small: tuple[Outcome, Path]) -> None:
    near = small[0].steps[-1]
    far = SMALL.replace('name = "home"\n', 'name = "home"\nregion = "here"\n')
    far += '[[peers]]\nname = "far"\nregion = "there"\nsamples_per_second = 10\n'
    far += '[[paths]]\nbetween = ["here", "there"]\n' + path
    steps = simulate(far, "stop.steps=6").steps
    assert steps[-1].members == near.members + 1
    longest = max(step.round_s for step in steps)  # a round that the far peer leads, or is led by, takes half of that
    assert longest > near.round_s + 1.2  # four ways of 400 ms but for what overlaps, or 7 kB at that rate


@pytest.mark.parametrize(
    ("changes", "why"),
    [(("stop.time=5s", "stop.steps=1000"), "time"), (("stop.loss=2.25", "stop.steps=1000"), "loss")],
)
def test_the_other_ends(changes: tuple[str, ...], why: str) -> None:
    outcome = simulate(SMALL, *changes)
    assert outcome.ended_by == why
    if why == "time":
        assert outcome.virtual_s == pytest.approx(5.0)
    else:
        assert outcome.losses()[-1][1] <= 2.25


def test_a_run_that_everybody_leaves_is_over() -> None:
    outcome = simulate(SMALL, "peers.home.session=3s", "stop.steps=1000")
    assert outcome.ended_by == "nobody is left"
    assert outcome.timeline.alive[-1][1] == 0
    assert outcome.virtual_s < 20.0


# ---- what goes wrong


def test_peers_come_go_crash_and_come_back() -> None:
    changes = ("peers.home.session=exponential 8s", "peers.home.away=exponential 3s", "peers.home.crash=0.5")
    outcome = simulate(SMALL + STAY, *changes, "stop.steps=7", "seed=3")
    assert {entry["how"] for entry in kinds(outcome, "peer.left")} >= {"goodbye", "crash"}
    arrived = [entry["peer"] for entry in kinds(outcome, "peer.arrived")]
    assert len(arrived) > len(set(arrived)) == 6
    assert outcome.participation is not None
    assert outcome.participation > 0.95
    assert outcome.split_steps == 0
    for peer in outcome.timeline.peers.values():
        assert 0 <= peer.computed_s <= peer.here_s <= outcome.virtual_s + 1e-6


def test_a_peer_is_excused_for_having_no_samples_only_when_it_comes() -> None:
    """Who falls out and fetches the state over and over contributes nothing, and did not lower the participation."""
    slow = '[[peers]]\nname = "slow"\nsamples_per_second = 16\nmicro_batch = 64\n'
    text = f'{STAY}{slow}[training]\ntarget_batch_size = 256\n[faults]\nscript = "stall slow-1 at 8s for 10s"\n'
    changes = ("peers.stay.count=3", "peers.stay.samples_per_second=40", "stop.steps=7")
    outcome = simulate(text, *changes)
    assert len(kinds(outcome, "member.out_of_sync")) == 1
    assert [step.number for step in outcome.steps if "slow-1" in step.newcomers] == [1]
    assert "slow-1" in outcome.steps[-1].missing, "it just came back"


@pytest.mark.parametrize(("crash", "goes_on"), [(0, True), (1, False)])
def test_a_run_that_all_left_goes_on_from_what_they_kept(crash: int, goes_on: bool) -> None:
    """Who says goodbye keeps the state; a crash leaves the last checkpoint, of which so short a run has none."""
    home = '[[peers]]\nname = "home"\ncount = 2\nsamples_per_second = 20\nsession = "5s"\naway = "3s"\n'
    ghost = '[model]\nkind = "ghost"\nparameters = 1000\n[training]\ntarget_batch_size = 64\n[stop]\ntime = "15s"\n'
    outcome = simulate(ghost + home + f"crash = {crash}\n")
    steps = outcome.steps
    assert (steps[-1].applied_s > 8.0) is (outcome.split_steps == 0) is goes_on, "steps of the second session"
    assert len(kinds(outcome, "run.set_back")) == (0 if goes_on else 1)


def test_who_kept_the_state_with_which_others_came_back_does_not_fetch_it() -> None:
    home = '[[peers]]\nname = "home"\ncount = 3\nsamples_per_second = 20\nsession = "20s"\naway = "5s"\nup = "1Mbit"\n'
    ghost = '[model]\nkind = "ghost"\nparameters = 100_000\n[training]\ntarget_batch_size = 256\n'
    outcome = simulate(ghost + home, "stop.time=40s")  # a line takes ten seconds for a state
    back = [entry["seconds"] for entry in kinds(outcome, "sync.finished") if entry["t"] > 25.0]
    assert back
    assert max(back) < 2.0


def test_peers_of_a_model_without_numbers_come_later_to_eager_local_steps() -> None:
    """The guess of what the others will send is kept over a download, though it has no numbers."""
    ghost = '[model]\nkind = "ghost"\nparameters = 1000\n[training]\nstrategy = "local"\ntarget_batch_size = 64\n'
    eager = '[strategy.local]\noverlap = true\nmerge = "eager"\n'
    home = '[[peers]]\nname = "home"\ncount = 3\nsamples_per_second = 20\narrival = "uniform 0s 5s"\n'
    outcome = simulate(ghost + eager + home, "stop.steps=6")
    assert not kinds(outcome, "member.failed")
    assert outcome.steps[-1].contributors == 3


def test_clients_find_the_one_peer_that_they_can_dial_when_it_comes_back() -> None:
    """It has its address and its state again, so none of them is lost and it has nothing to fetch."""
    ghost = '[model]\nkind = "ghost"\nparameters = 1000\n[training]\ntarget_batch_size = 64\n[stop]\ntime = "40s"\n'
    hub = '[[peers]]\nname = "hub"\nsamples_per_second = 20\nsession = "15s"\naway = "5s"\n'
    outcome = simulate(ghost + hub + '[[peers]]\nname = "client"\ncount = 3\nsamples_per_second = 20\ndialable = 0\n')
    assert [round(entry["t"]) for entry in kinds(outcome, "peer.arrived")] == [0, 0, 0, 0, 20]
    late = [step for step in outcome.steps if step.applied_s > 25.0]
    assert max(step.contributors for step in late) == 4
    assert "hub-1" not in {entry["peer"] for entry in kinds(outcome, "sync.finished")}


def test_scripted_and_random_faults_happen_and_are_noted() -> None:
    faults = '[faults]\nscript = """\nkill home-4 at 2s\nslow_link home-1 to 500kbit at 0.05ms for 3s\n"""\n'
    for action, more in (("stall", ""), ("slow_link", 'to = "200kbit"\n'), ("drop_link", "")):
        faults += f'[[faults.random]]\naction = "{action}"\nper_hour = 600\nlasts = "uniform 1s 3s"\n{more}'
    outcome = simulate(SMALL + faults, "peers.home.count=5", "stop.steps=7")
    found = kinds(outcome, "fault")
    assert {entry["action"] for entry in found} == {"kill", "slow_link", "stall", "drop_link"}
    assert ("home-4", "killed") in [(entry["peer"], entry["how"]) for entry in kinds(outcome, "peer.left")]
    assert any(entry["ended"] for entry in found)
    assert any("5e-05s" in entry["what"] for entry in found), "a time that no script could have in this form"
    assert outcome.timeline.last_step == 7


def test_faults_that_never_happen_are_told() -> None:
    late = '[[peers]]\nname = "late"\nsamples_per_second = 10\narrival = "1h"\n'
    script = "kill leader when round.begun step=50\\nstall late-1 at 1s for 1s\\nstall home-1 for 1s"
    outcome = simulate(f'{SMALL}{late}[faults]\nscript = "{script}"\n', "stop.steps=1")
    told = ["kill leader when round.begun step=50", "stall late-1 at 1.0s for 1.0s"]
    assert outcome.summary()["pending_faults"] == told
    assert any(all(fault in line for fault in told) for line in summary_text(outcome))


@pytest.mark.promise("newcomers-get-in")
def test_a_donor_that_serves_a_false_state_is_found_out() -> None:
    late = '[[peers]]\nname = "late"\ncount = 2\nsamples_per_second = 10\narrival = "uniform 6s 9s"\n'
    lies = '[[attackers]]\npeers = "home"\ncount = 3\nbehaviour = "false-state"\n'
    outcome = simulate(SMALL + late + lies, "stop.steps=7", "peers.home.dialable=1")
    dropped = {str(entry["other"]) for entry in kinds(outcome, "state.donor_dropped") if entry["lied"]}
    assert dropped
    assert dropped <= {"home-1", "home-2", "home-3"}
    assert not kinds(outcome, "member.diverged")
    assert {"late-1", "late-2"} <= {e["peer"] for e in kinds(outcome, "sync.finished")}


def test_a_liar_about_its_line_does_not_stop_the_others() -> None:
    lies = '[[attackers]]\npeers = "home"\nbehaviour = "false-rates"\n'
    outcome = simulate(SMALL + lies)
    assert (outcome.ended_by, outcome.participation) == ("steps", 1.0)


# ---- interruption, ghosts, pictures


def test_an_interrupted_simulation_tells_what_ran(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    simulation = Simulation(scenario(SMALL, "stop.steps=100000"), path)
    told: list[Outcome] = []
    add = simulation.timeline.add

    def add_and_interrupt(entry: dict[str, Any]) -> None:
        add(entry)
        if entry["kind"] == "step" and entry["step"] == 3:
            simulation.interrupt()

    simulation.timeline.add = add_and_interrupt  # type: ignore[method-assign]
    outcome = simulation.run(told.append)
    assert told == [outcome]
    assert (outcome.ended_by, outcome.timeline.last_step) == ("interrupt", 3)
    assert outcome.summary()["bytes_sent_per_peer"]["mean"] > 0
    log = Log(path)
    assert list(log)
    assert log.is_complete
    simulation.interrupt()  # afterwards it does no harm


def test_interrupted_before_it_began() -> None:
    simulation = Simulation(scenario())
    simulation.interrupt()
    assert simulation.run().ended_by == "interrupt"


GHOST = """
[model]
kind = "ghost"
parameters = 1_000_000
[training]
target_batch_size = 64
[averaging]
codec = "float16"
[stop]
steps = 4
[[peers]]
name = "home"
count = 4
samples_per_second = 10
up = "20Mbit"
down = "50Mbit"
"""


def test_ghosts_have_rounds_and_traffic_of_the_codec_and_no_loss() -> None:
    outcome, vector_bytes = simulate(GHOST), 2e6
    assert (outcome.ended_by, outcome.losses(), outcome.participation) == ("steps", [], 1.0)
    # Each of four sends 3/4 of the vector and its part to three others, at 20 Mbit/s.
    before, last = outcome.steps[-2:]
    assert last.round_s == pytest.approx(1.5 * vector_bytes / 2.5e6, rel=0.25)
    assert 0.0 <= last.sent_bytes - before.sent_bytes - 4 * 1.5 * vector_bytes < 5e6, "all but some probes"


def test_pictures(small: tuple[Outcome, Path], tmp_path: Path) -> None:
    assert [path.name for path in draw(small[0], tmp_path / "new")] == [
        "loss.png", "rounds.png", "peers.png", "traffic.png",
    ]  # fmt: skip
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "new").iterdir())
    empty = Simulation(scenario())
    empty.interrupt()
    assert len(draw(empty.run(), tmp_path / "empty")) == 3
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        draw(small[0], tmp_path / "file")
