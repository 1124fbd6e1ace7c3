"""Disconnects peers whose access ends while the run goes on, and keeps on disk what is known about access.

Theory of operation. Once a token has expired, or its key is revoked, its owner cannot connect any more. A peer that is
connected stays until the step under way ends, at most `MOST_GRACE_S`. Then this peer drops its records and closes its
connections, so that it is a stranger to every protocol. Meanwhile this peer sends it the orders, so that it learns the
reason. Peers whose clocks differ do so a little earlier or later, which costs as much as any peer that leaves. A peer
whose own access ends learns it here, too, and stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from minga.core.aio.disk_writes import DiskWrites
from minga.core.events.training import AccessEnded, AccessOrders
from minga.core.thread_guard import loop_bound
from minga.identity.access.ledger import AccessLedger
from minga.identity.access.token import Token
from minga.network.gossip.board import Board
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.training.access.access_files import AccessFiles, KnownAccess
from minga.training.access.admission import Admission
from minga.training.access.order_gossip import OrderExchange

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

    `in_step` tells whether this peer takes part in steps; `on_own_end` is called, with the reason, when its own access
    has ended.
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
        self._is_over = False
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
        for peer, why in self._admission.ended().items():
            if peer not in self._leaving:
                telling = None if peer == self._node.peer_id else self._node.spawn(self.exchange.exchange(peer))
                self._leaving[peer] = _Leaving(now, why, telling)
        overdue = any(now - leaving.since_s > MOST_GRACE_S for leaving in self._leaving.values())
        if self._leaving and (overdue or not self._in_step()):
            self._see_off()

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
        leaving, self._leaving = self._leaving, {}
        for peer, (_, why, telling) in leaving.items():
            if telling is None:
                if not self._is_over:
                    self._is_over = True
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
