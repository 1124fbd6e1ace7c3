"""A volunteer pauses from another terminal, comes back, and leaves after a step; with real processes."""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import torch

import minga.training.join
from minga.cli.commands import JoinCommand
from minga.cli.taking_part import availability as pausing
from minga.cli.taking_part import join as joining
from minga.cli.taking_part.join import SessionsDone, _Joining
from minga.cli.terminal import exit_codes
from minga.cli.terminal.context import Context
from minga.cli.terminal.interrupt import Interruption
from minga.cli.terminal.output import Output
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.identity.keys.key_file import FileLock
from minga.identity.links.links import EntryPoint, Link
from minga.integrations.loggers import RunLog
from minga.keeping.availability import Availability, AvailabilityRules, Pause, TrafficLimit, set_paused
from minga.keeping.known_runs import FOLDER_DIGITS
from tests.worlds.cli_run import ALONE, LOCAL, SPEC, Running, last_json, run

LINK = Link("ab" * 32, "cd" * 32, (EntryPoint("cd" * 32, ("127.0.0.1:9",)),))
WORK = (*LOCAL, "--device", "cpu", "--threads", "1")


@pytest.mark.timeout(150)
def test_a_paused_peer_leaves_and_comes_back_as_one_that_was_away(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(SPEC)
    own = ("--identity", str(tmp_path / "guest.json"), "--directory", str(tmp_path / "guest"))
    log_to = ("--log-to", f"tensorboard:{tmp_path / 'curves'}")
    with Running(
        "host", str(path), *ALONE, "--role", "trainer", "--directory", str(tmp_path / "host"), *log_to
    ) as host:
        link = host.wait_for("link")["link"]
        assert "takes no part" in run("join", link, "--pause", "--directory", str(tmp_path / "guest")).stderr
        options = ("--max-traffic", "50GB/month", "--yes")
        with Running("join", link, *WORK, *own, *options, "--log-to", "tensorboard") as guest:
            costs = guest.wait_for("costs")
            assert costs["name"] == "tiny"
            guest.wait_for("step.applied")
            paused = last_json(run("join", link, "--pause", "--directory", str(tmp_path / "guest"), "--json").stdout)
            assert (paused["paused"], paused["changed"], paused["peers"]) == (True, True, 1)
            assert "--unpause" in guest.wait_for("paused")["why"]
            away = host.wait_for("step.applied", members=1)["step"]
            run("join", link, "--unpause", "--directory", str(tmp_path / "guest"))
            guest.wait_for("resumed")
            assert guest.wait_for("sync.finished")["step"] >= away
            back = host.wait_for("step.applied", members=2)["step"]
            last = guest.finish(back + 1)
            assert last["step"] > away
        traffic = json.loads(next((tmp_path / "guest").rglob("traffic.json")).read_bytes())
        assert traffic["now"]["used_bytes"] > 0
        assert len(list((tmp_path / "guest").rglob("tensorboard/events.*"))) == 1  # of both sessions
        (folder,) = (tmp_path / "guest").iterdir()
        (folder / "joined-1").touch()  # as a peer leaves it that was killed
        alone = run("join", link, "--pause", "--directory", str(tmp_path / "guest")).stdout
        assert "No `minga join` of this machine takes part in the run now." in alone
        run("join", link, "--unpause", "--directory", str(tmp_path / "guest"))
        assert not list(folder.glob("joined-*"))
    assert list((tmp_path / "curves").glob("events.*"))


def test_who_leaves_after_some_steps_counts_its_own() -> None:
    session, done = cast(Any, object.__new__(_Joining)), SessionsDone()
    session._leaving = session.context = SimpleNamespace(is_over=lambda _: False)
    session._must_pause, session._done = (lambda: False), done
    session.options = JoinCommand(link=str(LINK), leave_after_steps=4)
    assert not session._is_over(100)
    done.steps = 4
    assert session._is_over(7)


def test_traffic_before_the_first_step_counts_though_the_session_is_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_off(_session: _Joining) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(_Joining, "_share_in", broken_off)
    rules = AvailabilityRules(traffic=TrafficLimit.parse("1GB/day"))
    session = cast(Any, object.__new__(_Joining))
    session._availability = Availability(rules, tmp_path, lambda: 1e9)
    node = SimpleNamespace(traffic=lambda: (1000, 500_000))
    session.peer = SimpleNamespace(session=SimpleNamespace(node=node), on_loop=lambda function: function())
    with pytest.raises(KeyboardInterrupt):
        session.run()
    assert json.loads((tmp_path / "traffic.json").read_bytes())["now"]["used_bytes"] == 501_000


def test_who_is_told_to_end_during_a_pause_does_not_join_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Availability, "pause", lambda _: Pause("hours", "outside of the hours of --only", 3600.0))
    monkeypatch.setattr(minga.training.join, "join", None)
    context = cast(Any, SimpleNamespace(output=Output(json_output=False), is_told_to_end=True))
    joining.run_join(JoinCommand(link=str(LINK), yes=True, directory=tmp_path), context)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Stopped during a pause. This machine took part in 0 steps with 0 samples. Thank you!"
    )


