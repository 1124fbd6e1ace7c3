"""`minga notebook`: print a notebook that joins a run, or begins one."""

from __future__ import annotations

import json

from minga.cli.terminal.context import Context
from minga.core.errors import ConfigurationError
from minga.core.wheel import own_wheel
from minga.identity.links.links import Link
from minga.notebook.cells import ANY_LINK, organiser_cells, volunteer_cells
from minga.notebook.notebook_file import to_ipynb


def run_notebook(link: str | None, install: str | None, context: Context, *, organise: bool) -> None:
    """Print it. Without a place to `install` minga from it holds a copy of this one.

    Raises `LinkError` if the link cannot be read, and `ConfigurationError` where no copy can be made.
    """
    word, source = ANY_LINK if link is None else str(Link.parse(link)), install or own_wheel()
    if source is None:
        raise ConfigurationError("this minga was not installed by pip, so no copy of it can be made: name --install")
    if context.output.interactive and install is None:
        raise ConfigurationError(
            "the notebook holds a copy of minga, 2 MB of text: write it to a file with > join.ipynb"
        )
    text = to_ipynb(organiser_cells(source) if organise else volunteer_cells(word, source))
    if context.output.json_output:
        context.output.summary(ok=True, notebook=json.loads(text))
    else:
        context.output.console.out(text, end="", highlight=False)
