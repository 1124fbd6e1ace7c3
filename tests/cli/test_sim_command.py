"""`minga sim`: what they show, JSON, sweeps, bad input, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import minga.cli
from minga.cli.terminal.output import Output
from tests.worlds import forked
from tests.worlds.cli_run import GUARDED_MINGA, last_json

SMALL = """
[training]
target_batch_size = 64
[stop]
steps = 3
[[peers]]
name = "home"
count = 3
samples_per_second = 10
up = "5Mbit"
down = "10Mbit"
[faults]
script = "stall home-3 at 2s for 1s"
"""


@pytest.fixture(autouse=True)
def _keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands freeze the garbage collector and redirect signals; neither is for the test process."""
    monkeypatch.setattr("minga.cli.gc.freeze", lambda: None)
    monkeypatch.setattr("minga.cli.terminal.context.gc.disable", lambda: None)
    monkeypatch.setattr("minga.cli.terminal.context.gc.freeze", lambda: None)
    monkeypatch.setattr("minga.cli.terminal.interrupt.Interruption.__init__", lambda self, **_: None)


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SMALL, "utf-8")
    return str(path)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        minga.cli.main(list(arguments))
    assert isinstance(end.value.code, int)
    return end.value.code


def lines_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_a_run_in_words_and_pictures(small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("sim", small, "--plot", str(tmp_path / "plots"), "--log", str(tmp_path / "log.jsonl")) == 0
    said = capsys.readouterr().out
    for words in (
        "3 steps in",
        "3 peers took part",
        "steps an hour",
        "What bound the steps",
        "Held-out loss",
        "the warm-up of the learning rate, of 5,000",
        "2 fault",
    ):
        assert words in said
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        "loss.png", "rounds.png", "peers.png", "traffic.png",
    }  # fmt: skip


