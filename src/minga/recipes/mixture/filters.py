"""Which documents of a source count, and in what spelling."""

from __future__ import annotations

from minga.recipes.text.settings import SourceSettings
from minga.recipes.writing.bengali import script_share
from minga.recipes.writing.by_language import WRITINGS


class DocumentFilter:
    """The filter of one source; equal settings and texts give equal results on every machine."""

    def __init__(self, source: SourceSettings, language: str) -> None:
        self._source = source
        self._normalize = WRITINGS[language].normalize

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
