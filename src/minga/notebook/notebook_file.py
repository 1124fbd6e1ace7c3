"""The two notebooks, of `template.md`, as Jupyter's JSON (nbformat 4.5): one for a volunteer, one for an organiser.

In the template a comment says to which notebooks the lines below it belong. Its code blocks are cells of code, folded
where nobody needs to read them; all text between two of them is one cell.
"""

from __future__ import annotations

import base64
import json
import lzma
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from string import Template
from typing import Final

from minga.core.urls import CPU_WHEELS
from minga.core.wheel import Wheel

ANY_LINK: Final = "minga1…"
CHECKOUT: Final = ".."
"""The source of the generic notebooks, which lie in a folder of a checkout."""

LINE_CHARACTERS: Final = 120
"""Of the lines in which a notebook holds a wheel."""


def joining_notebook(link: str, source: Wheel | str) -> str:
    """Take part in the run of `link`; `source` is a wheel that the notebook holds, or where pip finds minga."""
    return _made("join", source, link=json.dumps(link, ensure_ascii=False))


def hosting_notebook(source: Wheel | str) -> str:
    """Describe a run, plan it, host it and watch it; `source` as above."""
    return _made("host", source)


def _made(kind: str, source: Wheel | str, **fields: str) -> str:
    if isinstance(source, Wheel):
        kinds = {kind, "held"}
        fields |= {"name": source.name, "sha256": source.sha256, "wheel": _in_lines(source)}
    else:
        kinds = {kind, "named"}
        fields["source"] = json.dumps(source, ensure_ascii=False)  # as Python reads it
    content = {
        "cells": [_cell(number, *cell, fields) for number, cell in enumerate(_cells(kinds))],
        "metadata": {
            "accelerator": "GPU",
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _cells(kinds: set[str]) -> Iterator[tuple[str, str]]:
    """What stands at the head of each code block (nothing for text), and the text."""
    template = resources.files("minga.notebook").joinpath("template.md").read_text("utf-8")
    parts = re.split(r"^<!-- ([a-z ]+) -->\n", template, flags=re.MULTILINE)[1:]
    text = "".join(body for names, body in zip(parts[::2], parts[1::2], strict=True) if kinds & set(names.split()))
    pieces = re.split(r"^```(python.*)\n((?:.*\n)*?)```$", text, flags=re.MULTILINE)
    for place, piece in enumerate(pieces):
        if place % 3 != 1 and piece.strip():
            yield pieces[place - 1] if place % 3 == 2 else "", piece.strip("\n")


def _cell(number: int, head: str, text: str, fields: dict[str, str]) -> dict[str, object]:
    hidden = {"cellView": "form", "jupyter": {"source_hidden": True}} if head.endswith("folded") else {}
    kind = "code" if head else "markdown"
    made: dict[str, object] = {"cell_type": kind, "id": f"minga-{number}", "metadata": hidden}
    made["source"] = Template(text).substitute(fields, cpu_wheels=CPU_WHEELS).splitlines(keepends=True)
    return {**made, "execution_count": None, "outputs": []} if head else made


@cache
def _in_lines(wheel: Wheel) -> str:
    text = base64.b64encode(lzma.compress(wheel.data, preset=1)).decode()
    return "\n".join(text[start : start + LINE_CHARACTERS] for start in range(0, len(text), LINE_CHARACTERS))
