"""`minga new`: what can be trained here, and a run spec or a notebook to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from minga.cli.commands import NewCommand
from minga.cli.terminal.context import Context
from minga.cli.terminal.output import View, plain_table
from minga.core.errors import ConfigurationError, StorageError
from minga.core.files import write_atomically
from minga.core.wheel import own_wheel
from minga.identity.links.links import Link
from minga.notebook.notebook_file import hosting_notebook, joining_notebook
from minga.recipes.registry import RECIPES, new_toml


def run_new(options: NewCommand, context: Context) -> None:
    """Print a commented run spec, write a notebook, or list the recipes. Raises `ConfigurationError` for a recipe or
    size that is not known.
    """
    if options.notebook is not None:
        _write_notebook(options.notebook, options.link, options.install, context)
    elif options.recipe is None:
        _list(context)
    else:
        text = new_toml(options.recipe, options.size)
        if not context.output.json_output:
            typer.echo(text, nl=False)
        context.output.summary(ok=True, recipe=options.recipe, size=options.size, run_spec=text)


def _write_notebook(path: Path, link: str | None, install: str | None, context: Context) -> None:
    """Write it. Without a place to `install` minga from it holds a copy of this one.

    Raises `LinkError` if the link cannot be read, `ConfigurationError` where no copy can be made, and `StorageError`.
    """
    parsed, source = None if link is None else Link.parse(link), install or own_wheel()
    if source is None:
        raise ConfigurationError("this minga was not installed by pip, so no copy of it can be made: name --install")
    text = hosting_notebook(source) if parsed is None else joining_notebook(str(parsed), source)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
    context.output.say(f"{path}: open it in Colab, Kaggle or Jupyter, and run its cells from top to bottom.")
    context.output.summary(ok=True, notebook=str(path))


def _list(context: Context) -> None:
    """List the recipes that runs on this machine can name, those of other packages included."""
    found = [_facts(name) for name in RECIPES.names()]
    columns = ["from", "sizes", "figure", "tasks"]
    table = plain_table("recipe", *columns, left=columns, wraps="sizes")
    for each in found:
        table.add_row(
            each["recipe"],
            each["package"],
            ", ".join(each["sizes"]),
            each.get("headline", each.get("problem")),
            ", ".join(each["tasks"]),
        )
    begin = "A run spec to begin with: minga new RECIPE --size SIZE > run.toml"
    context.output.show(View([table, begin], {"recipes": found}))


def _facts(name: str) -> dict[str, Any]:
    origin = RECIPES.origin(name)
    package = "minga" if origin is None else str(origin)
    try:
        found = RECIPES.get(name)
    except ConfigurationError as error:  # a broken package of another author harms its own recipe only
        return {"recipe": name, "package": package, "sizes": [], "tasks": [], "problem": str(error)}
    known = {"sizes": list(found.sizes), "tasks": list(found.tasks), "headline": found.headline.name}
    return {"recipe": name, "package": package, **known}
