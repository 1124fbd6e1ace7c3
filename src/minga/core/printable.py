"""Which text of others may be shown and logged."""

from __future__ import annotations

import unicodedata


def is_printable(text: str) -> bool:
    """Whether nothing in a text commands a terminal or breaks its line."""
    return text.isprintable() or all(map(_is_printable, text))


def printable(text: str) -> str:
    """The text with blanks in place of what must not be shown."""
    return "".join(letter if _is_printable(letter) else " " for letter in text)


def _is_printable(letter: str) -> bool:
    """A character that this Python does not know yet passes: peers with a newer one have to agree with this one."""
    return letter.isprintable() or unicodedata.category(letter) == "Cn"
