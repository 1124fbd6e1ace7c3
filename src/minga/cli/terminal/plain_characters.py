"""Output where the encoding lacks some of minga's characters: a pipe on Windows, a terminal in Latin-1 or ASCII.

Such a character is written as the nearest one that every encoding has, so that no command ends because of an arrow.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable
from typing import Any

HANDLER = "minga.plain"
"""The name of the error handler, as in `open(errors=…)`."""

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
    "“": '"',
    "”": '"',
    "\N{LEFT SINGLE QUOTATION MARK}": "'",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
}


def use_plain_characters(streams: Iterable[Any]) -> None:
    """Let each of these text streams write what its encoding lacks by the nearest characters, "?" if there are none."""
    codecs.register_error(HANDLER, _nearest)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors=HANDLER)


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_NEAREST.get(character, "?") for character in lacking), error.end
