"""The reference page of the command line: each command with its arguments and options, as `--help` has them."""

from __future__ import annotations

import re
from typing import Final

import typer
from typer.cli import get_docs_for_click
from typer.core import TyperGroup

from minga.cli.app import app
from minga.cli.terminal.command_groups import GROUPS
from minga.cli.terminal.exit_codes import EXPLANATION

HEAD: Final = f"""\
# Command line

<!-- Made by `make docs` from `minga.cli`. -->

Every command has `--help`, and `--json` where programs may read what it prints. {EXPLANATION} The page on
[exit codes](exit-codes.md) says which error gives which. [Commands](../commands.md) is the short list.
"""


def commands_page() -> str:
    """The page, as Markdown."""
    root = typer.main.get_command(app)
    if not isinstance(root, TyperGroup):
        raise TypeError("the application has no commands")
    context = typer.Context(root, info_name="minga")
    parts = [HEAD]
    for group, examples in GROUPS.items():
        parts.append(f"\n## {group}\n")
        for name in examples:
            text = get_docs_for_click(obj=root.commands[name], ctx=context, indent=2, name=name, call_prefix="minga")
            parts.append("\n" + _without_escapes(text).strip() + "\n")
    return "".join(parts)


def _without_escapes(text: str) -> str:
    """Bounds such as `1<=x<=6` in code, since a bare `<` would begin a tag and `&lt;` is hard to read in the file."""
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&#x27;", "'").replace("&quot;", '"')
    text = text.replace("&amp;", "&").replace("```console", "```sh")
    return re.sub(r"(?<=[\[ ])([^\s\[\]]*x[<>][^\s\]]*)(?=\])", r"`\1`", text)
