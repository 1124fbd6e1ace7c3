"""Rumours: a peer sends every new record to a few neighbours, and these do the same with records that are new to them.

Theory of operation. A push costs far more than a record in it. So a peer tells one random neighbour after the other,
`ROUTINE_FANOUT` of them in a window, each of all records that it still tells. It tells of a record as often, less once
for each further neighbour that sent the record meanwhile: where many have it already, nobody repeats it. No record goes
to its owner, or to a peer that sent it or took it. Urgent records go to `FANOUT` neighbours at once. With a fan-out of
f a rumour reaches the share x = 1 - exp(-f x) of a large swarm: 94 % for 3, more than 99 % for 6. The exchanges of
`minga.network.gossip.gossip` bring it to the rest. A peer without neighbours keeps what it has to tell for the first
that comes.

In a swarm of at most `TELLS_ALL` peers the owner tells all and says so, and then nobody repeats its routine records. It
does not say so while it lacks a connection to a living peer, or one of them is slow to take what it was sent. No peer
ever repeats a large record, so its owner tells `FANOUT` neighbours at once.

At most one push is under way to each neighbour. Records that become new meanwhile wait, and newer versions replace
older ones, so a slow neighbour costs neither memory nor the others' time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable

from minga.core.errors import RemoteError
from minga.network.gossip.anti_entropy import MAX_RECORDS, Push, paged
from minga.network.gossip.board import Board
from minga.network.gossip.record_kinds import Kind
from minga.network.gossip.record_store import StoredRecord
from minga.network.interface import PeerId
from minga.network.rpc.node import Node

METHOD = "board.push"
FANOUT = 6
ROUTINE_FANOUT = 3
TELLS_ALL = FANOUT + 1
TELLS_ALL_S = 0.1
"""How long the news of an owner that tells all are collected."""

MIN_WINDOW_S, MAX_WINDOW_S = 0.2, 5.0
WINDOW_PER_PEER_S, USUAL_PEERS = 0.016, 17
MIN_URGENT_S, MAX_URGENT_S = 0.02, 0.5
URGENT_PER_PEER_S = 0.002
"""How long news are collected: the larger the swarm, the more there are, and a push costs more than what it tells."""

SETTLED_WINDOWS, SETTLED_URGENT = 2.0, 4.0
"""Windows after which a record should have reached nearly all peers, and the same for urgent news."""

SLOW_S = 0.5
PUSH_TIMEOUT_S = 10.0

LARGE_BYTES = 512
"""Only owners send records with more bytes that are not readable here, as with large known kinds. Each repetition costs
as many bytes again, and the exchanges deliver them some seconds later.
"""

Key = tuple[PeerId, int]
"""Owner and code of a record."""


class _Rumour:
    """A record that is still told: which peers are known to have it, how many more are told, and how many at once."""

    __slots__ = ("at_once", "known_to", "left")

    def __init__(self, source: PeerId, left: int, at_once: int) -> None:
        self.known_to, self.left, self.at_once = {source}, left, at_once


class RumourSpreader:
    """Sends news to neighbours. `generator` makes every random choice."""

    def __init__(self, board: Board, node: Node, generator: random.Random) -> None:
        self._board, self._node, self._generator = board, node, generator
        self._loop = asyncio.get_running_loop()  # asked for with each record, which in Python 3.11 is a system call
        self._rumours: dict[Key, _Rumour] = {}
        self._outboxes: dict[PeerId, dict[Key, None]] = {}
        self._pushed_s: dict[PeerId, float] = {}  # when the push began that is under way
        self._flush_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def window_s(self) -> float:
        """Seconds in which a routine record is told to `ROUTINE_FANOUT` neighbours."""
        more = WINDOW_PER_PEER_S * max(0, self._board.alive_count - USUAL_PEERS)
        return min(MIN_WINDOW_S + more, MAX_WINDOW_S)

    @property
    def urgent_s(self) -> float:
        """Seconds for which urgent news are collected."""
        return min(max(MIN_URGENT_S, URGENT_PER_PEER_S * self._board.alive_count), MAX_URGENT_S)

    @property
    def settled_s(self) -> float:
        """Seconds after which a record should have reached nearly all peers."""
        return SETTLED_WINDOWS * (TELLS_ALL_S if self._board.alive_count <= TELLS_ALL else self.window_s)

    @property
    def urgent_settled_s(self) -> float:
        """The same for urgent news, which go to more peers at once."""
        return min(self.settled_s, SETTLED_URGENT * self.urgent_s)

    def add(self, owner: PeerId, code: int, source: PeerId, *, is_told_to_all: bool = False) -> None:
        """Note that a record is new here and came from `source` (this peer for its own); `is_told_to_all` if its owner
        said so.
        """
        key, is_own = (owner, code), owner == self._board.peer_id
        kind, entry = self._board.kinds.with_code(code), self._entry(key)
        is_large = _is_large(kind, entry)
        if not is_own and is_large:
            return
        is_small = self._board.alive_count <= TELLS_ALL
        # Others should know at once of an address, or that a peer left, unless that was known before.
        if kind is not None and kind.is_urgent and entry is not None and not entry.is_renewal:
            self._rumours[key] = _Rumour(source, FANOUT, FANOUT)
            self._flush_within(self.urgent_s)
        elif is_own and is_small:
            self._rumours[key] = _Rumour(source, FANOUT, FANOUT)
            self._flush_within(TELLS_ALL_S)
        elif is_small and is_told_to_all and source == owner:
            self._rumours.pop(key, None)
        else:
            self._rumours[key] = _Rumour(source, FANOUT, FANOUT) if is_large else _Rumour(source, ROUTINE_FANOUT, 1)
            self._flush_within(self.window_s / ROUTINE_FANOUT)

    def add_source(self, owner: PeerId, code: int, source: PeerId) -> None:
        """Note that `source` has the record, too, so that it need not be sent there."""
        rumour = self._rumours.get((owner, code))
        if rumour is not None and source not in rumour.known_to:
            rumour.known_to.add(source)
            if rumour.at_once == 1:
                rumour.left -= 1

    def own_news(self) -> list[StoredRecord]:
        """The own records that may not be everywhere yet."""
        since = self._board.now() - self.settled_s
        own = self._board.store.own.entries.values()
        return [entry for entry in own if entry.arrived >= since and not entry.is_renewal]

    async def push_to_all(self, last_words: list[StoredRecord], timeout_s: float) -> None:
        """Send all news, and these records, to every neighbour now, taking at most `timeout_s`."""
        rumours, self._rumours = self._rumours, {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                entries = [*last_words, *self._entries(rumours)]
                pushes = (self._push(peer, entries) for peer in self._node.connected())
                await asyncio.gather(*pushes, return_exceptions=True)

    def _flush_within(self, seconds: float) -> None:
        due = self._loop.time() + seconds
        if self._flush_at is None or due < self._flush_at - 0.001:
            if self._timer is not None:
                self._timer.cancel()
            self._flush_at = due
            self._timer = self._loop.call_at(due, self._flush)

    def _flush(self) -> None:
        """Tell the next neighbour, or all that have to be told at once; nothing is told off while there is none."""
        self._flush_at = self._timer = None
        board = self._board
        widest = max((rumour.at_once for rumour in self._rumours.values()), default=0)

        def may_hear(peer: PeerId) -> bool:
            return board.is_alive(peer) or peer not in board.store.owners

        drawn = self._node.draw_connected(widest, self._generator, may_hear)
        if self._rumours and not drawn:
            self._flush_within(self.window_s)
            return
        for number, peer in enumerate(drawn):
            keys = [
                key
                for key, rumour in self._rumours.items()
                if number < min(rumour.at_once, rumour.left) and peer not in rumour.known_to and peer != key[0]
            ]
            for key in keys:
                self._rumours[key].known_to.add(peer)
            if keys:
                self._send(peer, keys)
        for key, rumour in list(self._rumours.items()):
            rumour.left -= rumour.at_once
            if rumour.left <= 0:
                del self._rumours[key]
        if self._rumours:
            self._flush_within(self.window_s / ROUTINE_FANOUT)

    def _send(self, peer: PeerId, keys: list[Key]) -> None:
        if peer not in self._outboxes:
            self._outboxes[peer] = dict.fromkeys(keys)
            self._node.spawn(self._empty_outbox(peer))
            return
        outbox = self._outboxes[peer]
        outbox.update(dict.fromkeys(keys))
        if len(outbox) > MAX_RECORDS:  # a flood of made-up owners, most of which are off the board by now
            self._outboxes[peer] = {key: None for key in outbox if key[0] in self._board.store.owners}

    def _entry(self, key: Key) -> StoredRecord | None:
        owner = self._board.store.owners.get(key[0])
        return None if owner is None else owner.entries.get(key[1])

    def _tells_all(self) -> bool:
        """Whether this peer's own records come to all others by its own pushes."""
        board = self._board
        if board.alive_count > TELLS_ALL:
            return False
        slow_since_s = self._loop.time() - SLOW_S
        return all(
            self._node.is_connected(peer) and self._pushed_s.get(peer, slow_since_s) >= slow_since_s
            for peer in board.owners()
            if peer != board.peer_id
        )

    async def _empty_outbox(self, peer: PeerId) -> None:
        try:
            while keys := self._outboxes[peer]:
                self._outboxes[peer] = {}
                self._pushed_s[peer] = self._loop.time()
                await self._push(peer, self._entries(keys))
        except (RemoteError, TimeoutError):
            pass  # the exchanges will bring what is missing, if the peer still lives
        finally:
            del self._outboxes[peer]
            self._pushed_s.pop(peer, None)

    def _entries(self, keys: Iterable[Key]) -> list[StoredRecord]:
        owners = self._board.store.owners
        found = (known.entries.get(code) for owner, code in keys if (known := owners.get(owner)) is not None)
        return [entry for entry in found if entry is not None and entry.passed_on]

    async def _push(self, peer: PeerId, entries: list[StoredRecord]) -> None:
        for page in paged(entries, self._board.now()):
            if not self._node.is_connected(peer):
                return
            async with asyncio.timeout(PUSH_TIMEOUT_S), self._node.open(peer, METHOD) as stream:
                await stream.send(Push(page, self._tells_all()))
                await stream.finish()
                await stream.receive_end()


def _is_large(kind: Kind | None, entry: StoredRecord | None) -> bool:
    if kind is not None and (kind.is_large or entry is None or not entry.is_opaque):
        return kind.is_large
    return entry is not None and len(entry.record.payload) > LARGE_BYTES