def test_json_and_replay(small: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = str(tmp_path / "log.jsonl")
    assert call("sim", small, "--json", "--log", log) == 0
    out = capfd.readouterr().out
    steps = [line for line in lines_of(out) if line.get("event") == "step"]
    summary = last_json(out)
    assert [step["step"] for step in steps] == [1, 2, 3]
    for key in ("peers", "steps", "wall_s", "virtual_s", "participation", "log_digest"):
        assert summary[key] is not None

    assert call("sim", "--replay", log) == 0
    said = capfd.readouterr().out
    for words in ("small: 3 steps, 3 peers", "Step 2 at", "led by home-", "█", "bound by:", "stall home-3"):
        assert words in said
    assert call("sim", "--replay", log, "--step", "2", "--json") == 0
    out = capfd.readouterr().out
    (step,) = [line for line in lines_of(out) if line.get("event") == "step"]
    assert {key: step[key] for key in steps[1] if key != "t"} == {k: v for k, v in steps[1].items() if k != "t"}
    assert last_json(out)["is_complete"] is True
    assert call("sim", "--replay", log, "--step", "9") == 2
    assert "has no step 9; there are steps 1 to 3" in capfd.readouterr().err


def test_a_damaged_log_is_refused_in_words(small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"minga_log": 1}\n{"t": 1.0, "kind": "round.begun", "peer": "x"}\n', "utf-8")
    assert call("sim", "--replay", str(log)) == 2
    assert "something was changed" in capsys.readouterr().err
    assert call("sim", "--replay", small) == 2
    assert "line 1: not JSON" in capsys.readouterr().err
    assert call("sim", "--replay", str(tmp_path / "absent")) == 2


def test_names_in_a_log_cannot_command_the_terminal(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    assert call("sim", small, "--set", "stop.steps=1", "--log", str(log)) == 0
    names = log.read_text("utf-8").replace("home-1", r"\u001b[2Jhome\ud800")
    log.write_text(names, "utf-8")
    capsys.readouterr()
    assert call("sim", "--replay", str(log)) == 0
    said = capsys.readouterr().out
    assert "\N{REPLACEMENT CHARACTER}[2Jhome\N{REPLACEMENT CHARACTER} joins as trainer" in said
    assert "cut off or changed" in said


def test_a_sweep_makes_a_table_and_lines(small: str, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("sim", small, "--set", "stop.steps=1", "--sweep", "training.target_batch_size=32,64")
    assert call(*arguments) == 0
    said = capfd.readouterr().out.splitlines()
    assert said[-3].split()[:3] == ["training.target_batch_size", "steps", "steps/h"]
    assert [line.split()[:2] for line in said[-2:]] == [["32", "1"], ["64", "1"]]
    assert call(*arguments, "--json") == 0
    out = capfd.readouterr().out
    assert [line["settings"] for line in lines_of(out) if line.get("event") == "run"] == [
        {"training.target_batch_size": "32"}, {"training.target_batch_size": "64"},
    ]  # fmt: skip
    assert [run["steps"] for run in last_json(out)["runs"]] == [1, 1]


def test_the_shipped_scenarios_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("sim") == 0
    assert "sahajbert" in capfd.readouterr().out
    assert call("sim", "--json") == 0
    assert "thousand" in last_json(capfd.readouterr().out)["scenarios"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("absent",), "neither a file nor a scenario that comes with minga"),
        (
            ("home-150", "--set", "peers.home.count=0"),
            "home-150: [[peers]] number 1: count = 0: must be a whole number",
        ),
        (("home-150", "--set", "stop.loss=1"), "a ghost model has no numbers and so no loss"),
        (("home-150", "--set", "steps"), "write KEY=VALUE"),
        (("home-150", "--sweep", "peers.home.count=1,0"), "count = 0: must be"),
        (("home-150", "--sweep", "seed=1,2", "--log", "x"), "--log is for one run"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("sim", *arguments) == 2
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_places_that_cannot_be_written_are_told_before_the_run(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path(small).read_text("utf-8")
    assert call("sim", small, "--log", small) == 2
    assert "that is the scenario itself" in capsys.readouterr().err
    assert call("sim", small, "--plot", small) == 4
    assert "not a folder" in (said := capsys.readouterr()).err
    assert said.out == ""
    assert call("sim", small, "--log", f"{small}/log") == 4
    assert "small.toml is no folder" in capsys.readouterr().err
    assert Path(small).read_text("utf-8") == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_nothing_is_said_of_a_run_whose_log_the_disk_refuses(small: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("sim", small, "--set", "stop.steps=1", "--log", "/dev/full", "--json") == 4
    (last,) = (line for line in lines_of(capfd.readouterr().out) if line.get("summary"))
    assert (last["ok"], last["error"], last["exit_code"]) == (False, "StorageError", 4)


def test_without_stdout_json_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(json_output=True)
    monkeypatch.setattr("minga.cli.terminal.output.sys.stdout", None)
    output.summary(ok=True)
    assert output._ended


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_that_the_disk_refuses() -> None:
    code = "import minga.cli; minga.cli.main(['sim'])"
    with (
        open("/dev/full", "wb") as full,
        forked.start("-c", code, stdout=full, stderr=subprocess.PIPE) as process,
    ):
        _, said = process.communicate(timeout=45)
    assert said.startswith("minga: the output cannot be written: No space left on device")
    assert process.returncode == 4


NOT_UNDER_NOHUP = """
import runpy, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are different there")
@pytest.mark.parametrize(("names", "code"), [("INT", 130), ("TERM HUP", 143)])
def test_being_told_to_end_gives_a_summary_of_what_ran(small: str, names: str, code: int) -> None:
    words = (GUARDED_MINGA, "sim", small, "--set", "stop.steps=100000", "--json")
    process = forked.start("-c", NOT_UNDER_NOHUP, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if json.loads(line).get("event") == "step":
            break
    for name in names.split():
        process.send_signal(signal.Signals[f"SIG{name}"])
        time.sleep(0.01)
    rest, errors = process.communicate(timeout=45)
    summary = last_json("".join(lines) + rest)
    assert process.returncode == code
    assert (summary["ok"], summary["exit_code"], summary["ended_by"]) == (False, code, "interrupt")
    assert summary["steps"] >= 1
    assert not errors
