"""The command `minga`: the parser of all commands, made from what `commands` says of them, and its help."""

from __future__ import annotations

import importlib
import inspect
import os
import platform
from dataclasses import MISSING, Field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperGroup

import minga.cli.commands  # noqa: F401  # which declares them
from minga.cli.terminal.context import make_context
from minga.cli.terminal.declaring import COMMANDS, Declaration, option_name

MOVED: Final = {
    "backup": "minga runs backup",
    "bench-device": "minga plan --measure",
    "evidence": "minga runs verify",
    "notebook": "minga new --notebook FILE.IPYNB",
    "pause": "minga amend LINK pause",
    "receipts": "minga runs receipts",
    "recipes": "minga new",
    "replay": "minga sim --replay LOG",
    "restore": "minga runs restore",
    "resume": "minga amend LINK resume",
    "split": "minga host RUN.TOML, or minga join LINK",
    "stop": "minga amend LINK stop",
    "version": "minga --version",
}
"""What took the place of a command that is gone."""

PACKAGES: Final = ("torch", "iroh", "transformers", "numpy")
"""Whose versions decide whether two peers compute alike, and connect."""

SETTINGS: Final = {"help_option_names": ["-h", "--help"]}


class _Commands(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """For a command that is gone: say what to type instead, before names are sought that look like it."""
        if args[0] in MOVED:
            ctx.fail(f"there is no `minga {args[0]}`; type: {MOVED[args[0]]}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="minga",
    cls=_Commands,
    help="Train one neural network together with strangers, over the internet.",
    epilog="Exit codes: 0 done · 2 a wrong option · 3 network · 130 Ctrl-C. docs/commands.md has all, and all options.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
)


def _show_versions(wanted: bool) -> None:
    if wanted:
        from minga.network.rpc.handshake import WIRE_VERSIONS

        found = {name: metadata.version(name) for name in PACKAGES}
        found |= {"Python": platform.python_version(), platform.system(): platform.machine()}
        used = ", ".join(f"{name} {version}" for name, version in found.items())
        typer.echo(f"minga {metadata.version('minga')} (wire format {WIRE_VERSIONS[0]} to {WIRE_VERSIONS[1]}; {used})")
        raise typer.Exit


@app.callback()
def _root(
    *,
    _: Annotated[
        bool,
        typer.Option("--version", help="Show the versions of minga and of what it uses.", callback=_show_versions),
    ] = False,
) -> None:
    """Nothing comes before a command."""


def _add_all() -> None:
    """Add all commands to `app`, those of several words below the first one."""
    parents: dict[str, typer.Typer] = {}
    for name, each in COMMANDS.items():
        parent, is_below, _ = name.partition(" ")
        if is_below and parent not in parents:
            parents[parent] = typer.Typer(name=parent, context_settings=SETTINGS)
            app.add_typer(parents[parent], rich_help_panel=each.group)
    for name, each in COMMANDS.items():
        _add(each, parents.get(name.partition(" ")[0], app), is_parent=name in parents)


def _add(command: Declaration, place: typer.Typer, *, is_parent: bool) -> None:
    """Add the parser of one command to `place`; with `is_parent` it runs where none of the commands below it is named.

    Its help has the usual options, and below them the names of those that `--help-all` explains.
    """
    given = command.fields()
    names = [option_name(each) for each in given if _is_rare(each)]
    epilog = f"--help-all explains {', '.join(names)}, too.\n\nExample: {command.example}"
    hints = get_type_hints(command.options)
    parameters = [_parameter(each, hints[each.name]) for each in given]

    def show_all(context: typer.Context, wanted: bool) -> None:
        if wanted:
            those: list[Any] = context.command.params
            for shown in those:
                shown.hidden = shown.name in hidden
            context.command.epilog = f"Example: {command.example}"
            typer.echo(context.get_help())
            raise typer.Exit

    hidden = {each.name for each in given if each.metadata["settings"].get("hidden")}
    everything = typer.Option(False, "--help-all", help="Explain all options.", is_eager=True, callback=show_all)
    parameters.append(_keyword("help_all", everything, bool))
    if is_parent:
        parameters.append(_keyword("context", inspect.Parameter.empty, typer.Context))

    def call(**values: Any) -> None:
        if is_parent and values["context"].invoked_subcommand is not None:
            return
        filled = {each.name: values[each.name] for each in given}
        options = command.options(**{name: _as_meant(value) for name, value in filled.items()})
        way = options.way(command.run)
        context = make_context(
            json_output=options.json_output,
            parent_watch=getattr(options, "leash", False),
            slow_imports=command.slow_imports and way == command.run,
        )
        module, _, name = way.partition(":")
        raise typer.Exit(getattr(importlib.import_module(module), name)(options, context) or 0)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer goes by it
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    paragraphs = (inspect.getdoc(command.options) or "").split("\n\n")
    told: dict[str, Any] = {"help": "\n\n".join(" ".join(each.split()) for each in paragraphs), "epilog": epilog}
    if is_parent:
        place.callback(invoke_without_command=True, **told)(call)
    else:
        place.command(command.name.rpartition(" ")[2], rich_help_panel=command.group, **told)(call)


def _as_meant(value: Any) -> Any:
    """A value as commands take it: with the home folder for `~`, which a shell leaves in `--directory=~/runs`."""
    match value:
        case Path():
            return Path(os.path.expanduser(value))  # which leaves the name of a user that is none as it is
        case list():
            return tuple(map(_as_meant, value))
    return value


def _is_rare(each: Field[Any]) -> bool:
    return bool(each.metadata["rare"])


def _parameter(each: Field[Any], hint: Any) -> inspect.Parameter:
    """What typer makes an argument or an option of."""
    default = ... if each.default is MISSING else each.default
    if get_origin(hint) is tuple:  # it may be repeated
        hint = list[get_args(hint)[0]]  # type: ignore[misc]
        default = default if default is ... else list(default)
    settings = {name: value for name, value in each.metadata["settings"].items() if value is not None}
    settings["hidden"] = settings.get("hidden", False) or _is_rare(each)
    return _keyword(each.name, each.metadata["make"](default, *each.metadata["names"], **settings), hint)


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_add_all()
