"""What `host` and `join` have in common: options of a peer, and the context in which a command runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from minga.cli._interrupt import Interruption
from minga.cli._leash import Leash
from minga.cli._output import Output
from minga.core._errors import ConfigurationError
from minga.core._events import Event
from minga.core._units import parse_rate
from minga.training._entrance import PeerOptions
from minga.training._peer import Peer


@dataclass(frozen=True)
class Context:
    """Where a command writes, and how it is interrupted."""

    output: Output
    interruption: Interruption


@dataclass(frozen=True)
class WorkOptions:
    """How a command uses the machine. `leash` makes it obey its parent process; see `Leash`."""

    device: str = "auto"
    micro_batch: int | None = None
    threads: int | None = None
    leash: bool = False


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
        max_upload=None if max_upload is None else parse_rate(max_upload, "--max-upload"),
        max_download=None if max_download is None else parse_rate(max_download, "--max-download"),
        host=host,
        port=port,
    )


def apply_threads(threads: int | None) -> None:
    """Let torch use at most `threads` cores."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def take_leash(context: Context, options: WorkOptions) -> Leash | None:
    """Obey the parent process, if that is asked for."""
    return Leash(context.interruption.trigger) if options.leash else None


def wire(context: Context, peer: Peer) -> None:
    """Close the peer on Ctrl-C whatever the main thread does, and pass its events on as JSON."""
    context.interruption.on_interrupt(peer.close)

    def forward(event: Event) -> None:
        context.output.event(event.kind, **event.fields)

    if context.output.json_output:
        peer.subscribe(forward)


def own_digest(peer: Peer) -> tuple[int, str] | None:
    """Step and digest of the state that this peer published last."""
    from minga.network._interface import PeerId
    from minga.network._records import StateInfo

    def read() -> tuple[int, str] | None:
        info = peer.session.board.get(PeerId(peer.peer_id), StateInfo)
        return None if info is None else (info.step, info.digest)

    return peer.on_loop(read)
