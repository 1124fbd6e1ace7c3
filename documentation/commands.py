"""The page of the command line: each command with its options, the lines that it prints as JSON, and exit codes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from textwrap import fill
from typing import Any, Final

import typer
from typer.core import TyperGroup

import minga
from minga.cli.app import app
from minga.cli.terminal.exit_codes import MEANINGS, code_of

Row = tuple[str, str, str]

HEAD: Final = """\
# Commands

<!-- Made by `make docs` from `minga.cli.commands`. -->

`minga --help` lists the commands, `minga COMMAND --help` the usual options of one, `--help-all` all of them. A RUN on
this machine is named by its folder, or by the id that `minga runs` shows. Most commands take the first four options
below, and name the others under *Also*.

"""

UNSHOWN: Final = ("help_all", "leash")
UNIVERSAL: Final = ("json_output", "directory", "identity", "bind")
"""Options that are not named anew with each command."""

TYPES: Final = {"int range": "N", "int": "N", "float range": "N", "path": "PATH", "str": "TEXT", "list[str]": "TEXT"}
"""What stands for a value whose option does not name it."""

LINES: Final = """
## Lines for programs

With `--json` each line is one object with `t` (Unix time in seconds) and `event`. Commands print the
[events](events.md) of their peer and the lines below. The last line has `"summary": true`, `ok`, figures, and
`left_out`, how many lines no program read in time.

* `link` (`host`): `link`, `run_id`, `directory`, and how far the link reaches
* `announced` (`host`): `organiser`: the local network was told of the run
* `link_updated` (`host`): `link`, `reach`: the host knows a better address of this machine
* `link_checked` (`host`): `reached`, and `by` which way the host tried it: "peer" or "relay"
* `address_seen` (`host`): `endpoint` at which peers see this machine; `reached` is false
* `resumed` (`host`, `join`): of `host` `run_id`, `step`, `age_s` of the checkpoint; of `join`: it takes part again
* `under_way` (`host`): `peers`: the run that is hosted again was not over
* `chosen_strategy` (`host`): `strategy`, `reason`: what "auto" chose
* `keeps.nothing` (`host`): `role`: this peer keeps nothing of the run
* `complete` (`host`): `step`: the run took its last step
* `costs` (`join`): what the first screen shows, by the names of its figures
* `joined` (`join`): `run`, `run_id`, `peer`
* `ready` (`join`): with which device, threads and micro-batch it takes part
* `alone` (`join`): `link`: nobody of the run answers, and it goes on from the checkpoint that is here
* `host_gone` (`join`): `link` by which others join then, null where there is none
* `paused` (`join`): `why`, and for how many `seconds`, null if nobody knows
* `login.browser` (`join`): `url` and `code` for a browser
* `login.waits` (`join`): `why`, and `seconds` until the next try
* `login` (`join`): `name`, `until` (Unix time)
* `progress` (`host`, `join`): where the run and this machine are, repeatedly
* `status` (`status`): the run as `minga status` shows it, and its `peers`
* `evaluation` (`host`, `join`): `step`, `seconds`, the name of the `headline`, and each figure by its name
* `run.caution` (`host`, `join`, `plan`, `sim`): `code`, `why`: a warning about the settings
* `dashboard` (`dashboard`, `host`): `url`, `urls` (all of them), `join_url` (null in a run for members)
* `split.joined` (`join`): `peer`, `samples` that are here, `variant`
* `authority` (`authority`): `url`, `link`, `roster`; then `authority.issued` (`peer`, `name`, `renewed`) and
  `authority.refused` (`address`, `code`, `why`)
* `member` (`members`): one admitted peer, by the names of the columns
* `case` (`runs verify`): `step`, `peer` (null where the case shows nothing), `reason`, `witness`, `wrong`
* `check` (`doctor`): `name`, `ok`, `detail`, `advice`
* `device.measured` (`plan --measure`): one measurement
* `sample` (`sample`): `prompt`, `text`, and `of_base` if it tunes one
* `demo` (`demo`): `text`, and its subject
* `run` (`sim`): `settings` of one point of a sweep, and its summary
* `step` (`sim`): one step of the swarm
* `drawn` (`sim`): `path` of a picture
"""
"""What commands print with `--json`; a test compares it with the code."""


ERRORS: Final = """
## Exit codes and errors

With `--json` the last line names the code (`exit_code`) and the `error`. In parentheses are the errors of `minga` that
end a command with it.

"""


def commands_page() -> str:
    """The page, as Markdown."""
    root = typer.main.get_command(app)
    found = list(_commands(root, typer.Context(root, info_name="minga")))
    uses = Counter(row for command, context in found for row in dict.fromkeys(_rows(command, context)))
    shared = [row for row, count in uses.items() if count > 1]
    told = dict[str, str]()
    for _, name, meaning in sorted(shared, key=_place):
        told.setdefault(name, meaning)
    parts, group = [HEAD, *(_item(*each) for each in told.items())], ""
    for command, context in found:
        panel = getattr(command, "rich_help_panel", None) or group
        if panel != group:
            group = panel
            parts.append(f"\n## {group}\n")
        parts.append("".join(_section(command, context, shared)))
    return "".join([*parts, LINES, ERRORS, *_codes()])


def _place(row: Row) -> int:
    """Where an option of several commands stands: those of most commands first."""
    return UNIVERSAL.index(row[0]) if row[0] in UNIVERSAL else len(UNIVERSAL)


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


def _rows(command: Any, context: Any) -> Iterator[Row]:
    """The arguments and options of a command: the parameter, how it is spelled, what it means."""
    for each in command.params:
        if each.name in UNSHOWN:
            continue
        each.hidden = False
        name, text = each.get_help_record(context)
        name = re.sub(r"<(.*?)>", lambda found: TYPES.get(found[1], found[1]), name)
        words, _, marks = text.partition("  [")  # the default and the bounds
        default = re.search(r"default: ([^;\]]+)", marks)
        meaning = f"{words} (default: {default[1]})" if default else words
        yield each.name, name.partition(" ")[0] if each.param_type_name == "argument" else name, meaning


def _section(command: Any, context: Any, shared: list[Row]) -> Iterator[str]:
    """A command: what it does, an example, and its arguments and options."""
    told = "\n\n".join(fill(each, 120) for each in command.help.split("\n\n"))
    yield f"\n### `{context.command_path}`\n\n{told}\n"
    example = (command.epilog or "").partition("Example: ")[2]
    if example:
        yield f"\n    {example}\n"
    rows = list(_rows(command, context))
    if own := [row for row in rows if row not in shared]:
        yield "\n"
        yield from (_item(name, meaning) for _, name, meaning in own)
    named = (row for row in rows if row in shared and row[0] not in UNIVERSAL)
    if also := [spelled for _, name, _ in named if (spelled := name.partition(" ")[0]).startswith("-")]:
        yield "\n" + fill("Also: " + ", ".join(f"`{name}`" for name in also) + ".", 120) + "\n"


def _codes() -> Iterator[str]:
    errors = [getattr(minga, name) for name in minga.__all__ if name.endswith("Error")]
    for code, meaning in MEANINGS.items():
        names = ", ".join(f"`{error.__name__}`" for error in errors if code_of(error("")) == code)
        yield _item(str(code), f"{meaning} ({names})" if names else meaning)


def _item(name: str, meaning: str) -> str:
    return fill(f"`{name}`: {meaning}", 120, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False) + "\n"
