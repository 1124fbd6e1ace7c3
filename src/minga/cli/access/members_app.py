"""The commands of organisers that say which peers may take part, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minga.cli.terminal.context import make_context
from minga.cli.terminal.options import Bind, Directory, Json, LinkArgument

if TYPE_CHECKING:
    from minga.cli.access.members import OrganiserOptions

Key = Annotated[
    Path | None, typer.Option("--identity", help="The organiser's key file (default: in the user's data folder).")
]


def add_commands(app: typer.Typer) -> None:
    """Add them to the command `minga`."""
    for command in (admit, ban, members):
        app.command()(command)


def admit(
    link: LinkArgument,
    peer: Annotated[
        str | None, typer.Argument(metavar="[PEER]", help="Admit this peer id only.", show_default=False)
    ] = None,
    uses: Annotated[int, typer.Option(help="How many peers may come by the invitation.")] = 1,
    valid: Annotated[str, typer.Option(help="How long it and what comes of it lasts, such as 12h or 30d.")] = "30d",
    identity: Key = None,
    directory: Directory = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """For organisers: print a link that admits the people who hold it, or with PEER only that peer.

    Given a link that other organisers have signed, add a signature to it.
    """
    ready = make_context(json_output=json_output)
    from minga.cli.access.members import run_admit

    run_admit(link, peer, uses, valid, organiser_options(identity, directory, bind), ready)


def ban(
    link: LinkArgument,
    who: Annotated[
        str | None,
        typer.Argument(
            metavar="[WHO]",
            help="The id of a peer or an invitation, or its first ten digits; or an invitation link. With an "
            "invitation: all peers that came by it.",
            show_default=False,
        ),
    ] = None,
    addresses: Annotated[
        str | None, typer.Option("--range", help="Also an address range for a time, such as 203.0.113.0/24.")
    ] = None,
    valid: Annotated[str, typer.Option("--for", help="(--range) How long, such as 12h or 30d.")] = "7d",
    reason: Annotated[str, typer.Option(help="Why, in a few words that everybody can read.")] = "",
    identity: Key = None,
    directory: Directory = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """For organisers: end a peer's access to a run for good, or that of an address range for a time."""
    ready = make_context(json_output=json_output)
    from minga.cli.access.members import BanOptions, run_ban

    run_ban(link, BanOptions(who, addresses, valid, reason), organiser_options(identity, directory, bind), ready)


def members(
    link: LinkArgument,
    transfer: Annotated[
        list[str] | None,
        typer.Option(help="Instead: hand the organisers' role over to this key; may be repeated."),
    ] = None,
    needed: Annotated[int, typer.Option(min=1, max=7, help="(--transfer) How many of them have to sign.")] = 1,
    order: Annotated[
        Path | None, typer.Option(help="(--transfer) A file that several organisers pass around to sign.")
    ] = None,
    identity: Key = None,
    directory: Directory = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """For organisers: show who is in, by which invitation and until when, and who was banned."""
    ready = make_context(json_output=json_output)
    from minga.cli.access.members import TransferOptions, run_members

    transferred = TransferOptions(tuple(transfer or ()), needed, order)
    run_members(link, transferred, organiser_options(identity, directory, bind), ready)


def organiser_options(identity: Path | None, directory: Path | None, bind: str | None) -> OrganiserOptions:
    """The options that all commands of organisers share."""
    from minga.cli.access.members import OrganiserOptions
    from minga.cli.terminal.peer_options import peer_options

    return OrganiserOptions(
        peer_options("monitor", identity=None, ephemeral=True, directory=directory, host=bind), identity
    )
