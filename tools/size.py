"""Prints how large the project is: modules, lines and lines of code of each folder; texts and blank lines are no code.

python -m tools.size
"""

from __future__ import annotations

import io
import tokenize
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}


@cache  # what a package has is part of the whole, too
def code_lines(text: str) -> int:
    """Lines that have a token other than comments and strings that stand alone."""
    lines, begins = set[int](), True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT and not (begins and token.type == tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
        begins = token.type in SILENT
    return len(lines)


def main() -> None:
    """Print the table."""
    print(f"{'':26}{'modules':>8}{'lines':>9}{'code':>9}")
    for folder in ["src/minga", *sorted(f"src/minga/{p.name}" for p in (ROOT / "src/minga").iterdir()), "tests"]:
        texts = [path.read_text("utf-8") for path in (ROOT / folder).rglob("*.py")]
        lines, code = sum(text.count("\n") for text in texts), sum(map(code_lines, texts))
        if texts:
            print(f"{folder:26}{len(texts):8}{lines:9,}{code:9,}")
    pages = [path.read_text("utf-8") for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]]
    print(f"{len(pages)} pages of {sum(len(page.split()) for page in pages):,} words")


if __name__ == "__main__":
    main()
