"""The peers of each person: what the authority remembers, on disk before any token leaves.

One JSON file, `name` by the peer's key, so that an operator can read in it which peers belong to a person. One process
at a time owns it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from minga.authority.refusals import Refused
from minga.core.decoding import DECODING_ERRORS, decode_json
from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.core.files import store
from minga.identity.access.ledger import CLOCK_SKEW_S
from minga.identity.access.orders import MAX_USES
from minga.identity.keys.key_file import FileLock

FORMAT: Final = "minga-authority-1"
MAX_FILE_BYTES = 16 << 20
_KEY = r"\A[0-9a-f]{64}\Z"

KeyText = Annotated[str, msgspec.Meta(pattern=_KEY)]


class IssuedToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One peer's place: its person (`name` at that `Provider.source`), the time of the login, and the end (Unix
    seconds).

    With an `organisation` it depends on membership of that, with a `code_mark` on the code with that mark. `invitation`
    is the key that signed its last token.
    """

    name: str
    provider: str
    invitation: KeyText
    logged_in: float
    expires: float
    organisation: str | None = None
    code_mark: str | None = None

    @property
    def person(self) -> tuple[str, str]:
        """Whose peer it is: the same name from another source may be another person's."""
        return self.provider, self.name


class Roster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    format: Literal["minga-authority-1"]
    run: KeyText
    seats: Annotated[dict[KeyText, IssuedToken], msgspec.Meta(max_length=4 * MAX_USES)]


class RosterFile:
    """The file of one run, locked for this process. Raises `StorageError` or `ConfigurationError` if it cannot be."""

    def __init__(self, path: Path, run_id: str, wall_time: Callable[[], float]) -> None:
        self._path, self._run_id, self._wall_time = path, run_id, wall_time
        self._lock = _lock(path)
        try:
            self._issued = self._read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another process have the file."""
        self._lock.release()

    def issued(self, peer: str) -> IssuedToken | None:
        """The place of a peer, if it ever had one."""
        return self._issued.get(peer)

    def take(self, peer: str, issued: IssuedToken, *, most_peers: int, uses: int) -> None:
        """Give a peer its place, durably, or say that there is none: more than `most_peers` at a time for one person,
        or `uses` peers in all by one invitation. Of a person who may have fewer by now the first ones keep their
        places; those of a code that was replaced, which may be a thief's, take none. Raises `Refused` and
        `StorageError`, and changes nothing then.
        """
        now_s, seats = self._wall_time(), self._issued.items()
        living = [
            key
            for key, other in seats
            if other.person == issued.person and other.code_mark in (None, issued.code_mark) and _lives(other, now_s)
        ]
        if peer in living:
            living = living[: living.index(peer)]
        if len(living) >= most_peers:
            raise Refused(
                "full",
                f"{issued.name} may have {most_peers} {'peer' if most_peers == 1 else 'peers'} at a time and has them: "
                f"{', '.join(key[:10] for key in living[:5])}. A place is free some hours after its peer has left",
            )
        if sum(other.invitation == issued.invitation for key, other in seats if key != peer) >= uses:
            raise Refused("invitation", "the authority's invitation is used up; its organiser has to give it a new one")
        self._keep({**self._issued, peer: issued})

    def forget(self, invitation: str) -> None:
        """Drop places that have ended and that `invitation` does not count. Raises `StorageError`."""
        now_s = self._wall_time()
        kept = {p: s for p, s in self._issued.items() if s.invitation == invitation or _lives(s, now_s)}
        if len(kept) < len(self._issued):
            self._keep(kept)

    def _keep(self, seats: dict[str, IssuedToken]) -> None:
        body = msgspec.json.format(msgspec.json.encode(Roster(FORMAT, self._run_id, seats)), indent=1)
        if not self._lock.is_held:
            raise StorageError(f"{self._path} was closed")
        store(self._path, body)
        self._issued = seats

    def _read(self) -> dict[str, IssuedToken]:
        try:
            with self._path.open("rb") as file:
                body = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StorageError(f"{self._path} cannot be read: {reason_of(error)}") from error
        try:
            roster = decode_json(body, Roster)
        except DECODING_ERRORS as error:
            raise ConfigurationError(
                f"{self._path}: not the file in which an authority keeps its peers, or damaged: {error}"
            ) from error
        if roster.run != self._run_id:
            raise ConfigurationError(f"{self._path} belongs to another run; name another file with --roster")
        return dict(roster.seats)


def _lives(issued: IssuedToken, now_s: float) -> bool:
    """Whether members may still accept the last token."""
    return issued.expires + CLOCK_SKEW_S > now_s


def _lock(path: Path) -> FileLock:
    """Lock a file beside `path`, which itself is replaced at each write."""
    beside = path.with_name(f"{path.name}.lock")
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.touch()
        lock = FileLock.try_acquire(beside)
    except OSError as error:
        raise StorageError(f"{beside} cannot be locked: {reason_of(error)}") from error
    if lock is None:
        raise ConfigurationError(f"another authority uses {path}; stop it, or name another file with --roster")
    return lock
