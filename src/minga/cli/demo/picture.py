"""The demo as a picture of a terminal, for pages and talks."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from minga.core.errors import StorageError
from minga.core.files import write_atomically

WIDTH = 110


def draw_terminal(command: str, lines: Iterable[str], path: Path) -> None:
    """Write an SVG of a terminal in which `command` printed `lines`. Raises `StorageError` if the disk refuses."""
    console = Console(record=True, file=io.StringIO(), width=WIDTH, highlight=False)
    console.print(Text(f"$ {command}", style="bold"))
    for line in lines:
        console.print(Text(line), soft_wrap=False)
    # Without the fonts that rich would have every reader's browser fetch from a server.
    svg = re.sub(
        r"@font-face \{.*?\}\s*", "", console.export_svg(title="minga", unique_id="minga-demo"), flags=re.DOTALL
    )
    try:
        write_atomically(path, svg.encode())
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