def test_a_budget_is_of_one_process_in_a_run(tmp_path: Path) -> None:
    """Of two that count in one file, each would overwrite what the other used."""
    folder = JoinCommand(link=str(LINK), directory=tmp_path).peer_options().run_directory(LINK.run_id)
    folder.mkdir()
    (folder / "joined-1").touch()
    other = FileLock.try_acquire(folder / "joined-1")
    assert other is not None
    context = cast(Any, SimpleNamespace(output=Output(json_output=False), is_told_to_end=True))
    try:
        with pytest.raises(ConfigurationError, match="--max-traffic: another process of this machine"):
            joining.run_join(JoinCommand(link=str(LINK), max_traffic="1GB/day", directory=tmp_path), context)
    finally:
        other.release()


def test_a_pause_is_said_once_for_each_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Availability(AvailabilityRules(traffic=TrafficLimit.parse("1GB/day")), tmp_path, lambda: 1e9)
    found.begin_session()
    found.note_traffic(6e8)
    found.end_session()
    context, looks = cast(Any, SimpleNamespace(output=Output(json_output=False), is_told_to_end=False)), []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            set_paused(tmp_path, paused=True)
        context.is_told_to_end = len(looks) > 6

    monkeypatch.setattr(pausing, "time", SimpleNamespace(sleep=sleep))
    assert not pausing.wait_until_available(found, context)
    by_budget, by_owner = capsys.readouterr().out.splitlines()
    assert by_budget.startswith("This machine pauses: 600 MB of 1 GB used this day, more than is due by now, back in")
    assert by_owner.startswith("This machine pauses: paused by minga join --pause"), "another rule is told"


