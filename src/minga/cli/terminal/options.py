"""Options and arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LinkArgument = Annotated[
    str, typer.Argument(metavar="LINK", help="The word that begins with minga1.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line instead of text; the last is a summary.")]
Directory = Annotated[
    Path | None, typer.Option(help="Where runs keep files and checkpoints (default: the user's data folder).")
]
Bind = Annotated[str | None, typer.Option("--host", help="IP address to bind (default: all interfaces).")]
