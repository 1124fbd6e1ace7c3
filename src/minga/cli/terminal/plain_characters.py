"""Output where the encoding lacks some of minga's characters: a pipe on Windows, a terminal in Latin-1 or ASCII.

Such a character is written as the nearest one that every encoding has, so that no command ends because of an arrow.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable
from functools import partial
from typing import Any

_PREFIX = "minga.plain."
"""Of the names of our error handlers, as in `open(errors=…)`; the rest is that of the handler that was there before."""

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
    """Let each of these text streams write what its encoding lacks by the nearest characters.

    Where there are none it does what it did before, which in the locale C gives the bytes of a file's name back; and
    instead of an error it writes an escape, so that a path still names one file only.
    """
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            former = (stream.errors or "strict").removeprefix(_PREFIX)
            codecs.register_error(_PREFIX + former, partial(_replaced, former))
            stream.reconfigure(errors=_PREFIX + former)


def _replaced(former: str, error: UnicodeError) -> tuple[str | bytes, int]:
    """What is written in place of the first character that is lacking, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    start = error.start
    if nearest := _NEAREST.get(error.object[start]):
        return nearest, start + 1
    one = UnicodeEncodeError(error.encoding, error.object, start, start + 1, error.reason)
    try:
        return codecs.lookup_error(former)(one)
    except UnicodeError:
        return codecs.backslashreplace_errors(one)
