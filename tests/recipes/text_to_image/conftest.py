"""The drawings of OpenMoji are made once for all tests of this folder."""

from __future__ import annotations

from functools import cache

import pytest

from minga.recipes.text_to_image.data import openmoji, pictures

_made = cache(openmoji.drawings)


@pytest.fixture(autouse=True)
def _drawings_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "drawings", lambda: list(_made()))
