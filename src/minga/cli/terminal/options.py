"""Options and arguments that several commands have."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Annotated, Final

import typer

from minga.identity.links.links import Link

RUN_ID: Final = re.compile("[0-9a-f]{4,64}")
"""How the id of a run may begin."""


def checked_link(text: str | None) -> str | None:
    """The link as it came, if it can be read: a bad one is refused before a command imports what it needs.

    Raises `LinkError`.
    """
    if text is not None:
        Link.parse(text)
    return text


def folder_or_link(text: str) -> Path | None:
    """The folder that `text` names, or whose run it does; None if it is a link. Raises `LinkError` if it is neither."""
    with contextlib.suppress(OSError):  # a link is longer than the name of a file may be
        folder = Path(own_run(text)).expanduser()
        if folder.is_dir():
            return folder
    Link.parse(text)
    return None


def own_run(named: str, directory: Path | None = None) -> str:
    """The folder of a run that a person names by how its id begins, as `minga runs` shows it; else `named` as it is.

    Runs lie below `directory` (None: the user's data folder). Raises `ConfigurationError` if no run, or more than one,
    has such an id.
    """
    if not RUN_ID.fullmatch(named) or Path(named).exists():
        return named
    from minga.keeping.known_runs import run_with_id, runs_folder

    return str(run_with_id(named, runs_folder(directory)).directory)


_LINK_HELP = "The word that begins with minga1, or the address with it behind #."
LinkArgument = Annotated[
    str,
    typer.Argument(
        metavar="LINK",
        help=_LINK_HELP,
        show_default=False,
        callback=checked_link,
    ),
]
OptionalLink = Annotated[
    str | None,
    typer.Argument(
        metavar="[LINK]",
        help=_LINK_HELP,
        show_default=False,
        callback=checked_link,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line instead of text; the last is a summary.")]
Directory = Annotated[
    Path | None, typer.Option(help="Where runs keep files and checkpoints (default: the user's data folder).")
]
Bind = Annotated[str | None, typer.Option("--host", help="IP address to bind (default: all interfaces).")]
IdentityFile = Annotated[Path | None, typer.Option("--identity", help="Key file (default: in the user's data folder).")]
Voucher = Annotated[
    Path | None,
    typer.Option("--identity", help="In a run for members: the key file of a member (default: in the data folder)."),
]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="CPU threads to compute with (default: all cores).")]
Ephemeral = Annotated[bool, typer.Option("--ephemeral", help="Use a new key that is forgotten at the end.")]
Upload = Annotated[
    str | None,
    typer.Option("--max-upload", help='Send no faster than this, such as 10Mbit or "10Mbit, 50Mbit 23:00-07:00".'),
]
Download = Annotated[str | None, typer.Option("--max-download", help="Receive no faster than this; as above.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="UDP port; keep it, and the link stays valid. 0: any.")]
Announce = Annotated[
    list[str] | None,
    typer.Option(metavar="IP[:PORT]", help="Address at which others reach this machine behind NAT; may be repeated."),
]
ParentWatchFlag = Annotated[bool, typer.Option("--leash", hidden=True)]
