"""What the conformance suite of recipes needs comes from elsewhere: files prepared once, and a server of processes, so
that torch is not imported for each check.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from minga.testing import other_process
from tests.worlds import forked


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all checks of one recipe, which prepare its files once."""
    return tmp_path_factory.mktemp("checked")


@pytest.fixture(autouse=True)
def _another_process_of_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_process, "subprocess", SimpleNamespace(run=forked.run_for_suite))
