"""Output where the encoding lacks some of minga's characters: a pipe on Windows, a terminal in Latin-1 or ASCII.

Such a character is written as the nearest one that every encoding has, so that no command ends because of an arrow.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable
from typing import Any

_NAME = "minga.plain"
"""That of our error handler, as in `open(errors=…)`."""

_NEAREST = {
    "…": "...",
    "·": "-",
    "\N{EN DASH}": "-",
    "—": "-",
    "\N{MINUS SIGN}": "-",
    "→": "->",
    "\N{MULTIPLICATION SIGN}": "x",
    "±": "+-",
    "≥": ">=",
    "≤": "<=",
    "µ": "u",
    "█": "#",
    "▓": "=",
    "░": ".",
    "▪": "+",
    "“": '"',
    "”": '"',
    "\N{LEFT SINGLE QUOTATION MARK}": "'",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
}


def use_plain_characters(streams: Iterable[Any]) -> None:
    """Let each of these text streams write what its encoding lacks by the nearest characters; where there are none, as
    an escape, so that a path still names one file only.
    """
    codecs.register_error(_NAME, _replaced)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors=_NAME)


def _replaced(error: UnicodeError) -> tuple[str | bytes, int]:
    """What is written in place of the first character that is lacking, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    start = error.start
    if nearest := _NEAREST.get(error.object[start]):
        return nearest, start + 1
    one = UnicodeEncodeError(error.encoding, error.object, start, start + 1, error.reason)
    return codecs.backslashreplace_errors(one)
