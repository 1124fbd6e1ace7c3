"""`minga dashboard` where something is missing or wrong."""

from __future__ import annotations

import sys

import pytest

from minga.identity.links.links import EntryPoint, Link
from tests.worlds.cli_run import run

LINK = str(Link("ab" * 32, "cd" * 32, (EntryPoint("cd" * 32, ("127.0.0.1:9",), None),)))


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("minga.dashboard.", "minga.cli.taking_part.open"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette.types", None)  # type: ignore[arg-type]
    done = run("dashboard", LINK)
    assert done.returncode == 2
    assert "needs the package starlette: python -m pip install '.[dashboard]'" in done.stderr


@pytest.mark.parametrize("option", [("--listen", "8471"), ("--listen", "a:b"), ("--url", "example.org")])
def test_an_address_that_is_none_is_refused_before_the_run_is_looked_for(option: tuple[str, str]) -> None:
    done = run("dashboard", LINK, *option)
    assert done.returncode == 2
    assert option[1] in done.stderr
