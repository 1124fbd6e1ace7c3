"""The page of the command line: a short list, each command with its options as its help has them, its JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from textwrap import fill
from typing import Any, Final

import typer
from typer.core import TyperGroup

from minga.cli.app import app
from minga.cli.terminal.exit_codes import EXPLANATION
from minga.cli.terminal.options import NetworkOptions

HEAD: Final = """\
# Commands

<!-- Made by `make docs` from `minga.cli.commands`. -->

`minga --help` lists the commands; `minga COMMAND --help` shows the usual options of one, `--help-all` all of them. A
RUN on this machine is named by its folder, or by the id that `minga runs` shows. Many commands have:

| | |
| --- | --- |
"""

SHARED: Final = {
    f"--{each.name.removesuffix('_output')}": each.metadata["settings"]["help"] for each in fields(NetworkOptions)
}
"""What is told once."""

UNSHOWN: Final = ("help_all", "leash")

LINES: Final = """
## Lines for programs

With `--json` each line is one object with `t` (Unix time in seconds) and `event`. What a peer does are
[events](events.md) of their own. Beside them commands print the lines below; the last line of a command that ends has
`"summary": true` instead, `ok`, its figures, and `left_out`, how many lines nobody read in time.

| event | command | fields |
| --- | --- | --- |
| `link` | `host`, `split serve` | `link`, `run_id`, `directory`; of `host` also how far the link reaches |
| `announced` | `host` | `organiser`: the local network was told of the run |
| `link_updated` | `host` | `link`, `reach`: more is known of this machine's address |
| `link_checked` | `host` | `reached`, and `by` what it was tried: "peer" or "relay" |
| `address_seen` | `host` | `endpoint` at which peers see this machine; `reached` is false |
| `resumed` | `host`, `join` | of `host` `run_id`, `step`, `age_s` of the checkpoint; of `join`: takes part again |
| `under_way` | `host` | `peers`: the run that is hosted again was not over |
| `chosen_strategy` | `host` | `strategy`, `reason`: what "auto" chose |
| `keeps.nothing` | `host` | `role`: nothing of the run is kept by this peer |
| `complete` | `host` | `step`: the run took its last step |
| `costs` | `join` | what the first screen shows, by the names of its figures |
| `joined` | `join` | `run`, `run_id`, `peer` |
| `ready` | `join` | with which device, threads and micro-batch it takes part |
| `organisers_code` | `join` | `wheel`: the minga of this machine is the one that the run's signed record names |
| `alone` | `join` | `link`: nobody of the run answers, and it goes on from the checkpoint that is here |
| `host_gone` | `join` | `link` by which others join then, null where there is none |
| `paused` | `join` | `why`, and for how many `seconds`, null if nobody knows |
| `login.browser` | `join` | `url` and `code` for a browser |
| `login.waits` | `join` | `why`, and `seconds` until the next try |
| `login` | `join` | `name`, `until` (Unix time) |
| `progress` | `host`, `join` | where the run and this machine are, again and again |
| `status` | `status` | the run as `minga status` shows it, and its `peers` |
| `evaluation` | `host`, `join` | `step`, `seconds`, the name of the `headline`, and each figure by its name |
| `run.caution` | `host`, `join`, `plan`, `sim` | `code`, `why`: settings that have a price |
| `dashboard` | `dashboard`, `host` | `url`, `urls` (all of them), `join_url` (null in a run for members) |
| `split.joined` | `split join` | `peer`, `samples` that are here, `variant` |
| `authority` | `authority` | `url`, `link`, `roster` |
| `member` | `members` | one admitted peer, by the names of the columns |
| `case` | `runs verify` | `step`, `peer`, `reason`, `witness`, `wrong` |
| `check` | `doctor` | `name`, `ok`, `detail`, `advice` |
| `device.measured` | `plan --measure` | one measurement |
| `sample` | `sample` | `prompt`, `text` |
| `demo` | `demo` | `text`, and what it is about |
| `run` | `sim` | `settings` of one point of a sweep, and its summary |
| `step` | `sim` | one step of the swarm |
| `drawn` | `sim` | `path` of a picture |
"""
"""What commands print with `--json`; a test compares it with the code."""


def commands_page() -> str:
    """The page, as Markdown."""
    found = list(_commands(typer.main.get_command(app), typer.Context(typer.main.get_command(app), info_name="minga")))
    parts, group = [HEAD, *(f"| `{name}` | {_cell(text)} |\n" for name, text in SHARED.items())], ""
    for command, context in found:
        panel = getattr(command, "rich_help_panel", None) or group
        if panel != group:
            group = panel
            parts.append(f"\n## {group}\n")
        parts.append("".join(_section(command, context)))
    codes = f"The page on [exit codes](reference/exit-codes.md) says which error gives which. {EXPLANATION}"
    return "".join([*parts, LINES, "\n", fill(codes, 120), "\n"])


def _commands(command: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """The commands below this one with their contexts, those of a group first, in the order of the help."""
    below = [command.commands[name] for name in command.list_commands(context)]
    groups = dict.fromkeys(each.rich_help_panel for each in below)
    for group in groups:
        for each in below:
            if each.rich_help_panel == group:
                inner = typer.Context(each, info_name=each.name, parent=context)
                yield each, inner
                if isinstance(each, TyperGroup):
                    for one in each.list_commands(inner):
                        yield each.commands[one], typer.Context(each.commands[one], info_name=one, parent=inner)


def _section(command: Any, context: Any) -> Iterator[str]:
    """A command: what it does, an example, and its arguments and options."""
    told = "\n\n".join(fill(each, 120) for each in command.help.split("\n\n"))
    yield f"\n### `{context.command_path}`\n\n{told}\n"
    example = (command.epilog or "").partition("Example: ")[2]
    if example:
        yield f"\n    {example}\n"
    shown = [each for each in command.params if each.name not in UNSHOWN and each.help not in SHARED.values()]
    if not shown:
        return
    yield "\n| | |\n| --- | --- |\n"
    for each in shown:
        each.hidden = False
        name, text = each.get_help_record(context)
        # A bare `<` would begin a tag.
        bounds = re.sub(r"(?<=[\[ ])([^\s\[\]]*x[<>][^\s\]]*)(?=\])", r"`\1`", _cell(text))
        yield f"| `{_cell(name)}` | {bounds} |\n"


def _cell(text: str) -> str:
    """Text in a table, where a bar would end the cell."""
    return " ".join(text.split()).replace("|", "\\|")
