"""The files of a peer about access to a run, and the watch that disconnects peers whose access ends.

The files hold the peer's own token, the organisers' orders, and the uses of invitations. All of it is public and
checked again when it is read, so the peer learns a missing or damaged file again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from minga.access.admission import Admission
from minga.access.standing_orders import OrderExchange, Orders
from minga.core.aio import DiskWrites
from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.core.events.training import AccessEnded, AccessOrders
from minga.core.files import keep, read_kept, read_struct, write_atomically
from minga.core.thread_guard import loop_bound
from minga.identity.access.ledger import AccessLedger, PublicOrder
from minga.identity.access.orders import (
    MAX_USES,
    Amendment,
    Regroup,
    Transfer,
)
from minga.identity.access.token import MAX_TOKEN_BYTES, Token
from minga.network.gossip.board import Board
from minga.network.interface import PeerId
from minga.network.rpc.node import Node

ORDERS_FILE, GUESTS_FILE = "access-orders.msgpack", "access-guests.msgpack"
MAX_FILE_BYTES = 8 << 20
_PEER = r"\A[0-9a-f]{64}\Z"

PeerText = Annotated[str, msgspec.Meta(pattern=_PEER)]
Guests = dict[PeerText, Annotated[list[PeerText], msgspec.Meta(max_length=2 * MAX_USES)]]


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
        with contextlib.suppress(OSError):
            write_atomically(self._token_file(peer_id), token.encode())

    def known(self) -> KnownAccess:
        """What lies on the disk."""
        return KnownAccess(self.orders(), read_kept(self._directory / GUESTS_FILE, Guests, MAX_FILE_BYTES) or {})

    def orders(self) -> list[PublicOrder]:
        """The orders on disk."""
        return (read_kept(self._directory / ORDERS_FILE, Orders, MAX_FILE_BYTES) or Orders()).all()

    def keep_orders(self, orders: list[PublicOrder]) -> None:
        """Write all orders that are known."""
        _try_to_keep(self._directory / ORDERS_FILE, Orders.of(orders))

    def keep_guests(self, guests: Guests) -> None:
        """Remember the peers that joined by each invitation."""
        _try_to_keep(self._directory / GUESTS_FILE, guests)

    def _token_file(self, peer_id: str) -> Path:
        return self._directory / f"access-{peer_id[:16]}.token"


def _try_to_keep(path: Path, value: object) -> None:
    with contextlib.suppress(StorageError):  # the peer learns it again
        keep(path, value)


Passed = TypeVar("Passed", Transfer, Amendment, Regroup)


def read_order(path: Path, kind: type[Passed]) -> Passed:
    """An order that organisers pass around to sign. Raises `ConfigurationError` for any other file."""
    try:
        order = read_struct(path, kind, MAX_FILE_BYTES)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {reason_of(error)}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path}: not an order that organisers sign: {error}") from error
    return order


def write_order(path: Path, order: Transfer | Amendment | Regroup) -> None:
    """Write an order for the next organiser to sign. Raises `StorageError`."""
    keep(path, order)


# ---- The watch: it disconnects peers whose access ends while the run goes on, and keeps the files up to date.
#
# Theory of operation. Once a token has expired, or its key is revoked, its owner cannot connect any more. A peer that
# is connected stays until the step under way ends, at most `MOST_GRACE_S`. Then this peer drops its records and closes
# its connections, so that it is a stranger to every protocol. Meanwhile this peer sends it the orders, so that it
# learns the reason. Peers whose clocks differ do so a little earlier or later, which costs as much as any peer that
# leaves. A peer whose own access ends learns it here, too, and stops.


PERIOD_S = 1.0
MOST_GRACE_S = 120.0
"""Longest time, in seconds, for which a step may keep a peer connected whose access has ended."""

TELLING_S = 2.0
"""Longest time, in seconds, that a connection stays open for orders, and for nothing else, after the access ended."""


class _Leaving(NamedTuple):
    """Since when (loop time) and why a peer's access has ended; `telling` sends it the orders, None for this peer
    itself.
    """

    since_s: float
    why: str
    telling: asyncio.Task[None] | None


@loop_bound
class AccessWatch:
    """Watches the access of all peers known to one peer.

    `in_step` tells whether this peer takes part in steps; `on_own_end` is called, with the reason, for as long as its
    own access has ended.
    """

    def __init__(
        self,
        node: Node,
        board: Board,
        admission: Admission,
        ledger: AccessLedger,
        files: AccessFiles | None,
        known: KnownAccess | None,
        disk: DiskWrites,
        *,
        in_step: Callable[[], bool],
        on_own_end: Callable[[str], None],
    ) -> None:
        self.exchange = OrderExchange(node, admission, ledger)
        self._node, self._board, self._admission, self._ledger = node, board, admission, ledger
        self._files, self._disk, self._in_step, self._on_own_end = files, disk, in_step, on_own_end
        self._leaving: dict[PeerId, _Leaving] = {}
        self._guests_kept = 0
        if known is not None:
            admission.remember_guests({key: list(map(PeerId, peers)) for key, peers in known.guests.items()})
            admission.take(known.orders)
        admission.on_orders = self._orders_came

    async def run(self) -> None:
        """Look every second, until cancelled."""
        self._node.spawn(self.exchange.run())
        while True:
            self.look()
            await asyncio.sleep(PERIOD_S)

    def keep_token(self, token: Token) -> None:
        """Remember the token that this peer shows."""
        if self._files is not None:
            self._disk.do(self._files.keep_token, self._node.peer_id, token)

    def look(self) -> None:
        """See whose access has ended by now."""
        if self._files is not None and (count := self._admission.guests_counted) != self._guests_kept:
            self._guests_kept = count
            guests = {key: list(peers) for key, peers in self._admission.guests().items()}
            self._disk.do(self._files.keep_guests, guests)
        now = asyncio.get_running_loop().time()
        self._note_ended(now)
        overdue = any(now - leaving.since_s > MOST_GRACE_S for leaving in self._leaving.values())
        if self._leaving and (overdue or not self._in_step()):
            self._see_off()

    def _note_ended(self, now: float) -> None:
        """Who is to leave; not those any more who showed a new token meanwhile, or were admitted anew."""
        ended = self._admission.ended()
        self._leaving = {peer: leaving for peer, leaving in self._leaving.items() if peer in ended}
        for peer, why in ended.items():
            if peer not in self._leaving:
                telling = None if peer == self._node.peer_id else self._node.spawn(self.exchange.exchange(peer))
                self._leaving[peer] = _Leaving(now, why, telling)

    def _orders_came(self) -> None:
        """Something new: keep it, tell the others, and look at once who it concerns."""
        if self._files is not None:
            self._disk.do(self._files.keep_orders, list(self._ledger.orders()))
        self._node.events.emit(AccessOrders(barred=len(self._ledger.barred()), term=self._ledger.term))
        self.exchange.spread()
        asyncio.get_running_loop().call_soon(self.look)

    def end_step(self) -> None:
        """A step of this peer has ended: disconnect the peers whose access has ended."""
        if self._leaving:
            asyncio.get_running_loop().call_soon(self._see_off)

    def _see_off(self) -> None:
        self._note_ended(asyncio.get_running_loop().time())
        leaving, self._leaving = self._leaving, {}
        for peer, (_, why, telling) in leaving.items():
            if telling is None:
                self._on_own_end(why)
                continue
            self._node.events.emit(AccessEnded(peer=peer, why=why))
            self._admission.expel(peer)
            self._board.expel(peer)
            self._node.spawn(self._close(peer, telling))

    async def _close(self, peer: PeerId, telling: asyncio.Task[None]) -> None:
        """Close the connections to a peer once it had its chance to hear why."""
        await asyncio.wait([telling], timeout=TELLING_S)
        await self._node.disconnect(peer)
