"""`minga trace`: one step as a sequence of calls and messages that really are those of the code."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import minga.cli
from tests.worlds.cli_run import last_json

PACKAGE = Path(minga.cli.__file__).parent.parent
ACTORS = {
    ("training/bridge/gradient_port.py", "GradientPort.add"),
    ("averaging/matchmaking/former.py", "GroupFormation.form"),
    ("averaging/matchmaking/leader.py", "GroupLeader.run"),
    ("averaging/planning/plan_maker.py", "PlanMaker.plan"),
    ("averaging/allreduce/round.py", "Round.run"),
    ("averaging/allreduce/sender.py", "exchange"),
    ("averaging/allreduce/reducer.py", "Reducer.attend"),
    ("averaging/allreduce/repair.py", "Repairer.run"),
    ("training/replica/replica.py", "Replica.apply"),
}


@pytest.fixture(autouse=True)
def _keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands freeze the garbage collector and redirect signals; neither is for the test process."""
    monkeypatch.setattr("minga.cli.gc.freeze", lambda: None)
    monkeypatch.setattr("minga.cli.terminal.context.gc.disable", lambda: None)
    monkeypatch.setattr("minga.cli.terminal.context.gc.freeze", lambda: None)
    monkeypatch.setattr("minga.cli.terminal.interrupt.Interruption.__init__", lambda self, **_: None)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        minga.cli.main(["trace", *arguments])
    assert isinstance(end.value.code, int)
    return end.value.code


def traced(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The lines of a trace without the time of the clock on the wall, and the summary."""
    assert call("--json", *arguments) == 0
    out = capfd.readouterr().out
    lines = [json.loads(line) for line in out.splitlines()]
    return [{k: v for k, v in line.items() if k != "t"} for line in lines if "event" in line], last_json(out)


@cache
def functions(file: str) -> set[str]:
    """The qualified names of all functions of a file."""
    found = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + child.name)
                visit(child, f"{prefix}{child.name}.<locals>.")
            else:
                visit(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)

    visit(ast.parse((PACKAGE / file).read_text("utf-8")), "")
    return found


def test_a_step_is_shown_from_the_gradient_to_the_replica(capfd: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    said = capfd.readouterr().out
    assert len(said.splitlines()) <= 90
    assert said.startswith("Step 3 of 4 simulated trainers, led by peer-")
    assert call() == 0
    assert capfd.readouterr().out == said

    lines, summary = traced(capfd)
    assert {(line["file"], line["function"]) for line in lines} >= ACTORS
    assert {line["peer"] for line in lines if line["role"] == "leader"} == {summary["leader"]}
    assert len({line["peer"] for line in lines}) == 2
    assert [line["virtual_ms"] for line in lines] == sorted(line["virtual_ms"] for line in lines)
    (plan,) = [line for line in lines if "SignedPlan" in line["messages"]]
    assert (plan["event"], plan["role"], len(plan["to"])) == ("message", "leader", 3)
    (joins,) = [line for line in lines if "rpc group.join" in line["messages"]]
    assert joins["to"] == [summary["leader"]]


def test_all_of_a_step_names_what_is_in_the_code(capfd: pytest.CaptureFixture[str]) -> None:
    lines, summary = traced(capfd, "--all", "--seed", "1")
    assert len({line["peer"] for line in lines}) == summary["peers"] == 4
    assert len(lines) == summary["lines"] > 500
    for line in lines:
        assert line["function"] in functions(line["file"]), line
    one, _ = traced(capfd, "--all", "--seed", "1", "--peer", "peer-1")
    assert one == [line for line in lines if line["peer"] == "peer-1"]


def test_a_peer_that_is_not_there_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("--peer", "peer-9") == 2
    assert "--peer peer-9: the peers are peer-1, peer-2, peer-3, peer-4" in capfd.readouterr().err
