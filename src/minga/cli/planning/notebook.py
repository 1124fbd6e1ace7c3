"""`minga new --notebook`: a notebook that hosts a run, or takes part in one."""

from __future__ import annotations

from pathlib import Path

from minga.cli.terminal.context import Context
from minga.core.errors import ConfigurationError, StorageError
from minga.core.files import write_atomically
from minga.core.wheel import own_wheel
from minga.identity.links.links import Link
from minga.notebook.cells import organiser_cells, volunteer_cells
from minga.notebook.notebook_file import to_ipynb


def write_notebook(path: Path, link: str | None, install: str | None, context: Context) -> None:
    """Write it. Without a place to `install` minga from it holds a copy of this one.

    Raises `LinkError` if the link cannot be read, `ConfigurationError` where no copy can be made, and `StorageError`.
    """
    parsed, source = None if link is None else Link.parse(link), install or own_wheel()
    if source is None:
        raise ConfigurationError("this minga was not installed by pip, so no copy of it can be made: name --install")
    text = to_ipynb(organiser_cells(source) if parsed is None else volunteer_cells(str(parsed), source))
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
    context.output.say(f"{path}: open it in Colab, Kaggle or Jupyter, and run its cells from top to bottom.")
    context.output.summary(ok=True, notebook=str(path))
