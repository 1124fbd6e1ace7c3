"""Options of a peer, for the commands of split learning."""

from __future__ import annotations

from pathlib import Path

from minga.cli.terminal.context import Context, apply_threads
from minga.core.errors import ConfigurationError
from minga.core.rate_cap import RateCap
from minga.training.join import PeerOptions
from minga.training.peer import Peer

__all__ = ["apply_threads", "peer_options", "wire"]


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


def wire(context: Context, peer: Peer) -> None:
    """See `Context`."""
    context.wire(peer)
