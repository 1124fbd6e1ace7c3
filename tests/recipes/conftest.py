"""The other process of the conformance suite of recipes comes from a server: torch is not imported for each check."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from minga.testing import recipe_suite
from tests.worlds import forked


@pytest.fixture(autouse=True)
def _another_process_of_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe_suite, "subprocess", SimpleNamespace(run=forked.run_for_suite))
