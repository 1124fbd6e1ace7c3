"""What an organiser, and everybody who joins, should know of the settings of a run: a line, and an event, for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

if TYPE_CHECKING:
    from minga.cli.terminal.output import Output
    from minga.core.spec.run_spec import RunSpec


def tell_cautions(spec: RunSpec, output: Output) -> None:
    """Print the warnings and the lost guarantees of this run; `docs/combinations.md` lists them all.

    Raises `ConfigurationError` for what is not installed here.
    """
    from minga.combinations import cautions

    for each in cautions(spec):
        output.say(escape(f"! {each.reason}."))
        output.event("run.caution", code=each.code, why=each.reason)
