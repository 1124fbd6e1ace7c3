"""`minga new`: what can be trained here, and a run spec or a notebook to begin with."""

from __future__ import annotations

from typing import Any

import typer

from minga.cli.commands import NewCommand
from minga.cli.terminal.context import Context
from minga.cli.terminal.output import plain_table
from minga.core.errors import ConfigurationError
from minga.recipes.registry import RECIPES, new_toml


def run_new(options: NewCommand, context: Context) -> None:
    """Print a commented run spec, write a notebook, or list the recipes. Raises `ConfigurationError` for a recipe or
    size that is not known.
    """
    if options.notebook is not None:
        from minga.cli.planning.notebook import write_notebook

        write_notebook(options.notebook, options.link, options.install, context)
    elif options.recipe is None:
        _list(context)
    else:
        text = new_toml(options.recipe, options.size)
        if not context.output.json_output:
            typer.echo(text, nl=False)
        context.output.summary(ok=True, recipe=options.recipe, size=options.size, run_spec=text)


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
    context.output.say(table)
    context.output.say("A run spec to begin with: minga new RECIPE --size SIZE > run.toml")
    context.output.summary(ok=True, recipes=found)


def _facts(name: str) -> dict[str, Any]:
    origin = RECIPES.origin(name)
    package = "minga" if origin is None else str(origin)
    try:
        found = RECIPES.get(name)
    except ConfigurationError as error:  # a broken package of another author harms its own recipe only
        return {"recipe": name, "package": package, "sizes": [], "tasks": [], "problem": str(error)}
    known = {"sizes": list(found.sizes), "tasks": list(found.tasks), "headline": found.headline.name}
    return {"recipe": name, "package": package, **known}
