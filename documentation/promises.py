"""`tests/promises.md`: each promise of `docs/guarantees.md` with the tests that guard it.

A test names its promise by `@pytest.mark.promise("no-silent-fork")`, a file of tests by its `pytestmark`. The name is
that of the promise's section, or is made of its words in the same way where it has none.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
MARK: Final = "pytest.mark.promise"


def promises() -> dict[str, str]:
    """What the page promises, in its words, by name: the rows of its first table, and its other sections."""
    page = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+?) \|", page.partition("\n## ")[0], re.MULTILINE)[2:]
    found: dict[str, str] = {}
    for row in rows:
        linked = re.search(r"\]\(#([a-z0-9-]+)\)", row)
        found[linked[1] if linked else _name(row)] = re.sub(r"\[(.+?)\]\(.+?\)", r"\1", row)
    for title in re.findall(r"^##+ (.+)$", page, re.MULTILINE):
        found.setdefault(_name(title), title)
    return found


def guards() -> dict[str, list[str]]:
    """The tests that name each promise, as pytest calls them."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text("utf-8")
        if MARK not in text:
            continue
        place = path.relative_to(ROOT).as_posix()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                marks, name = [ast.unparse(each) for each in node.decorator_list], f"{place}::{node.name}"
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                marks, name = [ast.unparse(node.value)], place
            else:
                continue
            for promise in re.findall(rf"{re.escape(MARK)}\('(.+?)'\)", " ".join(marks)):
                found.setdefault(promise, []).append(name)
    return found


def promises_page() -> str:
    """The page, in Markdown."""
    made, guarding = ["# Promises and the tests that guard them", ""], guards()
    made += ["From the marks of the tests, by `python -m documentation`; each promise is in `docs/guarantees.md`.", ""]
    for name, text in promises().items():
        made += [f"## {text}", "", *(f"* `{test}`" for test in guarding.get(name, [])), ""]
    return "\n".join(made)


def _name(title: str) -> str:
    """The address of a section."""
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
