"""Ways into a run: `join` by a link, `host` with a run spec."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
from blake3 import blake3

from minga.core._errors import StorageError
from minga.core._run_spec import RunSpec
from minga.core._run_spec_sections import FileEntry
from minga.identity._keys import HeldIdentity, Identity
from minga.identity._links import Link
from minga.identity._signed_spec import SignedRunSpec
from minga.network._hello import Role
from minga.network._interface import Address, PeerId
from minga.network._iroh import IrohNetwork
from minga.network._iroh_settings import NetworkSettings
from minga.training._loop_thread import LoopThread
from minga.training._peer import Peer
from minga.training._run_files_fetch import fetch_files, fetch_run_spec
from minga.training._session import Session, SessionSettings

SIGNED_SPEC_FILE = "run-spec.signed"


@dataclass(frozen=True)
class PeerOptions:
    """What the owner of a machine may decide about its peer; everything else comes with the run.

    role: "trainer" (default), "client" (never dialled, never aggregates), "auxiliary" (no gradients) or "monitor".
    identity: a key file; None takes the one in the user's data folder. `ephemeral` makes a key for this time only.
    directory: where files and checkpoints of runs are kept; None takes the user's data folder.
    max_upload, max_download: what to offer the run, in bytes per second; None is no limit.
    host, port: local address to bind; by default all interfaces and any free port.
    """

    role: Role = "trainer"
    identity: Path | None = None
    ephemeral: bool = False
    directory: Path | None = None
    max_upload: float | None = None
    max_download: float | None = None
    host: str | None = None
    port: int = 0

    def open_identity(self) -> HeldIdentity | Identity:
        """This peer's key; a key file is held for this process alone."""
        return Identity.ephemeral() if self.ephemeral else Identity.acquire(self.identity)

    def run_directory(self, run_id: str) -> Path:
        """The folder of one run; created if it is missing."""
        base = self.directory or platformdirs.user_data_path("minga") / "runs"
        path = base / run_id[:16]
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"the folder {path} cannot be made: {error}") from error
        return path

    def session_settings(self, directory: Path) -> SessionSettings:
        """These options as the session takes them."""
        return SessionSettings(self.role, self.max_upload, self.max_download, directory / "downloads")


def join(link: Link | str, options: PeerOptions | None = None) -> Peer:
    """Join the run that a link invites to. Blocks until the run was found and its files are here.

    Raises `LinkError` for a damaged link, `RemoteError` if nobody in it answers or lets this peer in, and
    `ConfigurationError` if this version of minga cannot follow the run spec.
    """
    link = Link.parse(link) if isinstance(link, str) else link
    options = options or PeerOptions()
    entries = [Address(PeerId(e.peer_id), e.direct, e.relay) for e in link.entries]
    relays = tuple(dict.fromkeys(e.relay for e in link.entries if e.relay is not None))
    network = NetworkSettings(
        relay=relays or "none", host=options.host, port=options.port, dialable=options.role != "client"
    )

    async def find(session: Session, directory: Path) -> tuple[SignedRunSpec, RunSpec, dict[str, Path]]:
        found: list[RunSpec] = []
        peers = [PeerId(p) for p in dict.fromkeys([*session.node.connected(), *(e.peer_id for e in entries)])]
        signed = await fetch_run_spec(
            session.node, peers, lambda s, p: found.append(s.verify(link.run_id, link.organiser, peer=p))
        )
        files = await fetch_files(session.node, peers, found[-1].files, directory / "files")
        return signed, found[-1], files

    return _enter(link.run_id, options, network, entries, find)


def host(spec: RunSpec, options: PeerOptions | None = None, *, files: Mapping[str, bytes] | None = None) -> Peer:
    """Start a run, or go on with it on this machine: the peer that is returned has the `link` for all others.

    `files` travel with the run. The link stays valid as long as any peer that it names can be reached; so host with
    the same key and port to keep it for good. Raises `LocalError`s only.
    """
    options = options or PeerOptions()
    shipped = dict(files or {})
    published = spec.published(
        {name: FileEntry(blake3=blake3(b).hexdigest(), size_bytes=len(b)) for name, b in shipped.items()}
    )
    network = NetworkSettings(
        relay=published.network.relay, host=options.host, port=options.port, dialable=options.role != "client"
    )

    async def publish(session: Session, directory: Path) -> tuple[SignedRunSpec, RunSpec, dict[str, Path]]:
        paths: dict[str, Path] = {}
        for name, body in shipped.items():
            path = directory / "files" / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(body)
            except OSError as error:
                raise StorageError(f"{path} cannot be written: {error}") from error
            paths[name] = path
        return SignedRunSpec.sign(published, session.identity), published, paths

    return _enter(published.run_id, options, network, [], publish)


Publish = Callable[[Session, Path], Coroutine[Any, Any, tuple[SignedRunSpec, RunSpec, dict[str, Path]]]]


def _enter(
    run_id: str, options: PeerOptions, network: NetworkSettings, entries: Sequence[Address], publish: Publish
) -> Peer:
    """Start the background thread, appear in the run, and get spec and files by `publish`; undo all if that fails."""
    directory = options.run_directory(run_id)
    held = options.open_identity()
    identity = held.identity if isinstance(held, HeldIdentity) else held
    thread = LoopThread("minga")
    session: Session | None = None

    async def start() -> Session:
        nonlocal session
        session = Session(
            await IrohNetwork.open(identity.seed, network),
            identity,
            run_id,
            options.session_settings(directory),
            entries,
        )
        await session.start()
        return session

    try:
        started = thread.call(start())
        signed, spec, files = thread.call(publish(started, directory))
        return Peer(thread, started, signed, spec, files, directory, held)
    except BaseException:
        if session is not None:
            with contextlib.suppress(Exception):  # the first error is the one to tell
                thread.call(session.close(), 1.0)
        thread.close()
        if isinstance(held, HeldIdentity):
            held.release()
        raise
