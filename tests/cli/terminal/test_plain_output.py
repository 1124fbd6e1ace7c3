"""What a command prints where there is no terminal: each line once, and a sign of life now and then."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from minga.cli.terminal import exit_codes
from minga.cli.terminal import output as output_module
from minga.cli.terminal.output import IDLE_PERIOD_S, PLAIN_PERIOD_S, REFRESH_S, Display, Output, Ticker, plain_table
from minga.core.errors import ConfigurationError
from tests.worlds import forked


class Clock:
    """The time that a ticker goes by; each refresh takes its period, and the ticker ends after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.now, self._end = 1000.0, 1000.0 + seconds

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.now >= self._end


def printed(seconds: float, view: Callable[[float], Display], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a run prints in `seconds` if `view` is what can be said of each second."""
    clock, said = Clock(seconds), list[str]()
    monkeypatch.setattr(output_module, "time", clock)
    output = Output(json_output=False)
    output.interactive = False
    monkeypatch.setattr(output, "say", said.append)
    ticker = Ticker(output, lambda: view(clock.now - 1000.0))
    monkeypatch.setattr(ticker, "_stop", clock)
    ticker._loop(None)
    return said


def test_a_run_that_changes_tells_it_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    said = printed(60.0, lambda now: Display([], lines=[f"step {now:.0f}"]), monkeypatch)
    assert 60.0 / (PLAIN_PERIOD_S + 2 * REFRESH_S) <= len(said) <= 60.0 / PLAIN_PERIOD_S + 2


def test_an_idle_run_prints_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    said = printed(10 * IDLE_PERIOD_S, lambda _: Display([], lines=["step 0"]), monkeypatch)
    assert said == ["step 0"] * len(said)
    assert 9 <= len(said) <= 11


def test_a_notice_is_said_once_for_each_of_its_states(monkeypatch: pytest.MonkeyPatch) -> None:
    def view(now: float) -> Display:
        rests, number = 20.0 < now < 40.0, 1 if now < 30.0 else 2
        notices = {"resting": (rests, "rests" if rests else "no longer"), "trouble": (number, f"[b]trouble {number}")}
        return Display([], lines=["step 0"], notices=notices)

    said = printed(IDLE_PERIOD_S, view, monkeypatch)
    assert said == ["step 0", "[b]trouble 1", "rests", "[b]trouble 2", "no longer"]


def test_names_mean_themselves_wherever_they_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a [/b] run [bold] :smile:"
    output, table = Output(json_output=False), plain_table(name)
    table.add_row(name)
    view = Display([name, table], title=name, subtitle=name)
    for part in (name, Text.assemble("Joined ", (name, "bold")), table, view.framed()):
        output.say(part)
        assert name in capsys.readouterr().out
    output.show(view)
    assert capsys.readouterr().out.count(name) == 3
    output.say(Text(f"{name} " * 20))
    assert capsys.readouterr().out.count("\n") == 1, "a line that programs may read is whole"


def test_figures_that_always_move_are_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    said = printed(IDLE_PERIOD_S, lambda now: Display([], lines=[f"sent {now:.0f} bytes"], news="step 0"), monkeypatch)
    assert len(said) <= 2


@pytest.mark.skipif(sys.platform == "win32", reason="pipes break in another way there")
def test_a_reader_that_goes_ends_the_command_without_a_word(tmp_path: Path) -> None:
    """As `minga doctor | head`; a thread of the transport that calls Python would abort an interpreter that ends."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from minga.cli import main; main(['doctor', '--directory', '.'])"],
            stdout=writing,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path)},
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(("command", "code"), [(["runs"], exit_codes.STORAGE), (["status", "x"], exit_codes.USAGE)])
def test_json_that_a_full_disk_refused_is_no_success(tmp_path: Path, command: list[str], code: int) -> None:
    program = f"from minga.cli import main; main([*{command}, '--directory', '.', '--json'])"
    with (
        open("/dev/full", "wb") as full,
        forked.start("-c", program, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path) as process,
    ):
        _, said = process.communicate(timeout=45)
    assert (process.returncode, said.count("minga: "), "Traceback" in said) == (code, 1, False)


@pytest.mark.parametrize("width", [60, 90])
def test_on_a_terminal_lines_break_at_spaces_and_what_is_copied_stays_one_line(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output(json_output=False)
    output.interactive = True
    output.console = Console(width=width, force_terminal=True, color_system=None, markup=False)
    costs = "Memory at least 29.1 MB of 135 GB; disk 41.8 MB, with 75.4 GB free; 16.4 MB to download at the start"
    command = f"minga admit {'x' * 200}"
    short = f"minga join {'[b]' * 18}"
    output.say(costs)
    output.say(command)
    output.say_whole(short)
    output.interactive = False
    output.say(costs)
    *wrapped, copied, whole, piped = capsys.readouterr().out.splitlines()
    assert len(wrapped) == 2
    assert " ".join(line.strip() for line in wrapped) == costs
    assert (copied, whole, piped) == (command, short, costs)


def test_last_words_and_errors_break_at_spaces_and_a_command_stays_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out, errors = Terminal(), Terminal()
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", errors)
    command = "minga host /a/folder/with/a/long/name"
    monkeypatch.setattr(exit_codes, "farewells", [lambda _: f"This host has left at step 7. To go on:\n{command}"])
    monkeypatch.setattr(exit_codes, "interrupts_told", [])
    exit_codes.report_interrupt(json_output=False)
    exit_codes.report(ConfigurationError("--micro-batch 100: it must be from 1 to 64"), json_output=False)
    assert out.getvalue().splitlines() == ["This host has left at step 7.", "To go on:", command]
    exit_codes.report(ConfigurationError("no such run\nno such file"), json_output=False)
    told = ["minga: --micro-batch 100: it", "must be from 1 to 64", "minga: no such run", "minga: no such file"]
    assert errors.getvalue().splitlines() == told