@pytest.mark.parametrize("yes", [False, True])
def test_the_owner_is_asked_while_it_is_there_not_when_the_pause_ends(
    yes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --only or a spent budget, the question came hours later, on a terminal that nobody looked at."""
    said: list[str] = []
    pauses = [Pause("hours", "outside of the hours of --only", 3600.0)]
    monkeypatch.setattr(Availability, "pause", lambda _: pauses[0] if pauses else None)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))

    def wait(*_: object) -> bool:
        if pauses:
            pauses.clear()
            said.append("waited")
        return True

    @contextmanager
    def join(*_: object, consider: Callable[[object], None], probes: bool) -> Iterator[object]:
        spec = RunSpec.from_mapping({"name": "x"})
        consider(SimpleNamespace(spec=spec, completed=None))
        said.append("joined")
        yield SimpleNamespace(spec=spec, directory=tmp_path)

    monkeypatch.setattr(minga.training.join, "join", join)
    monkeypatch.setattr(joining, "wait_until_available", wait)

    def ask(*_: object, **__: object) -> object:
        said.append("asked")
        return SimpleNamespace(start_bytes=0)

    monkeypatch.setattr(joining, "show_and_ask", ask)
    monkeypatch.setattr(joining, "_Joining", lambda *_: SimpleNamespace(run=lambda: False))
    for name in ("require_recipe", "tell_cautions"):
        monkeypatch.setattr(joining, name, lambda *_: None)
    monkeypatch.setattr(RunLog, "begin", lambda *_: None)
    lines: list[str] = []
    output = SimpleNamespace(can_ask=True, say=lines.append)
    context = cast(Any, SimpleNamespace(output=output, wire=lambda _: None, is_told_to_end=False))
    folder = tmp_path / LINK.run_id[:FOLDER_DIGITS]
    folder.mkdir()
    (folder / "joined-1").touch()
    other = FileLock.try_acquire(folder / "joined-1")
    assert other is not None
    joining.run_join(JoinCommand(link=str(LINK), yes=yes, directory=tmp_path), context)
    other.release()
    assert said == (["waited", "asked", "joined"] if yes else ["asked", "waited", "joined"])
    assert lines[1].startswith("On this machine 1 other process takes part in this run already")


def test_a_pause_ends_a_session_that_waits_for_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    @contextmanager
    def open_run(*_: object) -> Iterator[object]:
        must_pause = cast(Callable[[], bool], _[-1])
        set_paused(tmp_path, paused=True)
        asked.extend((must_pause(), must_pause()))
        yield SimpleNamespace(finished=False)

    monkeypatch.setattr(joining, "open_run", open_run)
    monkeypatch.setattr(joining, "HostWatch", lambda *_, **__: None)
    monkeypatch.setattr(joining, "choose_devices", lambda *_: ["cpu"])
    node = SimpleNamespace(traffic=lambda: (0, 0), connected=lambda: ["x"])
    session = cast(Any, object.__new__(_Joining))
    session.peer = SimpleNamespace(
        spec=SimpleNamespace(name="x"), run_id="r", peer_id="p", role="trainer", on_loop=lambda function: function()
    )
    session.peer.session = SimpleNamespace(node=node)
    session.output = Output(json_output=False)
    session.watcher = SimpleNamespace(listeners=[])
    session.options = SimpleNamespace(work=lambda: SimpleNamespace(device="cpu", devices="1"))
    session._leaving, session._done = SimpleNamespace(ask=lambda: False), SessionsDone()
    session._availability = Availability(AvailabilityRules(), tmp_path, lambda: 1e9)
    session._checked_at, session._is_pausing, session._ends_now = 0.0, False, False
    assert session._share_in()
    assert asked == [True, True]


def test_a_pause_gives_the_memory_of_the_session_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[weakref.ref[torch.nn.Module]] = []
    left: list[int] = []
    thawed: list[str] = []

    @contextmanager
    def open_run(peer: Any, *_: object) -> Iterator[object]:
        left.append(sum(model() is not None for model in models))
        run = MagicMock(model=torch.nn.Linear(2, 2), finished=False, step=3)
        run.me, peer.run = run, run  # a cycle, as a peer and its optimizer are
        models.append(weakref.ref(run.model))
        yield run

    class Session(_Joining):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._is_pausing = not models

    @contextmanager
    def join(*_: object, **__: object) -> Iterator[object]:
        peer = MagicMock(role="trainer", peer_id="ab" * 32, directory=tmp_path)
        peer.spec.name, peer.spec.split.is_on = "x", False
        peer.on_loop = lambda function: (0, 0) if function is peer.session.node.traffic else True
        yield peer

    for name in ("HostWatch", "Ticker", "Watcher", "machine", "GracefulLeave", "collect_again"):
        monkeypatch.setattr(joining, name, lambda *_, **__: MagicMock())  # a mock remembers what it was given
    monkeypatch.setattr(minga.training.join, "join", join)
    monkeypatch.setattr(joining, "open_run", open_run)
    monkeypatch.setattr(joining, "_Joining", Session)
    monkeypatch.setattr(joining, "choose_devices", lambda *_: [torch.device("cpu")])
    monkeypatch.setattr(exit_codes, "farewells", [])
    monkeypatch.setattr(RunLog, "begin", lambda *_: None)
    monkeypatch.setattr("minga.cli.terminal.context.gc.unfreeze", lambda: thawed.append("all"))
    interruption = object.__new__(Interruption)
    interruption._goodbyes = []
    context = Context(Output(json_output=False), interruption)
    joining.run_join(JoinCommand(link=str(LINK), yes=True, directory=tmp_path), context)
    assert left == [0, 0]
    assert thawed == ["all"]
    assert exit_codes.done_so_far[-1]()["step"] == 3
