"""A command as data: a frozen dataclass whose docstring is its help and whose fields are its arguments and options.

    @command("Organise", "minga.cli.access.members:run_ban", "minga ban LINK PEER")
    class BanCommand(OrganiserOptions):
        who: str | None = argument("WHO", "…", default=None)
        reason: str = option("Why, in a few words.", default="")

`minga.cli.app` makes the parser of these, which calls the named function with the filled-in dataclass and a `Context`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final, TypeVar, dataclass_transform

import typer

from minga.core.errors import ConfigurationError

Options = TypeVar("Options")


@dataclass(frozen=True)
class Declaration:
    """One command. `options` is its dataclass, `run` the function as MODULE:NAME, `example` what a user may type.

    `slow_imports`: it imports what training needs, so garbage waits until `collect_again`.
    """

    name: str
    group: str
    options: type
    run: str
    example: str
    slow_imports: bool

    def fields(self) -> list[Field[Any]]:
        """Arguments in their order, then options: those of the command itself before those that it shares.

        A field that is neither has a value that nobody gives.
        """
        own = inspect.get_annotations(self.options)

        def place(one: Field[Any]) -> int:
            return 0 if one.metadata["make"] is typer.Argument else 1 if one.name in own else 2

        return sorted((each for each in fields(self.options) if each.metadata), key=place)


COMMANDS: Final[dict[str, Declaration]] = {}
"""All commands by name, in the order in which the help lists them; one with a space is below the other."""


def argument(metavar: str, help: str, *, default: Any = MISSING, check: Callable[[Any], Any] | None = None) -> Any:
    """What stands on the command line without a name. `check` looks at the text before anything is imported."""
    settings = {"metavar": metavar, "help": help, "callback": check, "show_default": False}
    return field(default=default, metadata={"make": typer.Argument, "names": (), "rare": False, "settings": settings})


def option(
    help: str,
    *names: str,
    default: Any = MISSING,
    metavar: str | None = None,
    least: float | None = None,
    most: float | None = None,
    rare: bool = False,
    hidden: bool = False,
) -> Any:
    """What has a name on the command line, `--field` if no `names` are given.

    `rare`: only `--help-all` explains it, `--help` names it; `hidden`: no help does.
    """
    settings = {"help": help, "metavar": metavar, "min": least, "max": most, "hidden": hidden}
    return field(default=default, metadata={"make": typer.Option, "names": names, "rare": rare, "settings": settings})


def option_name(one: Field[Any]) -> str:
    """An option as it is typed."""
    return str((one.metadata["names"] or (f"--{one.name.replace('_', '-')}",))[0])


def refuse(options: Any, names: Collection[str], why: str) -> None:
    """Raise `ConfigurationError` if the fields `names` of a command's `options` have other values than their usual
    ones.
    """
    given = [each for each in fields(options) if each.name in names and getattr(options, each.name) != each.default]
    if given:
        raise ConfigurationError(f"{', '.join(map(option_name, given))}: {why}")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(argument, option))
def command(
    group: str, run: str, example: str, *, slow_imports: bool = False
) -> Callable[[type[Options]], type[Options]]:
    """Make a class a command of `minga --help`'s `group`; its name is that of the class."""

    def declare(kind: type[Options]) -> type[Options]:
        words = re.findall("[A-Z][a-z]*", kind.__name__.removesuffix("Command"))
        name = " ".join(words).lower()
        made = dataclass(frozen=True, kw_only=True)(kind)
        COMMANDS[name] = Declaration(name, group, made, run, example, slow_imports)
        return made

    return declare
