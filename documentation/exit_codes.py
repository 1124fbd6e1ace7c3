"""The reference page of exit codes, and of the errors behind them."""

from __future__ import annotations

import inspect
from typing import Final

import minga
from minga.cli.terminal.exit_codes import MEANINGS, code_of
from minga.core.errors import MingaError

HEAD: Final = """\
# Exit codes and errors

<!-- Made by `make docs` from `minga.cli.terminal.exit_codes` and `minga.core.errors`. -->

A command ends with one of these codes. With `--json` its last line names the code (`exit_code`) and the `error`.

"""
ERRORS: Final = """
## Errors

All errors that minga raises derive from `minga.MingaError`. A command that fails with one of them ends with this code,
or with 7 or 8 where a `RejectedError` is about this machine's clock or key:

| error | code | meaning |
| --- | --- | --- |
"""


def exit_codes_page() -> str:
    """The page, as Markdown."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in MEANINGS.items())
    errors = [getattr(minga, name) for name in minga.__all__ if name.endswith("Error")]
    rows = "".join(f"| `minga.{error.__name__}` | {_code(error)} | {_sentence(error)} |\n" for error in errors)
    return HEAD + "| code | meaning |\n| --- | --- |\n" + codes + ERRORS + rows


def _code(error: type[MingaError]) -> int:
    return code_of(error(""))


def _sentence(error: type[MingaError]) -> str:
    return " ".join((inspect.getdoc(error) or "").split("\n\n", maxsplit=1)[0].split())
