"""Notebooks as files: the JSON that Jupyter, Colab and Kaggle read (nbformat 4.5)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from minga.notebook.cells import Cell


def to_ipynb(cells: Sequence[Cell]) -> str:
    """The text of a file `*.ipynb` with these cells, not yet run."""
    content = {
        "cells": [_cell(number, cell) for number, cell in enumerate(cells)],
        "metadata": {
            "accelerator": "GPU",
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, cell: Cell) -> dict[str, object]:
    kind = "code" if cell.code else "markdown"
    hidden = {"cellView": "form", "jupyter": {"source_hidden": True}} if cell.folded else {}
    made: dict[str, object] = {"cell_type": kind, "id": f"minga-{number}", "metadata": hidden}
    made["source"] = cell.source.splitlines(keepends=True)
    return {**made, "execution_count": None, "outputs": []} if cell.code else made
