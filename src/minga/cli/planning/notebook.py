"""`minga notebook`: print a notebook that joins a run, or begins one."""

from __future__ import annotations

import json

from minga.cli.terminal.context import Context
from minga.identity.links.links import Link
from minga.notebook.cells import ANY_LINK, organiser_cells, volunteer_cells
from minga.notebook.notebook_file import to_ipynb


def run_notebook(link: str | None, source: str, context: Context, *, organise: bool) -> None:
    """Print it; raises `LinkError` if the link cannot be read."""
    word = ANY_LINK if link is None else str(Link.parse(link))
    text = to_ipynb(organiser_cells(source) if organise else volunteer_cells(word, source))
    if context.output.json_output:
        context.output.summary(ok=True, notebook=json.loads(text))
    else:
        context.output.console.out(text, end="", highlight=False)
