"""A class takes part without a link: the host announces the run, each of the others chooses it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from minga.cli.taking_part import nearby
from minga.cli.taking_part.nearby import choose_run
from minga.cli.terminal.output import Output
from minga.core.errors import ConfigurationError
from minga.identity.links.links import EntryPoint, Link
from minga.network.lan import NearbyRun, find_runs
from tests.worlds.cli_run import ALONE, LOCAL, SPEC, Running, last_json, run

KEYS = ("cd" * 32, "ef" * 32)
RUNS = [NearbyRun(f"run {key[0]}", Link(key, key, (EntryPoint(key, ("10.0.0.1:1",)),))) for key in KEYS]


@pytest.mark.usefixtures("loopback_lan")
def test_a_host_announces_its_run_and_a_newcomer_needs_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(host: str | None) -> list[NearbyRun]:
        while not (runs := find_runs(host)):
            pass  # what is announced may be heard late on a busy machine
        return runs

    monkeypatch.setattr(nearby, "find_runs", look)
    (tmp_path / "run.toml").write_text(SPEC)
    with Running("host", str(tmp_path / "run.toml"), *ALONE, "--announce-lan") as host:
        organiser = host.wait_for("announced")["organiser"]
        (found,) = last_json(run("join", *LOCAL, "--json").stdout)["runs"]
        assert found == {
            "name": "tiny",
            "organiser": organiser,
            "run_id": host.told("link")["run_id"],
            "link": host.told("link")["link"],
        }


def choose(monkeypatch: pytest.MonkeyPatch, *answers: str) -> str:
    """What a person at a terminal chooses, who is asked until an answer is a number of the list."""
    given, said = list(answers), list[str]()

    def prompt(*_: Any, **__: Any) -> int:
        return int(given.pop(0))

    monkeypatch.setattr(nearby.typer, "prompt", prompt)
    output = SimpleNamespace(say=said.append, can_ask=True)
    return choose_run("127.0.0.1", cast(Output, output))


def test_a_person_chooses_among_runs_and_compares_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearby, "find_runs", lambda host: RUNS)
    assert choose(monkeypatch, "0", "3", "2") == str(RUNS[1].link)


def test_without_a_terminal_no_run_is_joined_that_nobody_chose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nearby, "find_runs", lambda host: RUNS[:1])
    with pytest.raises(typer.Exit):
        choose_run(None, Output(json_output=False))
    said = capsys.readouterr().out
    assert f"run c   organiser's key {KEYS[0][:16]}" in said
    assert f"minga join {RUNS[0].link}" in said


def test_where_no_run_is_announced_the_command_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearby, "find_runs", lambda host: [])
    with pytest.raises(ConfigurationError, match="name the LINK of a run, or ask its organiser for --announce-lan"):
        choose_run(None, Output(json_output=False))


def test_a_run_for_members_is_not_announced(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(SPEC + '[security]\nadmission = "members"\n')
    done = run("host", str(tmp_path / "run.toml"), *ALONE, "--announce-lan")
    assert done.returncode == 2
    assert "hand out invitations instead" in done.stderr
