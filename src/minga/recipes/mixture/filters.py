"""Which documents of a source count, and in what spelling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from minga.recipes.mixture.settings import SourceSettings
from minga.recipes.text.bengali import normalize_bengali, script_share

Normalize = Callable[[str], str]

NORMALIZERS: Final[dict[str, Normalize]] = {"bn": normalize_bengali}
"""By language; the text of other languages stays as it is."""


def as_it_is(text: str) -> str:
    """The text."""
    return text


class DocumentFilter:
    """The filter of one source; equal settings and texts give equal results on every machine."""

    def __init__(self, source: SourceSettings, language: str) -> None:
        self._source = source
        self._normalize = NORMALIZERS.get(language, as_it_is)

    def __call__(self, document: str) -> str | None:
        """The document as it is trained on, or None if it is left out."""
        source, text = self._source, self._normalize(document)
        if not source.min_characters <= len(text) <= source.max_characters or not text.strip():
            return None
        if any(each in text for each in source.drop):
            return None
        if source.script and script_share(text, source.script) < source.script_share:
            return None
        return text
