"""What a run's folder keeps so that a peer can rejoin the run, and so that the run is hosted from there only once.

Peers need this when no peer in the link answers any more. The folder holds the signed run spec. For each key
it also holds the peer's last UDP port, so that others find the peer where it was, and the last known addresses of
others. A peer that restarts looks for all of them, and a trainer that finds no peer goes on alone from its checkpoint.
So a run outlives the death of all its peers, whichever of them restarts first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Annotated

import msgspec

from minga.core.errors import ConfigurationError, LinkError, ProtocolError, StorageError, reason_of
from minga.core.files import keep, read_kept, write_atomically
from minga.core.spec.run_spec import RunSpec
from minga.identity.keys.key_file import FileLock
from minga.identity.keys.keys import Identity
from minga.identity.links.links import Link
from minga.identity.links.signed_spec import MAX_SIGNED_SPEC_BYTES, SignedRunSpec
from minga.network.interface import MAX_ENDPOINTS, Address, PeerId

SPEC_FILE = "run-spec.signed"
MAX_PLACES = 16
MAX_PEERS = 500
MAX_FILES = 8
MAX_PLACES_BYTES = 1 << 16
KEEP_PERIOD_S = 5.0


class KnownAddresses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where this peer was, and where others were, when it last looked; and who took part, the latest first."""

    own_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    others: Annotated[tuple[Address, ...], msgspec.Meta(max_length=MAX_PLACES)] = ()
    peers: Annotated[tuple[PeerId, ...], msgspec.Meta(max_length=MAX_PEERS)] = ()


class RejoinFile:
    """The files of one run's folder that lead back into the run. A missing or damaged one counts as unknown."""

    def __init__(self, directory: Path, peer: PeerId) -> None:
        self._directory, self._places_file = directory, f"places-{peer[:16]}.msgpack"
        self._earlier: KnownAddresses | None = None
        self._kept: KnownAddresses | None = None

    @staticmethod
    def spec(directory: Path, link: Link) -> tuple[SignedRunSpec, RunSpec] | None:
        """The signed run spec of an earlier time, if it is the one that the link names."""
        try:
            signed = _read_signed(directory)
            return signed, signed.verify(link.run_id, link.organiser)
        except (OSError, ProtocolError):
            return None

    @property
    def is_there(self) -> bool:
        """Whether a peer with this key was in the run from this folder."""
        return (self._directory / self._places_file).exists()

    def keep_spec(self, signed: SignedRunSpec) -> None:
        """Remember the signed run spec; a disk that refuses is no reason not to take part."""
        with contextlib.suppress(OSError):
            write_atomically(self._directory / SPEC_FILE, signed.encode())

    def places(self) -> KnownAddresses:
        """The addresses that an earlier process knew last; read once."""
        if self._earlier is None:
            self._earlier = _read_places(self._directory / self._places_file)
        return self._earlier

    @staticmethod
    def known_here(directory: Path) -> tuple[Address, ...]:
        """The addresses that peers of this machine remember in the folder of one run, whoever they are."""
        files = sorted(directory.glob("places-*.msgpack"))[:MAX_FILES]
        found = [_read_places(path).others for path in files]
        return tuple(dict.fromkeys(address for others in found for address in others))[:MAX_PLACES]

    @staticmethod
    def peers_known_here(directory: Path) -> set[PeerId]:
        """The peers that those of this machine saw in one run, also such as have left."""
        return {peer for path in directory.glob("places-*.msgpack") for peer in _read_places(path).peers}

    def now(self, seen: KnownAddresses) -> KnownAddresses:
        """The addresses to remember if these are seen at present.

        A peer that is not seen any more is kept until others take its place: when all are gone, it may be the one that
        comes back.
        """
        known = self.places() if self._kept is None else self._kept
        others = {address.peer_id: address for address in known.others}
        fresh = {address.peer_id: address for address in seen.others}
        peers = dict.fromkeys((*seen.peers, *known.peers))
        addresses = tuple({**fresh, **others, **fresh}.values())
        self._kept = KnownAddresses(seen.own_port, addresses[:MAX_PLACES], tuple(peers)[:MAX_PEERS])
        return self._kept

    async def keep_places(self, look: Callable[[], KnownAddresses]) -> None:
        """Remember the addresses of all peers, every few seconds if they changed, until cancelled."""
        while True:
            before = self._kept
            if (places := self.now(look())) != before:
                await asyncio.get_running_loop().run_in_executor(None, self._keep_places, places)
            await asyncio.sleep(KEEP_PERIOD_S)

    def _keep_places(self, places: KnownAddresses) -> None:
        with contextlib.suppress(StorageError):
            keep(self._directory / self._places_file, places)


