"""The files of a peer about access to a run: its own token, the organisers' orders, and the uses of invitations.

All of it is public and checked again when it is read, so the peer learns a missing or damaged file again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import ConfigurationError, StorageError
from minga.core.files import write_atomically
from minga.core.spec.sections import MAX_ORGANISERS
from minga.identity.access.amendments import MAX_AMENDMENTS, MAX_REGROUPS, Amendment, Regroup
from minga.identity.access.ledger import PublicOrder
from minga.identity.access.orders import (
    MAX_BARRED,
    MAX_RANGES,
    MAX_TERMS,
    MAX_USES,
    RangeBan,
    Revocation,
    Transfer,
)
from minga.identity.access.token import MAX_TOKEN_BYTES, Token

ORDERS_FILE, GUESTS_FILE = "access-orders.msgpack", "access-guests.msgpack"
MAX_FILE_BYTES = 8 << 20
_PEER = r"\A[0-9a-f]{64}\Z"

T = TypeVar("T")

PeerText = Annotated[str, msgspec.Meta(pattern=_PEER)]
Guests = dict[PeerText, Annotated[list[PeerText], msgspec.Meta(max_length=2 * MAX_USES)]]


class Orders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Orders in an order in which they can be taken: transfers, then the rest."""

    transfers: Annotated[tuple[Transfer, ...], msgspec.Meta(max_length=MAX_TERMS)] = ()
    revocations: Annotated[tuple[Revocation, ...], msgspec.Meta(max_length=MAX_BARRED * MAX_ORGANISERS)] = ()
    ranges: Annotated[tuple[RangeBan, ...], msgspec.Meta(max_length=MAX_RANGES * MAX_ORGANISERS)] = ()

    amendments: Annotated[tuple[Amendment, ...], msgspec.Meta(max_length=MAX_AMENDMENTS)] = ()

    regroups: Annotated[tuple[Regroup, ...], msgspec.Meta(max_length=MAX_REGROUPS)] = ()

    def all(self) -> list[PublicOrder]:
        """All kinds."""
        return [*self.transfers, *self.revocations, *self.ranges, *self.amendments, *self.regroups]

    @classmethod
    def of(cls, orders: list[PublicOrder]) -> Orders:
        """The orders of a ledger."""
        return cls(
            tuple(order for order in orders if isinstance(order, Transfer)),
            tuple(order for order in orders if isinstance(order, Revocation)),
            tuple(order for order in orders if isinstance(order, RangeBan)),
            tuple(order for order in orders if isinstance(order, Amendment)),
            tuple(order for order in orders if isinstance(order, Regroup)),
        )


class KnownAccess(NamedTuple):
    """What an earlier process of this machine knew of who may take part in a run."""

    orders: Sequence[PublicOrder]
    guests: Guests


class AccessFiles:
    """The files in the folder of one run. All methods block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def token(self, peer_id: str) -> Token | None:
        """The token that a peer of this machine showed the last time."""
        try:
            with self._token_file(peer_id).open("rb") as file:
                return Token.decode(file.read(MAX_TOKEN_BYTES + 1))
        except (OSError, ValueError):
            return None

    def keep_token(self, peer_id: str, token: Token) -> None:
        """Remember the token of a peer of this machine."""
        self._write(self._token_file(peer_id), token.encode())

    def known(self) -> KnownAccess:
        """What lies on the disk."""
        return KnownAccess(self.orders(), self._read(GUESTS_FILE, Guests, {}))

    def orders(self) -> list[PublicOrder]:
        """The orders on disk."""
        return self._read(ORDERS_FILE, Orders, Orders()).all()

    def keep_orders(self, orders: list[PublicOrder]) -> None:
        """Write all orders that are known."""
        self._write(self._directory / ORDERS_FILE, msgspec.msgpack.encode(Orders.of(orders)))

    def keep_guests(self, guests: Guests) -> None:
        """Remember the peers that joined by each invitation."""
        self._write(self._directory / GUESTS_FILE, msgspec.msgpack.encode(guests))

    def _token_file(self, peer_id: str) -> Path:
        return self._directory / f"access-{peer_id[:16]}.token"

    def _read(self, name: str, kind: type[T], missing: T) -> T:
        try:
            with (self._directory / name).open("rb") as file:
                return decode_msgpack(file.read(MAX_FILE_BYTES), kind)
        except (OSError, *DECODING_ERRORS):
            return missing

    def _write(self, path: Path, body: bytes) -> None:
        with contextlib.suppress(OSError):
            write_atomically(path, body)


Passed = TypeVar("Passed", Transfer, Amendment, Regroup)


def read_order(path: Path, kind: type[Passed]) -> Passed:
    """An order that organisers pass around to sign. Raises `ConfigurationError` for any other file."""
    try:
        with path.open("rb") as file:
            return decode_msgpack(file.read(MAX_FILE_BYTES), kind)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    except DECODING_ERRORS as error:
        raise ConfigurationError(f"{path}: not an order that organisers sign: {error}") from error


def write_order(path: Path, order: Transfer | Amendment | Regroup) -> None:
    """Write an order for the next organiser to sign. Raises `StorageError`."""
    try:
        write_atomically(path, msgspec.msgpack.encode(order))
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
