"""`minga dashboard` where something is missing or wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minga.cli.terminal.output import Output
from minga.identity.links.links import EntryPoint, Link
from minga.monitor.history import FILE_NAME
from tests.worlds.cli_run import run

LINK = str(Link("ab" * 32, "cd" * 32, (EntryPoint("cd" * 32, ("127.0.0.1:9",), None),)))


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("minga.dashboard.", "minga.cli.taking_part.open"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette.types", None)  # type: ignore[arg-type]
    done = run("dashboard", LINK)
    assert done.returncode == 2
    assert 'needs the package starlette: python -m pip install ".[dashboard]"' in done.stderr


def test_of_two_dashboards_of_a_run_on_one_machine_one_keeps_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from minga.cli.taking_part import dashboard  # not before the test above takes its modules away

    made: list[dict[str, Any]] = []

    @contextmanager
    def serve_another(*_: object) -> Iterator[None]:
        if len(made) < 2:
            dashboard.run_watch(options, context)
        yield

    @contextmanager
    def looking_into(*_: object, **__: object) -> Iterator[object]:
        yield SimpleNamespace(directory=tmp_path, on_loop=lambda _: None)

    options, context = cast(Any, SimpleNamespace(link=LINK)), cast(Any, SimpleNamespace(is_over=lambda _: True))
    options.looking_into, context.output = looking_into, Output(json_output=False)
    monkeypatch.setattr(dashboard, "checked_settings", lambda *_, **__: None)
    options.listen = options.public = options.url = None
    monkeypatch.setattr(dashboard, "Watcher", lambda _, history: history)
    monkeypatch.setattr(
        dashboard, "Dashboard", lambda _, history, __, **said: made.append({**said, "history": history.path})
    )
    monkeypatch.setattr(dashboard, "served", serve_another)
    dashboard.run_watch(options, context)
    folder = tmp_path / dashboard.FOLDER
    first, second = made
    both_read = {"directory": folder, "gaps_from": tmp_path}
    assert first == {**both_read, "keeps": True, "history": folder / FILE_NAME}
    assert second == {**both_read, "keeps": False, "history": None}
    assert capsys.readouterr().out == (
        "Another dashboard of this machine keeps a record of the run; this one keeps none.\n"
    )
    with dashboard._kept_by_one(folder) as free:
        assert free


@pytest.mark.parametrize("option", [("--listen", "8471"), ("--listen", "a:b"), ("--url", "example.org")])
def test_an_address_that_is_none_is_refused_before_the_run_is_looked_for(option: tuple[str, str]) -> None:
    done = run("dashboard", LINK, *option)
    assert done.returncode == 2
    assert option[1] in done.stderr
