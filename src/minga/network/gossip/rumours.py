"""Rumours: a peer sends every new record at once to a few neighbours, and these do the same with records that are new
to them.

Theory of operation. The records that became new during a short window are sent together. Urgent records, and this
peer's own, go to `FANOUT` random neighbours, the rest to `ROUTINE_FANOUT`; no record goes back to the peer that sent
it. Where the swarm is so small that the owner tells all, no peer repeats a routine record, and no peer ever repeats a
large one. With a fan-out of f a rumour reaches the share x = 1 - exp(-f x) of a large swarm: 94 % for 3, more than 99 %
for 6. The exchanges of `minga.network.gossip.gossip` bring it to the rest. At most one push is under way to each
neighbour. Records that become new meanwhile wait, and newer versions replace older ones, so a slow neighbour costs
neither memory nor the others' time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

from minga.core.errors import RemoteError
from minga.network.gossip.anti_entropy import MAX_RECORDS, Push, paged
from minga.network.gossip.board import Board
from minga.network.gossip.peer_records import StoredRecord
from minga.network.interface import PeerId
from minga.network.rpc.node import Node

METHOD = "board.push"
FANOUT = 6
ROUTINE_FANOUT = 3
MIN_WINDOW_S, MAX_WINDOW_S = 0.1, 5.0
WINDOW_PER_PEER_S, USUAL_PEERS = 0.02, 12
MIN_URGENT_S, MAX_URGENT_S = 0.02, 0.5
URGENT_PER_PEER_S = 0.002
"""How long news are collected: the larger the swarm, the more there are, and a push costs more than what it tells."""

PUSH_TIMEOUT_S = 10.0

LARGE_BYTES = 512
"""Only owners send records with more bytes that are not readable here, as with large known kinds. Each repetition costs
as many bytes again, and the exchanges deliver them some seconds later.
"""

Key = tuple[PeerId, int]
"""Owner and code of a record."""


class RumourSpreader:
    """Sends news to neighbours. `generator` makes every random choice."""

    def __init__(self, board: Board, node: Node, generator: random.Random) -> None:
        self._board, self._node, self._generator = board, node, generator
        self._news: dict[Key, set[PeerId]] = {}
        self._outboxes: dict[PeerId, dict[Key, None]] = {}
        self._flush_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def window_s(self) -> float:
        """Seconds for which routine news are collected."""
        more = WINDOW_PER_PEER_S * max(0, self._board.alive_count - USUAL_PEERS)
        return min(MIN_WINDOW_S + more, MAX_WINDOW_S)

    @property
    def urgent_s(self) -> float:
        """The same for what is urgent."""
        return min(max(MIN_URGENT_S, URGENT_PER_PEER_S * self._board.alive_count), MAX_URGENT_S)

    def add(self, owner: PeerId, code: int, source: PeerId) -> None:
        """Note that a record is new here and came from `source` (this peer for its own)."""
        if owner != self._board.peer_id and self._is_large((owner, code)):
            return
        self._news[owner, code] = {source}
        now = asyncio.get_running_loop().time()
        due = now + (self.urgent_s if self._is_urgent((owner, code)) else self.window_s)
        if self._flush_at is None or due < self._flush_at - 0.001:
            if self._timer is not None:
                self._timer.cancel()
            self._flush_at = due
            self._timer = asyncio.get_running_loop().call_at(due, self._flush)

    def add_source(self, owner: PeerId, code: int, source: PeerId) -> None:
        """Note that `source` has the record, too, so that it need not be sent there."""
        if (sources := self._news.get((owner, code))) is not None:
            sources.add(source)

    async def push_to_all(self, timeout_s: float) -> None:
        """Send all news to every neighbour now, taking at most `timeout_s`."""
        news, self._news = self._news, {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                entries = self._entries(news)
                pushes = (self._push(peer, entries) for peer in self._node.connected())
                await asyncio.gather(*pushes, return_exceptions=True)

    def _flush(self) -> None:
        self._flush_at = self._timer = None
        news, self._news = self._news, {}
        board = self._board
        eager = {key for key in news if key[0] == board.peer_id or self._is_urgent(key)}
        neighbours = [p for p in self._node.connected() if board.is_alive(p) or p not in board.store.owners]
        fanout = min(len(neighbours), FANOUT if eager else ROUTINE_FANOUT)
        for number, peer in enumerate(self._generator.sample(neighbours, fanout)):
            keys = [
                key
                for key, sources in news.items()
                if (number < ROUTINE_FANOUT or key in eager)
                and peer not in sources
                and peer != key[0]
                and not (key[0] in sources and self._tells_all(key, peer))
            ]
            if not keys:
                continue
            if peer in self._outboxes:
                outbox = self._outboxes[peer]
                outbox.update(dict.fromkeys(keys))
                if len(outbox) > MAX_RECORDS:  # a flood of made-up owners, most of which are off the board by now
                    self._outboxes[peer] = {key: None for key in outbox if key[0] in board.store.owners}
            else:
                self._outboxes[peer] = dict.fromkeys(keys)
                self._node.spawn(self._empty_outbox(peer))

    def _is_urgent(self, key: Key) -> bool:
        """Whether others should know at once: the address of a peer, or that it left, unless that was known before."""
        owner = self._board.store.owners.get(key[0])
        entry = owner.entries.get(key[1]) if owner is not None and self._is_of_urgent_kind(key) else None
        return entry is not None and not entry.is_renewal

    def _is_of_urgent_kind(self, key: Key) -> bool:
        kind = self._board.kinds.with_code(key[1])
        return kind is not None and kind.is_urgent

    def _is_large(self, key: Key) -> bool:
        kind = self._board.kinds.with_code(key[1])
        owner = self._board.store.owners.get(key[0])
        entry = owner.entries.get(key[1]) if owner is not None else None
        if kind is not None and (kind.is_large or entry is None or not entry.is_opaque):
            return kind.is_large
        return entry is not None and len(entry.record.payload) > LARGE_BYTES

    def _tells_all(self, key: Key, peer: PeerId) -> bool:
        """Whether the owner of a routine record sent it to this peer, and so to `peer` as well, as in a small swarm."""
        if key[0] == self._board.peer_id or self._is_of_urgent_kind(key) or self._board.alive_count > FANOUT + 1:
            return False
        return any((address := self._board.address_of(one)) and address.dialable for one in (key[0], peer))

    async def _empty_outbox(self, peer: PeerId) -> None:
        try:
            while keys := self._outboxes[peer]:
                self._outboxes[peer] = {}
                await self._push(peer, self._entries(keys))
        except (RemoteError, TimeoutError):
            pass  # the exchanges will bring what is missing, if the peer still lives
        finally:
            del self._outboxes[peer]

    def _entries(self, keys: dict[Key, None] | dict[Key, set[PeerId]]) -> list[StoredRecord]:
        owners = self._board.store.owners
        found = (owners[owner].entries.get(code) for owner, code in keys if owner in owners)
        return [entry for entry in found if entry is not None and entry.passed_on]

    async def _push(self, peer: PeerId, entries: list[StoredRecord]) -> None:
        for page in paged(entries, self._board.now()):
            if not self._node.is_connected(peer):
                return
            async with asyncio.timeout(PUSH_TIMEOUT_S), self._node.open(peer, METHOD) as stream:
                await stream.send(Push(page))
                await stream.finish()
                await stream.receive_end()
