"""Which text of others is shown: whatever commands no terminal, also what only a newer Python knows."""

from __future__ import annotations

import unicodedata

from minga.core.printable import is_printable, printable
from minga.core.spec.run_spec import RunSpec

UNKNOWN = "\u0378"
"""Not assigned to any character, as each one was once for older Pythons."""


def test_what_commands_a_terminal_is_not_printable() -> None:
    for text in ("a\x1b[2J", "a\nb", "\u202eab", "\u2028", "\ud800", UNKNOWN + "\x07"):
        assert not is_printable(text)
        assert is_printable(printable(text))
    assert is_printable("Größe 大")
    assert printable("a\x1bb") == "a b"


def test_a_run_may_be_named_by_characters_that_this_python_does_not_know() -> None:
    """Its organiser's may know them; every peer has to accept the same run specs."""
    assert unicodedata.category(UNKNOWN) == "Cn"
    spec = RunSpec.from_mapping({"name": UNKNOWN, "model": {"recipe": "own"}, "recipe": {"own": {"text": UNKNOWN}}})
    assert RunSpec.from_canonical(spec.canonical_bytes()) == spec
