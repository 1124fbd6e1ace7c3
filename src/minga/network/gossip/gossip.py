"""Gossip: keeps the boards of all peers the same.

Theory of operation. Three things spread records, each covering for what the one before misses:

* *rumours* (`minga.network.gossip.rumours`): new records go to a few neighbours, what is urgent at once, the rest in
  windows that grow with the swarm;
* *exchanges* (`minga.network.gossip.anti_entropy`): about once a second each peer makes its board equal with that of
  one random living neighbour. Whatever rumours missed is everywhere after O(log N) such rounds;
* *dialling*: a peer with fewer than `MIN_NEIGHBOURS` connections dials living peers it is not connected to, one after
  the other; one that has none does not wait for answers, since those behind routers give none. Now and then a peer
  dials at random, also silent peers and the entry addresses of the link, so that a split heals.

Every peer signs a record at least once every `beat_s` = max(0.5, N / 25) seconds for N living peers, and in swarms
above 50 up to 4 seconds later: each record comes to everybody, and with the longer pause a step's own record is beat
enough. The failure detector watches for these. A peer renews its own records after a third of their life.

Cost. A beat takes about 125 bytes, and a peer sends every record that is new to it to at most 3 neighbours, fewer if
others sent it meanwhile. Below N = 12 every peer beats twice a second and traffic grows with N, by some 560 bytes per
second each way for each peer. Above, there are 25 beats per second in the whole swarm, and exchanges become rarer as
they become larger; docs/planning.md has what was measured. Records that come more often than beats cost as many bytes
again, so peers of a large swarm should not write more often than every `beat_s`. A dead peer is noticed after about two
and a half beats, and two of the windows in which rumours are collected: within 3 s among 6 peers, and by the same rule
after 20 s among 150 and nearly two minutes among 1,000. Rounds do not wait for that.

Random choices come from a generator seeded by the peer's own id, so simulated runs repeat exactly.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Iterable, Sequence

from minga.core.errors import ProtocolError, RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.gossip import anti_entropy
from minga.network.gossip.anti_entropy import Aged, Detail, Page, Push, Settled, Summary, WantedRecords
from minga.network.gossip.board import Board
from minga.network.gossip.record_kinds import Left
from minga.network.gossip.record_store import StoredRecord
from minga.network.gossip.records import Verdict
from minga.network.gossip.rumours import METHOD as PUSH_METHOD
from minga.network.gossip.rumours import RumourSpreader
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream

EXCHANGE_METHOD = "board.exchange"
EXCHANGE_S = 1.0
EXCHANGES_PER_SECOND = 30.0
"""A peer begins an exchange every `EXCHANGE_S` seconds. In a large swarm peers begin fewer, because the length of an
exchange grows with the number of peers.
"""

EXCHANGE_TIMEOUT_S = 30.0
CLOCK_READING_S = 10.0
"""Longest exchange that also tells the time, with an error of half of that at most."""

MAX_EXCHANGES_SERVED = 4
"""How many exchanges one peer may have under way here at once."""

MIN_BEAT_S = 0.5
BEATS_PER_SECOND = 25.0
"""Beats per second in the whole swarm, at most, once it is large."""

CALM_PEERS, MOST_CALM_S = 50, 4.0
"""Above so many peers beats and exchanges come later than these rates ask for, up to so many seconds."""

MIN_NEIGHBOURS = 8
SWEEP_TICKS = 20
FIRST_RETRY_S = 2.0
LAST_RETRY_S = 20.0
MIN_LAST_RETRY_S = 4.0
"""The pause between two attempts to dial a peer grows up to this, by a second for each failed attempt."""

RANDOM_DIAL_CHANCE = 0.02
"""Chance, at each exchange, of dialling although there are neighbours enough."""

SILENT_EXCHANGE_CHANCE = 0.3
"""Chance that an exchange is tried with a connected neighbour from which no beat comes, if there is one."""

LEAVE_S = 0.5
_VERIFIED_AT_ONCE = 16  # about two milliseconds

logger = logging.getLogger("minga.network")


def usual_beat_s(peers: int) -> float:
    """The longest pause, in seconds, that a peer makes between two records in a swarm of so many living ones."""
    return max(MIN_BEAT_S, _period_s(peers, BEATS_PER_SECOND))


def _period_s(peers: int, per_second: float) -> float:
    """The seconds after which each peer does what the whole swarm does so often in a second, or a bit more rarely."""
    return peers / per_second + min(max(0, peers - CALM_PEERS) / per_second, MOST_CALM_S)


@loop_bound
class Gossip:
    """Runs the gossip of one node for as long as the node lives. `entries` are the entry addresses of the link."""

    def __init__(self, board: Board, node: Node, *, entries: Sequence[Address] = ()) -> None:
        self._board, self._node = board, node
        self._entries = [address for address in entries if address.peer_id != board.peer_id]
        seed = hashlib.sha256(b"gossip" + bytes.fromhex(board.peer_id)).digest()
        self._generator = random.Random(seed)
        self._pusher = RumourSpreader(board, node, self._generator)
        self._exchanging: set[PeerId] = set()
        self._serving: Counter[PeerId] = Counter()
        self._retries: dict[PeerId, tuple[float, float]] = {}  # peer -> not before, pause after the next failure
        self._dialling: set[PeerId] = set()

    @property
    def beat_s(self) -> float:
        """The longest pause, in seconds, between two records that a living peer signs."""
        return usual_beat_s(self._board.alive_count)

    def start(self) -> None:
        """Serve others and begin to gossip on the running loop; ends with the node."""
        self._node.serve(PUSH_METHOD, self._serve_push)
        self._node.serve(EXCHANGE_METHOD, self._serve_exchange)
        self._node.on_disconnected.add(self._board.connection_lost)
        self._board.on_signed.add(lambda record: self._pusher.add(record.owner, record.code, record.owner))
        self._node.clockwork.add(self)
        self._node.spawn(self._beat_forever())
        self._node.spawn(self._exchange_forever())

    async def synchronise(self, peer: PeerId, *, full: bool = True) -> None:
        """Make this board and that of `peer` equal, dialling it if need be. For joining, and whenever in doubt.

        Without `full`, records of the last moment are left to rumours, which are bringing them anyway.

        Raises `UnreachableError`, `SilentError`, or another `RemoteError` if the peer does not play along.
        """
        now = asyncio.get_running_loop().time
        async with self._node.open(peer, EXCHANGE_METHOD) as stream:
            sent_s = now()
            await stream.send(anti_entropy.summarise(self._board, full=full))
            theirs = await stream.receive(Detail)
            if (took_s := now() - sent_s) < CLOCK_READING_S:
                self._node.hear_time(peer, theirs.run_time, took_s / 2.0)
            to_send, wanted = anti_entropy.compare(self._board, theirs, self._settled(full))
            await self._send_pages(stream, to_send, wanted)
            await stream.finish()
            await self._receive_pages(stream)
            await stream.receive_end()

    async def leave(self, reason: str = "") -> None:
        """Say goodbye to all neighbours, who tell the others; takes at most half a second. Then close the node.

        A goodbye voids what this peer said before: what rumours may not have brought yet goes with it.
        """
        last_words = self._pusher.own_news()
        self._board.put(Left(reason[:200]))
        await self._pusher.push_to_all(last_words, LEAVE_S)

    # ---- serving

    async def _serve_push(self, peer: PeerId, stream: MessageStream) -> None:
        push = await stream.receive(Push)
        await self._take(push.records, peer, is_to_all=push.is_to_all)

    async def _serve_exchange(self, peer: PeerId, stream: MessageStream) -> None:
        if self._serving[peer] >= MAX_EXCHANGES_SERVED:
            raise RejectedError("too many exchanges at a time", code=RefusalCode.BUSY)
        self._serving[peer] += 1
        try:
            summary = await stream.receive(Summary)
            self._node.hear_time(peer, summary.run_time)
            async with stream.taken_within(EXCHANGE_TIMEOUT_S):
                await stream.send(anti_entropy.detail(self._board, summary, peer))
            wanted = await self._receive_pages(stream)
            await self._send_pages(stream, anti_entropy.select(self._board, wanted, self._settled(summary.full)), [])
        finally:
            self._serving[peer] -= 1
            self._serving += Counter()  # drops what is zero

    def _settled(self, full: bool) -> Settled:
        """Which records are exchanged, because rumours are not still bringing them."""
        if full:
            return anti_entropy.EVERYTHING
        now = self._board.now()
        return Settled(now - self._pusher.settled_s, now - self._pusher.urgent_settled_s)

    async def _send_pages(
        self, stream: MessageStream, entries: list[StoredRecord], wanted: list[WantedRecords]
    ) -> None:
        pages = list(anti_entropy.paged(entries, self._board.now())) or [[]]
        for number, records in enumerate(pages, 1):
            async with stream.taken_within(EXCHANGE_TIMEOUT_S):
                await stream.send(Page(records, number < len(pages), wanted))
            wanted = []

    async def _receive_pages(self, stream: MessageStream) -> list[WantedRecords]:
        wanted: list[WantedRecords] = []
        received = 0
        while True:
            page = await stream.receive(Page)
            wanted = wanted or page.wanted
            received += len(page.records)
            if received > anti_entropy.MAX_RECORDS or (page.more and not page.records):
                raise ProtocolError("an exchange without end", peer=stream.peer)
            await self._take(page.records, stream.peer)
            if not page.more:
                return wanted

    async def _take(self, records: Iterable[Aged], sender: PeerId, *, is_to_all: bool = False) -> None:
        """Put records on the board and pass on what is new. Raises `ProtocolError` at the first that is an offence."""
        board, pusher = self._board, self._pusher
        for number, aged in enumerate(records, 1):
            record, age_s = aged.record, aged.age_ms / 1000.0
            owner = record.owner
            if board.hear_again(owner, record, age_s):
                pusher.add_source(owner, record.code, sender)
            elif (verdict := board.receive_other(record, sender, age_s)) is Verdict.NEW:
                pusher.add(owner, record.code, sender, is_told_to_all=is_to_all)
            elif verdict.is_offence:
                name = self._board.kinds.name(record.code)
                raise ProtocolError(f"record {name!r} of {owner[:10]}: {verdict.value}", peer=sender)
            if number % _VERIFIED_AT_ONCE == 0:
                await asyncio.sleep(0)

    # ---- keeping going

    def on_tick(self, tick: int) -> None:
        """Called by the node's clockwork: see who fell silent."""
        self._board.watch(self.beat_s)
        if tick % SWEEP_TICKS == 0:
            self._board.sweep()

    async def _beat_forever(self) -> None:
        while True:
            due_in_s = self._board.beat(self.beat_s)
            await asyncio.sleep(due_in_s)

    async def _exchange_forever(self) -> None:
        while True:
            period_s = max(EXCHANGE_S, _period_s(self._board.alive_count, EXCHANGES_PER_SECOND))
            await asyncio.sleep(period_s * self._generator.uniform(0.8, 1.2))
            neighbours = self._node.connected()
            living = [peer for peer in neighbours if self._board.is_alive(peer)]
            silent = [peer for peer in neighbours if not self._board.is_alive(peer)]
            # A connection outlives a short split; only by asking the silent does one learn that they are back.
            chosen = silent if silent and (not living or self._generator.random() < SILENT_EXCHANGE_CHANCE) else living
            if chosen:
                self._begin_exchange(self._generator.choice(chosen))
            if not self._dialling or not neighbours:  # who has nobody waits for no dial that may never be answered
                self._consider_dialling(set(neighbours))

    def _begin_exchange(self, peer: PeerId, *, full: bool = False) -> None:
        if peer not in self._exchanging:
            self._exchanging.add(peer)
            self._node.spawn(self._exchange(peer, full=full))

    async def _exchange(self, peer: PeerId, *, full: bool) -> None:
        try:
            async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
                await self.synchronise(peer, full=full)
        except (RemoteError, TimeoutError) as error:
            logger.debug("exchange with %s failed: %s", peer[:10], error)
        finally:
            self._exchanging.discard(peer)

    # ---- staying connected

    def _consider_dialling(self, neighbours: set[PeerId]) -> None:
        now = asyncio.get_running_loop().time()
        known = {address.peer_id: address for address in [*self._entries, *self._board.addresses()]}
        candidates = [
            peer
            for peer in sorted(known.keys() - neighbours - self._dialling)
            if self._retries.get(peer, (0.0, 0.0))[0] <= now
        ]
        living = [peer for peer in candidates if self._board.is_alive(peer)]
        if len(neighbours) < MIN_NEIGHBOURS and candidates:
            chosen = self._generator.choice(living or candidates)
        elif candidates and self._node.has_room and self._generator.random() < RANDOM_DIAL_CHANCE:
            chosen = self._generator.choice(candidates)
        else:
            return
        self._dialling.add(chosen)
        self._node.spawn(self._dial(known[chosen]))

    async def _dial(self, address: Address) -> None:
        peer = address.peer_id
        try:
            is_silent = not self._board.is_alive(peer)
            await self._node.dial(address)
            self._retries.pop(peer, None)
            self._begin_exchange(peer, full=is_silent)  # the same rumours reach a living one
        except RemoteError as error:
            logger.debug("dialling %s failed: %s", peer[:10], error)
            pause = self._retries.get(peer, (0.0, FIRST_RETRY_S))[1]
            now = asyncio.get_running_loop().time()
            self._retries = {p: retry for p, retry in self._retries.items() if now - retry[0] < 2 * LAST_RETRY_S}
            self._retries[peer] = (
                now + pause,
                min(2.0 * pause, max(MIN_LAST_RETRY_S, len(self._retries)), LAST_RETRY_S),
            )
        finally:
            self._dialling.discard(peer)
