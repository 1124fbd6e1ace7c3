"""Seeds of tests: the first few are tried by `make test`, all of them by `make soak`."""

from __future__ import annotations

from typing import Any

import pytest


def soaked(*values: Any) -> Any:
    """Parameters that only `make soak` tries."""
    return pytest.param(*values, marks=pytest.mark.soak)


def seeds(few: int, of: int) -> list[Any]:
    """The seeds 0 to `of` - 1, of which `make test` tries the first `few`."""
    return [*range(few), *map(soaked, range(few, of))]