def _read_places(path: Path) -> KnownAddresses:
    return read_kept(path, KnownAddresses, MAX_PLACES_BYTES) or KnownAddresses()


def signed_spec(folder: Path) -> tuple[SignedRunSpec, RunSpec]:
    """The run spec that lies in a run's folder, with its organiser's signature.

    Raises `ConfigurationError` if there is none, if it is damaged, or if this version of minga cannot follow it.
    """
    try:
        signed = _read_signed(folder)
        return signed, signed.verify(signed.run_id, signed.organiser)
    except OSError as error:
        raise ConfigurationError(
            f"{folder}: not the folder of a run, {SPEC_FILE} is missing (a peer with an ephemeral key leaves none)"
        ) from error
    except ProtocolError as error:
        raise ConfigurationError(f"{folder / SPEC_FILE}: damaged: {error.message}") from error


def check_organiser(signed: SignedRunSpec, identity: Identity) -> None:
    """Raise `ConfigurationError` if the organiser of a run is not `identity`."""
    if signed.organiser != identity.peer_id:
        raise ConfigurationError(
            f"the organiser of this run is {signed.organiser[:10]}, and the key in use here is {identity.peer_id[:10]}"
        )


def _read_signed(folder: Path) -> SignedRunSpec:
    """What lies there, not verified yet; raises `OSError` and `ProtocolError`."""
    with (folder / SPEC_FILE).open("rb") as file:
        return SignedRunSpec.decode(file.read(MAX_SIGNED_SPEC_BYTES + 1))


def own_port(address: Address) -> int:
    """The UDP port of the first direct address, 0 if there is none."""
    port = address.direct[0].rpartition(":")[2] if address.direct else ""
    return int(port) if port.isascii() and port.isdecimal() and int(port) < 65536 else 0


def merged(addresses: Iterable[Address]) -> list[Address]:
    """One address for each peer, with everything that was said of it: it may have moved, or be back where it was."""
    found: dict[PeerId, Address] = {}
    for new in addresses:
        old = found.get(new.peer_id, new)
        direct = tuple(dict.fromkeys((*old.direct, *new.direct)))[:MAX_ENDPOINTS]
        found[new.peer_id] = Address(new.peer_id, direct, old.relay or new.relay)
    return list(found.values())


# ---- The host's lock: a run is hosted once from its folder on this machine.
#
# The host locks a file there, and leaves its link in it for a second process: that would be another organiser, with
# another key and link, which writes into the same folder.


FILE = "hosted.link"
MAX_LINK_BYTES = 1 << 12


class HostLock:
    """The right to host from the folder of one run, until `release` or the end of this process."""

    def __init__(self, path: Path, lock: FileLock | None) -> None:
        self._path, self._lock = path, lock

    @classmethod
    def take(cls, directory: Path) -> HostLock:
        """Raises `ConfigurationError`, with the link of the other host, if another process hosts from there already."""
        path = directory / FILE
        try:
            path.touch()
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {reason_of(error)}") from error
        try:
            lock = FileLock.try_acquire(path)
        except OSError:
            return cls(path, None)  # no locks on this file system: whether another host lives is unknown
        if lock is None:
            link = _read(path)
            way = f"`minga join {link}`" if link else "the link that it printed"
            raise ConfigurationError(
                f"another process on this machine hosts this run already, from {directory}: take part in it by {way}, "
                "or end that process to host in its place"
            )
        claim = cls(path, lock)
        claim._write("")
        return claim

    def tell(self, link: Link) -> None:
        """Leave the link of who hosts; a disk that refuses is no reason not to host."""
        self._write(str(link))

    def release(self) -> None:
        """Let others host; may be called twice."""
        if self._lock is not None:
            self._lock.release()

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._path.write_text(text, encoding="ascii")  # no other file must take the place of the one that is locked

    def __enter__(self) -> HostLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _read(path: Path) -> Link | None:
    """The link that was left; None if there is none yet."""
    try:
        with path.open("rb") as file:
            return Link.parse(file.read(MAX_LINK_BYTES).decode("ascii"))
    except (OSError, UnicodeDecodeError, LinkError):
        return None
