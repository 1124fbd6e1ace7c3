"""The command behind a cell: an interrupted cell leaves none, and its end is told when all of it was read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minga.notebook import background, host
from minga.notebook.command import Command


def test_a_cell_that_is_interrupted_while_it_waits_for_the_link_leaves_no_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped: list[str] = []

    class FakeCommand:
        is_running = True

        def __init__(self, *_: object) -> None:
            pass

        def listen(self) -> None:
            pass

        def stop(self) -> None:
            stopped.append("minga host")

    def interrupted(*_: object) -> Mapping[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(background, "Command", FakeCommand)
    monkeypatch.setattr(background.Background, "_wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        host("run.toml", hours=1e-5)
    assert stopped[0] == "minga host"


def test_a_command_has_ended_when_all_that_it_said_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, late = tmp_path / "minga", tmp_path / "late"
    os.mkfifo(late)
    script.write_text(f"#!/bin/sh\ncat '{late}' &\n")
    script.chmod(0o700)
    monkeypatch.setattr("minga.notebook.command.sys", SimpleNamespace(executable=str(script)))
    events: list[Mapping[str, Any] | None] = []
    command = Command([], events.append)
    command.listen()
    command.process.wait()
    assert not command.wait(0.0)
    late.write_text('{"event": "last words"}\n')
    assert command.wait(60.0)
    assert events == [{"event": "last words"}, None]
