"""Finds words for which this project has a standard term, or a subject that acts, in pages and in what `--help` prints.

python -m tools.words
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from documentation.commands import commands_page

ROOT: Final = Path(__file__).parent.parent
WORDS: Final = (
    "barred",
    "by that of",
    "cheats",
    "donor",
    "for who has it",
    "hostile ones",
    "in the wild",
    "in vain",
    "liar",
    "run with strangers",
    "runs with strangers",
    "somebody",
    "told as an event",
    "two levels",
    "who is banned",
    "whoever",
)
QUOTED: Final = re.compile(r"^```.*?^```|“[^”]*”|`[^`]*`", re.MULTILINE | re.DOTALL)
"""Words of messages and names in code, which keep theirs."""


def main() -> int:
    """Print what was found; 1 if anything was."""
    pages = {page.name: page.read_text("utf-8") for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]}
    found = 0
    for where, text in {**pages, "--help": commands_page()}.items():
        flat = " ".join(QUOTED.sub("", text).lower().split())
        for hit in re.finditer(rf"\b(?:{'|'.join(WORDS)})s?\b", flat):
            print(f"{where}: …{flat[max(0, hit.start() - 40) : hit.end() + 40]}…")
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
