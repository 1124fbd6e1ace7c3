"""Writes the pages of the reference and the notebooks that are made from the code: `python -m documentation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from documentation.changelog import changelog_page
from documentation.combinations import combinations_page
from documentation.commands import commands_page
from documentation.events import event_page
from documentation.promises import promises_page
from documentation.python_api import python_page
from documentation.run_spec import run_spec_page
from minga.notebook.notebook_file import ANY_LINK, CHECKOUT, hosting_notebook, joining_notebook

DOCS: Final = Path(__file__).parent.parent / "docs"
NOTEBOOKS: Final = DOCS.parent / "notebooks"
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "combinations.md": combinations_page,
    "commands.md": commands_page,
    "events.md": event_page,
    "reference/changelog.md": changelog_page,
    "reference/python.md": python_page,
    "reference/run-spec.md": run_spec_page,
    "../tests/promises.md": promises_page,
}
"""The pages that are made, by their place in `docs/`."""


def write_pages() -> None:
    """Write every page of `PAGES`."""
    for place, page in PAGES.items():
        (DOCS / place).write_text(page(), encoding="utf-8")


def write_notebooks() -> None:
    """Write the notebooks for every run: one to take part, one to host."""
    for name, text in (("join", joining_notebook(ANY_LINK, CHECKOUT)), ("host", hosting_notebook(CHECKOUT))):
        (NOTEBOOKS / f"{name}.ipynb").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages()
    write_notebooks()
