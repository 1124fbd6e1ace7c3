"""What the suites ask another process: whatever a module prints, wherever a class is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from minga.testing import other_process
from minga.testing.other_process import can_be_imported, said_elsewhere
from tests.worlds import forked


@pytest.fixture(autouse=True)
def _another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_process, "subprocess", SimpleNamespace(run=forked.run_for_suite))


class Outer:
    class Inner:
        @classmethod
        def made(cls) -> Outer.Inner:
            return cls()


def test_a_class_in_a_class_is_found() -> None:
    maker = Outer.Inner.made
    assert can_be_imported(maker)
    code = "say(type(find(*words)()).__qualname__)\n"
    said = said_elsewhere(code, maker.__module__, maker.__qualname__)
    assert said == ["Outer.Inner"]


def test_a_module_of_the_working_directory_may_print_as_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chatty_module.py").write_text("print('kernels are', end=' compiled')\nVALUE = 'one word'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [each for each in other_process.sys.path if each not in ("", ".")])
    said = said_elsewhere("say(find(*words))\nprint('bye')\n", "chatty_module", "VALUE")
    assert said == ["one word"]
