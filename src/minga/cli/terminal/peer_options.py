"""What `host` and `join` have in common: options of a peer, and how it is tied to the command."""

from __future__ import annotations

from pathlib import Path

from minga.cli.terminal.context import Context
from minga.core.errors import ConfigurationError
from minga.core.events.bus import Event
from minga.core.rate_cap import RateCap
from minga.training.join import PeerOptions
from minga.training.peer import Peer


def peer_options(
    role: str,
    *,
    identity: Path | None,
    ephemeral: bool,
    directory: Path | None,
    max_upload: str | None = None,
    max_download: str | None = None,
    host: str | None = None,
    port: int = 0,
    voucher: Path | None = None,
    announce: tuple[str, ...] = (),
) -> PeerOptions:
    """The options of a command as the library takes them. Raises `ConfigurationError`."""
    if role not in ("trainer", "client", "auxiliary", "monitor"):
        raise ConfigurationError(f"--role {role}: choose trainer, client, auxiliary or monitor")
    if identity is not None and ephemeral:
        raise ConfigurationError("--identity and --ephemeral exclude each other: a key is either kept or not")
    return PeerOptions(
        role=role,  # type: ignore[arg-type]  # checked above
        identity=identity,
        ephemeral=ephemeral,
        directory=directory,
        max_upload=None if max_upload is None else RateCap.parse(max_upload, "--max-upload"),
        max_download=None if max_download is None else RateCap.parse(max_download, "--max-download"),
        host=host,
        port=port,
        voucher=voucher,
        announce=announce,
    )


def apply_threads(threads: int | None) -> None:
    """Let torch use at most `threads` cores."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def wire(context: Context, peer: Peer) -> None:
    """Close the peer on Ctrl-C whatever the main thread does, and pass its events on as JSON."""
    context.interruption.on_interrupt(peer.close)

    def forward(event: Event) -> None:
        context.output.event(event.kind, **event.fields)

    if context.output.json_output:
        peer.subscribe(forward)
