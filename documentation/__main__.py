"""Writes the pages of the reference that are made from the code: `python -m documentation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from documentation.changelog import changelog_page
from documentation.commands import commands_page
from documentation.exit_codes import exit_codes_page
from documentation.python_api import python_page
from documentation.run_spec import run_spec_page
from minga.core.events.page import event_page

DOCS: Final = Path(__file__).parent.parent / "docs"
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "events.md": event_page,
    "reference/changelog.md": changelog_page,
    "reference/commands.md": commands_page,
    "reference/exit-codes.md": exit_codes_page,
    "reference/python.md": python_page,
    "reference/run-spec.md": run_spec_page,
}
"""The pages that are made, by their place in `docs/`."""


def write_pages() -> None:
    """Write every page of `PAGES`."""
    for place, page in PAGES.items():
        (DOCS / place).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write_pages()
