"""What `minga status` says beside its display."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from minga.cli.taking_part import status as status_module
from minga.cli.taking_part.status import _glance, _how_few, _show_history, last_figures
from minga.cli.terminal.output import Output
from minga.core.errors import UnreachableError
from minga.dashboard.model.documents import peer_row
from minga.identity.links.links import EntryPoint, Link
from minga.keeping.known_runs import FOLDER_DIGITS
from minga.monitor.history import FILE_NAME, Entry, History
from tests.worlds import cli_run
from tests.worlds.made_up_run import MadeUpRun

TOLD: list[Entry] = [
    {"t": 1000.0, "event": "joined", "peer": "aa"},
    {"t": 2000.0, "event": "step", "step": 380, "loss": 4.5, "total_samples": 24320},
    {"t": 2990.0, "event": "evaluation", "step": 380, "headline": "heldout_loss", "heldout_loss": 4.75},
    {"t": 2999.9, "event": "step", "step": 386, "loss": 4.25, "total_samples": 24704},
]


def test_a_run_without_a_trainer_is_told_by_the_last_figures_that_somebody_kept() -> None:
    assert list(last_figures(TOLD)) == [
        "Last loss told: 4.250, of step 386",
        "Held out: heldout_loss 4.75, of step 380",
    ]
    assert list(last_figures([{"t": 1.0, "event": "evaluation", "headline": 7}])) == []


def test_nobody_is_asked_for_figures_that_the_run_tells_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = list[object]()
    monkeypatch.setattr(status_module, "told_since", lambda peer, _: asked.append(peer) or TOLD)  # type: ignore[func-returns-value]
    monkeypatch.setattr(status_module, "LOOK_S", 0.1)
    run = MadeUpRun(2)
    try:
        run.advance(5.0)
        run.watcher.look = run.status
        assert _glance(run.watcher, run.peer, Output(json_output=False), is_plotted=False).loss is not None
        assert asked == []
        run.watcher.look = lambda: replace(run.status(), loss=None)
        _glance(run.watcher, run.peer, Output(json_output=False), is_plotted=False)
        assert asked == [run.peer]
        assert "Last loss told: 4.250, of step 386" in capsys.readouterr().out
    finally:
        run.close()


def test_a_fresh_run_is_no_sick_one_and_its_host_trains_nothing() -> None:
    run = MadeUpRun(2)
    try:
        status = run.status()
        host, trainer = replace(status.peers[0], role="auxiliary"), status.peers[1]
        fresh = replace(status, peers=(host,), averages=False)
        assert "begins with the first peer that joins" in _how_few(replace(fresh, step=0))
        assert "goes on with the next peer that joins" in _how_few(replace(fresh, step=3))
        assert "One peer trains alone" in _how_few(replace(status, peers=(trainer,), averages=False))
        assert _how_few(replace(status, peers=(host, trainer), averages=True)) == ""
        assert [peer["status"] for peer in replace(status, peers=(host, trainer)).to_json()["peers"]] == [
            "helping",
            "training",
        ]
        assert peer_row(host, None, "")["status"] == "helping"
    finally:
        run.close()


def test_a_history_is_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = History(tmp_path / FILE_NAME)
    for entry in TOLD:
        history.put(entry)
    _show_history(tmp_path, None, Output(json_output=False))
    lines = capsys.readouterr().out.splitlines()
    assert "seconds: 33 min 20 s" in lines
    assert "total samples: 24,704" in lines
    assert "evaluation: heldout_loss 4.75, of step 380" in lines


def test_where_a_run_is_gone_it_is_said_what_this_machine_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link("ab" * 32, "cd" * 32, (EntryPoint("cd" * 32, ("127.0.0.1:9",)),))

    def gone(*_: object, **__: object) -> NoReturn:
        raise UnreachableError("nobody answers")

    monkeypatch.setattr("minga.training.join.join", gone)
    arguments = ("status", str(link), "--directory", str(tmp_path))
    assert "checkpoints" not in cli_run.run(*arguments).stdout
    folder = tmp_path / ("ab" * 32)[:FOLDER_DIGITS]
    (folder / "checkpoints").mkdir(parents=True)
    assert f"This machine has checkpoints of the run: {folder}" in cli_run.run(*arguments).stdout
