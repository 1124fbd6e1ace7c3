"""The changelog as a page of the site: `CHANGELOG.md`, whose links go from another folder there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CHANGELOG: Final = Path(__file__).parent.parent / "CHANGELOG.md"


def changelog_page() -> str:
    """The page, as Markdown."""
    return CHANGELOG.read_text("utf-8").replace("](docs/", "](../")
