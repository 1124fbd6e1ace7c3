"""The other process of the conformance suite of recipes comes from a server: torch is not imported for each check."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from minga.testing import recipe_suite
from tests.worlds import forked


def _elsewhere(
    words: Sequence[str], *, env: Mapping[str, str], timeout: float, **_: Any
) -> subprocess.CompletedProcess[str]:
    assert env["PYTHONHASHSEED"] == forked.OTHER_HASHES
    return forked.run_with_other_hashes(*words[1:], timeout_s=timeout)


@pytest.fixture(autouse=True)
def _another_process_of_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe_suite, "subprocess", SimpleNamespace(run=_elsewhere))
