"""What lies between simulated hosts: latency, loss, limits, relays, cuts, and small signals that need no bandwidth."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple

from minga.core.aio import wake
from minga.core.errors import ClosedError, MingaError, ProtocolError
from minga.network.interface import Buffer, PeerId
from minga.network.meta_bytes import fill, is_meta
from minga.network.virtual.process import VirtualProcess

# ---- The bandwidth of a simulated host: its uplink and its downlink.
#
# Theory of operation. A link serves the waiting pipes in turn, one quantum each. So concurrent transfers share its
# rate evenly, and a transfer that is limited elsewhere leaves its share to the others. A quantum is what the link
# carries in `QUANTUM_S`, within bounds. It is less where so many pipes wait that their turns would come more rarely
# than every `turn_s`. So it is short enough for fairness, and long enough that the cost of a simulated second does not
# grow with the rate.
#
# On real links turns are as short as packets, and peers that measure their links notice the difference. With coarse
# turns bytes come in bursts, which makes slow links that several streams share look faster by up to a quarter. A pipe
# that had nothing to carry for a whole turn comes first when it has (as with fq_codel). Otherwise small messages would
# wait for a quantum of every transfer, where packets are much shorter. Work is planned up to `AHEAD_S` in advance,
# which saves most timers of small messages; the moments of departure and arrival stay exact.


QUANTUM_S, TURN_S = 0.02, 0.5
MIN_QUANTUM_BYTES = 1200
MAX_QUANTUM_BYTES = 256 << 10
AHEAD_S = 0.001
PACKET_BYTES = 1200
"""Payload of one packet, as QUIC sends it before it has measured the path."""


class Quantum(NamedTuple):
    """Bytes that travel together; `end` says that the stream ends after them."""

    pieces: list[memoryview]
    size: int
    end: bool

    def split(self, size: int) -> tuple[Quantum, Quantum]:
        """The first `size` bytes, and the rest."""
        queue = list(self.pieces)
        pieces, taken = take_pieces(queue, size)
        return Quantum(pieces, taken, False), Quantum(queue, self.size - taken, self.end)


def take_pieces(queue: list[memoryview], room: int) -> tuple[list[memoryview], int]:
    """Take up to `room` bytes from the front of `queue`; returns them and how many they are."""
    pieces: list[memoryview] = []
    size = 0
    while queue and size < room:
        piece = queue.pop(0)
        if len(piece) > room - size:
            queue.insert(0, piece[room - size :])
            piece = piece[: room - size]
        pieces.append(piece)
        size += len(piece)
    return pieces, size


class Clock:
    """The loop's time and timers, for code that belongs to no simulated process."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        """Seconds by the running loop."""
        self._context = contextvars.Context()

    def soon(self, callback: Callable[..., object], *args: object) -> asyncio.Handle:
        """Call back in the next turn of the loop: bytes written in this turn travel together."""
        return self.loop.call_soon(callback, *args, context=self._context)

    def at(self, when: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        """Call back at loop time `when`, whatever process is running now."""
        return self.loop.call_at(when, callback, *args, context=self._context)


class LineDirection:
    """One direction of a host's access link, `rate` in bytes per second (None: without limit).

    Each of those that share it has its turn at least about every `turn_s` seconds.
    """

    def __init__(self, clock: Clock, rate: float | None, turn_s: float = TURN_S) -> None:
        self.rate, self.turn_s = rate, turn_s
        self._clock = clock
        self._frozen = False
        self._ready: deque[Pipe] = deque()
        self._fresh: deque[Pipe] = deque()  # they come first, once
        self._queued: set[Pipe] = set()
        self._busy_until = 0.0
        self._timer: asyncio.Handle | None = None

    def offer(self, pipe: Pipe) -> None:
        """`pipe` has something to carry."""
        if pipe not in self._queued:
            self._queued.add(pipe)
            self._fresh.append(pipe)
        if self._timer is None:
            self._timer = self._clock.soon(self._serve)

    def pass_on(self, pipe: Pipe, quantum: Quantum) -> bool:
        """Carry what came from elsewhere at once, if the link is free and nothing waits; returns whether it did.

        It is what `offer` does in the next turn, for most of what arrives and at a third of the cost.
        """
        if self._timer is not None or self._queued or self._frozen:
            return False
        now = self._clock.now()
        start = max(now, self._busy_until)
        if start - now > AHEAD_S or (quantum.size > MIN_QUANTUM_BYTES and quantum.size > self._quantum_bytes()):
            return False
        self._busy_until = start + (quantum.size / self.rate if self.rate is not None else 0.0)
        pipe.forward(self, quantum, self._busy_until)
        return True

    def settle(self) -> None:
        """Send the bytes that were written in this turn, as far as the link is free."""
        if self._timer is not None and not isinstance(self._timer, asyncio.TimerHandle):
            self._timer.cancel()
            self._serve()

    def freeze(self, frozen: bool) -> None:
        """Let nothing through until further notice, or go on."""
        self._frozen = frozen
        if not frozen and self._timer is None:
            self._timer = self._clock.soon(self._serve)

    def clear(self) -> None:
        """Forget all that waits."""
        self._ready.clear()
        self._fresh.clear()
        self._queued.clear()

    def _quantum_bytes(self) -> int:
        if self.rate is None:
            return MAX_QUANTUM_BYTES
        seconds = min(QUANTUM_S, self.turn_s / (1 + len(self._queued)))
        return int(min(max(self.rate * seconds, MIN_QUANTUM_BYTES), MAX_QUANTUM_BYTES))

    def _serve(self) -> None:
        self._timer = None
        while (self._fresh or self._ready) and not self._frozen:
            now = self._clock.now()
            start = max(now, self._busy_until)
            if start - now > AHEAD_S:
                self._timer = self._clock.at(start, self._serve)
                return
            is_fresh = bool(self._fresh)
            pipe = (self._fresh or self._ready).popleft()
            self._queued.discard(pipe)
            quantum = pipe.take(self, self._quantum_bytes())
            if quantum is None:
                continue
            self._busy_until = start + (quantum.size / self.rate if self.rate is not None else 0.0)
            if (pipe.has_more(self) or (is_fresh and self._ready)) and pipe not in self._queued:
                self._queued.add(pipe)
                self._ready.append(pipe)
            pipe.forward(self, quantum, self._busy_until)


def resend_delay_s(rng: random.Random, size: int, loss: float, round_trip_s: float) -> float:
    """Seconds by which lost and resent packets delay `size` bytes, each packet being lost with chance `loss`.

    A loss is noticed after 5/4 round trips plus 25 ms (an acknowledgement may be held back that long), and what is
    sent again may be lost again.
    """
    packets = max(1, -(-size // PACKET_BYTES))
    rounds = 0
    while rounds < 20 and rng.random() > (1.0 - loss) ** packets:
        rounds += 1
        # Of the lost packets about a share `loss` is lost once more; at least one packet is under way.
        packets = max(1, round(packets * loss))
    return rounds * (1.25 * round_trip_s + 0.025)


# ---- Kinds of NAT: what the router of a simulated host lets in, and which two hosts get a direct path.
#
# A router gives a host that sends a *mapping*, an outer port, and *filters* what comes back to it. What follows for
# two hosts is known from practice (RFC 4787, sections 4 and 5; RFC 5128, section 3): a host whose router lets anybody
# in is dialled. Two hosts whose routers keep one mapping for all destinations *punch holes*: told by a relay, both
# send at once, and each lets the other in. A symmetric router has another port for each destination, which the far
# router does not expect, unless that router lets anybody in.


class Nat(StrEnum):
    """What is between a simulated host and the internet."""

    NONE = "none"
    """Nothing: a public address of its own."""
    ONE_TO_ONE = "one-to-one"
    """The host has a private address, and everything that reaches its public one; so has a host with a forwarded port.
    It knows the public address, because that was announced."""
    FULL_CONE = "full-cone"
    """One outer port for all destinations, through which anybody gets in."""
    PORT_RESTRICTED = "port-restricted"
    """One outer port for all destinations, which lets in the addresses and ports to which the host has sent."""
    SYMMETRIC = "symmetric"
    """Another outer port for each destination, which lets in that destination only."""

    @property
    def lets_in(self) -> bool:
        """Whether any host that knows the public address gets in."""
        return self not in (Nat.PORT_RESTRICTED, Nat.SYMMETRIC)

    @property
    def has_one_port(self) -> bool:
        """Whether all destinations see the host at the same port."""
        return self is not Nat.SYMMETRIC


def punches(one: Nat, other: Nat) -> bool:
    """Whether two hosts get a direct path once a relay has told each of the other."""
    return one.lets_in or other.lets_in or (one.has_one_port and other.has_one_port)


# ---- A simulated relay: a server in the middle of the paths between hosts that get no direct one.
#
# Theory of operation. All that a relay carries shares its rate evenly. A sender gives it no more than its share,
# because a transport finds out how fast it may send; so a stream that begins on a relayed path waits with the sender,
# as on a limited path. A stream keeps the rate of the path on which it began, also when a direct path appears
# meanwhile.


PUNCH_ROUND_TRIPS: Final = 3.0
"""Hole punching takes so many round trips over the relay: addresses both ways, a probe both ways, its confirmation."""


def relay_url(name: str) -> str:
    """The URL of the relay that scenarios and scripts call by this name."""
    return f"https://{name}.example"


class Relay:
    """One relay: `line` is what it carries in all, `latency_s` one-way to the middle of its region."""

    def __init__(self, url: str, line: LineDirection, latency_s: float, region: str) -> None:
        self.url, self.line, self.latency_s, self.region = url, line, latency_s, region
        self.is_down = False


class Delivery(NamedTuple):
    """`size` bytes of a stream reached the reader's buffer of host `target` at loop time `time`."""

    time: float
    source: str
    target: str
    size: int


class Host:
    """The state of a simulated host that its connections and pipes need."""

    def __init__(
        self,
        name: str,
        peer_id: PeerId,
        up: LineDirection,
        down: LineDirection,
        latency_s: float,
        loss: float,
        region: str = "",
        nat: Nat = Nat.NONE,
        public: str = "",
    ) -> None:
        self.name, self.peer_id, self.region = name, peer_id, region
        self.nat, self.public = nat, public
        self.up, self.down = up, down
        self.latency_s, self.loss = latency_s, loss
        self.process = VirtualProcess(name)
        self.stalled = False
        self.gone = False
        """Closed or killed."""
        self.is_shut = False
        """Stalled or gone: only then does `gate` have something to do, which most operations can so do without."""
        self._waiting: dict[asyncio.Future[None], None] = {}

    def seen_by(self, other: Host) -> str:
        """The `ip:port` at which `other` sees it: at a symmetric NAT, a port of its own for each."""
        ip, _, port = self.public.rpartition(":")
        return f"{ip}:{port if self.nat.has_one_port else 10_000 + int(other.peer_id[:8], 16) % 50_000}"

    async def gate(self) -> None:
        """Every operation passes here: it hangs while the host is stalled, and fails once the host is gone."""
        while self.stalled and not self.gone:
            await self._wait(asyncio.get_running_loop().create_future())
        if self.gone:
            raise ClosedError("this network was closed")

    async def sleep(self, clock: Clock, seconds: float) -> None:
        """Wait, and pass the gate; fails early if the host goes meanwhile."""
        future = clock.loop.create_future()
        timer = clock.at(clock.now() + seconds, _release, future)
        try:
            await self._wait(future)
        finally:
            timer.cancel()
        await self.gate()

    def freeze(self, stalled: bool) -> None:
        """Stop or continue everything that this host does."""
        self.up.settle()
        self.stalled = stalled
        self.is_shut = stalled or self.gone
        self.up.freeze(stalled)
        self.down.freeze(stalled)
        if stalled:
            self.process.stop()
        else:
            self._release_all()
            self.process.resume()

    def vanish(self) -> None:
        """Let nothing more leave or arrive, and wake all operations, which then fail."""
        self.up.settle()
        self.gone = self.is_shut = True
        self.up.clear()
        self.down.clear()
        self._release_all()

    async def _wait(self, future: asyncio.Future[None]) -> None:
        self._waiting[future] = None
        try:
            await future
        finally:
            self._waiting.pop(future, None)

    def _release_all(self) -> None:
        for future in list(self._waiting):
            _release(future)


class LineEnd:
    """One end of a connection between two hosts, and what it moved so far."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.bytes_sent = self.bytes_received = 0


class NetworkPaths:
    """All pairs of hosts. `rng` decides about losses; `on_delivery` hears of every delivery."""

    def __init__(
        self,
        rng: random.Random,
        *,
        window_bytes: int,
        idle_timeout_s: float,
        turn_s: float,
        on_delivery: Callable[[Delivery], None] | None,
    ) -> None:
        self.clock, self._turn_s = Clock(), turn_s
        self.window_bytes, self.idle_timeout_s = window_bytes, idle_timeout_s
        self._rng, self._on_delivery = rng, on_delivery
        self._latencies_s: dict[tuple[Host, Host], float] = {}
        self._region_latencies_s: dict[tuple[str, str], float] = {}
        self._region_rates: dict[tuple[str, str], float] = {}
        self._limits: dict[tuple[Host, Host], LineDirection] = {}
        self._relays: dict[tuple[Host, Host], Relay] = {}
        self._cuts: dict[tuple[Host, Host], None] = {}
        self._held: dict[tuple[Host, Host], list[Callable[[], None]]] = {}

    def latency_s(self, source: Host, target: Host) -> float:
        """One-way seconds from `source` to `target` without queueing."""
        if self._relays and (relay := self._relays.get((source, target))) is not None:
            return self._across_s(source, relay) + self._across_s(relay, target)
        if self._latencies_s and (known := self._latencies_s.get((source, target))) is not None:
            return known
        return self._across_s(source, target)

    def set_latency(self, first: Host, second: Host, seconds: float) -> None:
        """Fix the one-way latency of a pair, both ways."""
        self._latencies_s[first, second] = self._latencies_s[second, first] = seconds

    def set_region_latency(self, first: str, second: str, seconds: float) -> None:
        """Add seconds to the one-way latency between two regions, both ways."""
        self._region_latencies_s[first, second] = self._region_latencies_s[second, first] = seconds

    def set_region_rate(self, first: str, second: str, rate: float) -> None:
        """Let no more than `rate` bytes per second pass on each path between two regions, both ways."""
        self._region_rates[first, second] = self._region_rates[second, first] = rate

    def relay(self, one: Host, other: Host) -> Relay | None:
        """The relay through which two hosts talk at present; None if they have a direct path, or do not talk."""
        return self._relays.get((one, other))

    def set_relay(self, one: Host, other: Host, relay: Relay | None) -> None:
        """Let two hosts talk through a relay, or directly."""
        for pair in ((one, other), (other, one)):
            if relay is None:
                self._relays.pop(pair, None)
            else:
                self._relays[pair] = relay

    def relayed(self, relay: Relay | None = None) -> list[tuple[Host, Host]]:
        """The pairs that talk through `relay`, or through any, each in both orders."""
        return [pair for pair, used in self._relays.items() if relay is None or used is relay]

    def link(self, rate: float | None) -> LineDirection:
        """One more link, or limit of a path."""
        return LineDirection(self.clock, rate, self._turn_s)

    def limit(self, source: Host, target: Host) -> LineDirection | None:
        """What the path from `source` to `target` carries, if that is limited."""
        if (relay := self.relay(source, target)) is not None:
            return relay.line
        pair, regions = (source, target), (source.region, target.region)
        if pair not in self._limits and regions in self._region_rates:
            self._limits[pair] = self.link(self._region_rates[regions])
        return self._limits.get(pair)

    def set_limit(self, source: Host, target: Host, rate: float | None) -> None:
        """Let no more than `rate` bytes per second pass from `source` to `target`."""
        if (known := self._limits.get((source, target))) is not None:
            known.rate = rate
        else:
            self._limits[source, target] = self.link(rate)

    def loss(self, source: Host, target: Host) -> float:
        """Chance that a packet is lost on either host's link."""
        return 1.0 - (1.0 - source.loss) * (1.0 - target.loss)

    def lost(self, source: Host, target: Host) -> bool:
        """Throw the dice for one packet."""
        loss = self.loss(source, target)
        return loss > 0 and self._rng.random() < loss

    def travel_s(self, source: Host, target: Host, size: int) -> float:
        """Seconds from leaving the uplink to reaching the downlink, with the time for sending lost packets again."""
        latency = self.latency_s(source, target)
        if not source.loss and not target.loss:
            return latency
        loss = self.loss(source, target)
        return latency + resend_delay_s(self._rng, size, loss, 2 * latency)

    def may_leave(self, source: Host, target: Host) -> bool:
        """Whether the source can send towards the target (which need not be there)."""
        return not source.gone and not ((self._cuts or self._relays) and self._is_cut(source, target))

    def is_open(self, source: Host, target: Host) -> bool:
        """Whether what is under way can arrive now."""
        return not target.is_shut and not ((self._cuts or self._relays) and self._is_cut(source, target))

    def is_silent(self, one: Host, other: Host) -> bool:
        """Whether `one` hears nothing of `other`, or `other` nothing of `one`, so that the connection will time out."""
        if other.gone or other.stalled or one.stalled:
            return True
        return self._is_cut(one, other) or self._is_cut(other, one)

    def cut(self, source: Host, target: Host) -> None:
        """Let nothing pass from `source` to `target` from now on."""
        self._cuts[source, target] = None

    def restore(self, source: Host, target: Host) -> None:
        """Let pass what was held back, and everything from now on."""
        self._cuts.pop((source, target), None)

    def take_over(self, former: Host, host: Host) -> None:
        """Let what was set for the pairs of a host that is gone hold for those of the one in its place."""
        tables: tuple[dict[tuple[Host, Host], Any], ...] = (self._latencies_s, self._limits, self._cuts)
        for table in tables:
            for one, other in [pair for pair in table if former in pair]:
                now = (host if one is former else one, host if other is former else other)
                table[now] = table.pop((one, other))

    def signal(self, source: Host, target: Host, action: Callable[[], None]) -> None:
        """Do `action` at the target after the latency: a credit, a reset or a goodbye, which are a packet each."""
        if self.may_leave(source, target) and not source.stalled:
            self.clock.at(self.clock.now() + self.latency_s(source, target), self._signalled, source, target, action)
        elif not source.gone:
            self._held.setdefault((source, target), []).append(action)

    def flush_signals(self) -> None:
        """Let pass the signals whose path is open again."""
        for (source, target), actions in list(self._held.items()):
            if self.is_open(source, target) and not source.stalled:
                del self._held[source, target]
                for action in actions:
                    self._signalled(source, target, action)
            elif target.gone:
                del self._held[source, target]

    def forget_signals(self, source: Host) -> None:
        """The source is gone, and with it what a cut kept it from sending, and its relayed paths."""
        for pair in [pair for pair in self._held if pair[0] is source and self._is_cut(*pair)]:
            del self._held[pair]
        for pair in [pair for pair in self._relays if source in pair]:
            del self._relays[pair]

    def record(self, source: Host, target: Host, quantum: Quantum) -> None:
        """Report a delivery."""
        if self._on_delivery is not None:
            self._on_delivery(Delivery(self.clock.now(), source.name, target.name, quantum.size))

    def _across_s(self, source: Host | Relay, target: Host | Relay) -> float:
        if self._region_latencies_s:
            between = self._region_latencies_s.get((source.region, target.region), 0.0)
            return source.latency_s + between + target.latency_s
        return source.latency_s + target.latency_s

    def _is_cut(self, source: Host, target: Host) -> bool:
        """Whether nothing passes from `source` to `target`: the path is cut, or the relay on it is down."""
        if self._relays and (relay := self._relays.get((source, target))) is not None and relay.is_down:
            return True
        return (source, target) in self._cuts

    def _signalled(self, source: Host, target: Host, action: Callable[[], None]) -> None:
        if self.is_open(source, target):
            action()
        elif not target.gone:
            self._held.setdefault((source, target), []).append(action)


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# ---- One direction of a simulated stream.
#
# Theory of operation. Bytes go from the writer's queue through the sending host's uplink, the path with its latency
# and losses, the receiving host's downlink and into the reader's buffer; nothing is copied before the reader takes it.
# The writer may have at most a window of bytes under way that the reader has not taken yet. Bytes that the path holds
# back, because it is cut or the receiver is stopped, go on in order when it opens again, as resent packets would.
#
# A limited path comes first: bytes that it does not let through yet wait with the sender and take nothing of the
# uplink, as with a transport that knows how fast it may send.
#
# What waits is kept in lists, though it is taken from their front: most hold nothing or one entry, and a large swarm
# has a hundred thousand of them, of which an empty `deque` would take 800 bytes each.


SEND_BUFFER_BYTES = 64 << 10
"""Bytes that a writer may leave unsent."""

PROMPT_S = 1e-4
"""Delays on the downlink below this are counted against its rate but not waited for."""


class Filling:
    """A buffer that is filled as bytes come, and what hears of them; `error` if it cannot take them."""

    __slots__ = ("context", "error", "filled", "target", "told")

    def __init__(
        self, target: memoryview, told: tuple[Callable[[int], None], ...], context: contextvars.Context
    ) -> None:
        self.target, self.told, self.context = target, told, context
        self.filled = 0
        self.error: Exception | None = None

    @property
    def missing(self) -> int:
        """How many bytes have not come."""
        return len(self.target) - self.filled


class Pipe:
    """Bytes on their way from one end of a connection to the other."""

    def __init__(
        self, paths: NetworkPaths, source: LineEnd, target: LineEnd, announce: Callable[[], None] | None
    ) -> None:
        self._source, self._target = source, target
        self._paths = paths
        self._window = paths.window_bytes
        self._limit = paths.limit(source.host, target.host)
        self._entry = self._limit or source.host.up
        self._announce = announce  # called when the first bytes arrive; None if the receiver knows the stream
        self.unsent = 0
        self.finished = False  # the writer called finish
        self.ended = False  # the end has reached the reader
        self.write_error: Callable[[], MingaError] | None = None
        self.read_error: Callable[[], MingaError] | None = None
        self._queue: list[memoryview] = []
        self._end_sent = False
        self._sent = self._credited = self._uncredited = 0
        self._last_arrival = 0.0
        self._admitted: list[Quantum] = []  # by the limit of the path
        self._wire: list[Quantum] = []
        self._arrived: list[Quantum] = []
        self._served: list[Quantum] = []
        self._held_on_wire = self._held_on_downlink = 0
        self._buffer: list[memoryview] = []
        self._filling: Filling | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    # ---- the writer's end

    def put(self, data: Buffer) -> None:
        """Queue bytes, which the caller must not change afterwards, or meta ones."""
        self._queue.append(memoryview(data))
        self.unsent += len(data)
        self._entry.offer(self)

    def finish(self) -> None:
        """Queue the end of the stream."""
        if not self.finished:
            self.finished = True
            self._entry.offer(self)

    async def wait_writable(self) -> None:
        """Wait until some bytes left, or writing failed."""
        self._writer = self._paths.clock.loop.create_future()
        await self._writer

    def fail_writer(self, error: Callable[[], MingaError]) -> None:
        """Make pending and later writes raise `error()`; unsent bytes are dropped."""
        if self.write_error is None:
            self.write_error = error
            self._queue.clear()
            self._admitted.clear()
            self.unsent = 0
            wake(self._writer)

    # ---- the reader's end

    def pop(self, max_bytes: int) -> bytes:
        """Take up to `max_bytes` of what is there: b"" if nothing is, zeros for what is meta."""
        if not self._buffer:
            return b""
        piece = self._buffer[0]
        if len(piece) > max_bytes:
            self._buffer[0] = piece[max_bytes:]
            piece = piece[:max_bytes]
        else:
            self._buffer.pop(0)
        self._consumed(len(piece))
        return bytes(len(piece)) if is_meta(piece) else bytes(piece)

    def fill(self, target: memoryview, told: Iterable[Callable[[int], None]]) -> Filling:
        """Move what is there to the front of `target`, and until it is full or given up whatever comes, when it comes.

        Each of `told` is called with the number of bytes, in the context of the caller. Raises `ProtocolError` if they
        are meta and `target` is not; what goes wrong later is the `error` of what is returned.
        """
        filling = self._filling = Filling(target, tuple(told), contextvars.copy_context())
        self._pour(filling)
        return filling

    def stop_filling(self) -> None:
        """Leave what comes in the buffer from now on."""
        self._filling = None

    def _pour(self, filling: Filling) -> None:
        target, filled = filling.target, filling.filled
        while self._buffer and filled < len(target):
            piece = self._buffer.pop(0)
            if len(piece) > (room := len(target) - filled):
                self._buffer.insert(0, piece[room:])
                piece = piece[:room]
            try:
                fill(target[filled : filled + len(piece)], piece)
            except ValueError as error:
                raise ProtocolError(str(error), peer=self._source.host.peer_id) from error
            filled += len(piece)
        told, filling.filled = filled - filling.filled, filled
        if filled == len(target):
            self._filling = None
        if told:
            self._consumed(told)
            for tell in filling.told:
                filling.context.run(tell, told)

    async def wait_readable(self) -> None:
        """Wait until bytes or the end came, or reading failed."""
        self._reader = self._paths.clock.loop.create_future()
        await self._reader

    def fail_reader(self, error: Callable[[], MingaError], *, drop: bool) -> None:
        """Make reads raise `error()`, after what was buffered or, with `drop`, at once."""
        if drop:
            self._buffer.clear()
        if self.read_error is None and (drop or not self.ended):
            self.read_error = error
            for stage in (self._wire, self._arrived, self._served):
                stage.clear()
            wake(self._reader)

    # ---- under way

    def flush(self) -> None:
        """The path is open again: let through what was held back."""
        on_downlink, self._held_on_downlink = self._held_on_downlink, 0
        on_wire, self._held_on_wire = self._held_on_wire, 0
        for _ in range(on_downlink):
            self._deliver()
        for _ in range(on_wire):
            self._arrive()
        self._source.host.up.offer(self)
        self._entry.offer(self)

    def has_more(self, link: LineDirection) -> bool:
        """Whether `link` should ask again."""
        if link is self._target.host.down:
            return bool(self._arrived)
        if link is not self._entry:
            return bool(self._admitted)
        return bool(self._queue) or (self.finished and not self._end_sent)

    def take(self, link: LineDirection, max_bytes: int) -> Quantum | None:
        """The next quantum for the limit of the path, the uplink of the source or the downlink of the target."""
        if link is self._target.host.down:
            return _take_together(self._arrived, max_bytes) if self._arrived else None
        if self.write_error is not None or not self._paths.may_leave(self._source.host, self._target.host):
            return None
        if link is not self._entry:
            return _take_together(self._admitted, max_bytes) if self._admitted else None
        if self._end_sent:
            return None
        room = min(max_bytes, self._window - (self._sent - self._credited))
        pieces, size = take_pieces(self._queue, room)
        self._sent += size
        self._end_sent = self.finished and not self._queue
        return Quantum(pieces, size, self._end_sent) if pieces or self._end_sent else None

    def forward(self, link: LineDirection, quantum: Quantum, when: float) -> None:
        """Let a quantum go on: to the uplink, over the path, or to the reader."""
        if link is self._target.host.down:
            self._served.append(quantum)
            if when - self._paths.clock.now() < PROMPT_S:
                self._deliver()
            else:
                self._paths.clock.at(when, self._deliver)
        elif link is self._limit:
            self._paths.clock.at(when, self._admit, quantum)
        else:
            self._leave(quantum, when)

    def _admit(self, quantum: Quantum) -> None:
        if self.write_error is None:
            self._admitted.append(quantum)
            self._source.host.up.offer(self)

    def _leave(self, quantum: Quantum, when: float) -> None:
        """It will have left the uplink at `when`."""
        self._source.bytes_sent += quantum.size
        self.unsent -= quantum.size
        if self.unsent <= SEND_BUFFER_BYTES:
            wake(self._writer)
        arrival = when + self._paths.travel_s(self._source.host, self._target.host, quantum.size)
        self._last_arrival = max(arrival, self._last_arrival)
        self._wire.append(quantum)
        self._paths.clock.at(self._last_arrival, self._arrive)

    def _arrive(self) -> None:
        if not self._paths.is_open(self._source.host, self._target.host):
            self._held_on_wire += 1
        elif self.read_error is not None:
            self._wire.clear()
        elif self._wire:
            quantum, down = self._wire.pop(0), self._target.host.down
            if self._arrived or not down.pass_on(self, quantum):
                self._arrived.append(quantum)
                down.offer(self)

    def _deliver(self) -> None:
        if self._target.host.stalled:
            self._held_on_downlink += 1
            return
        if not self._served or self._target.host.gone:
            return
        quantum = self._served.pop(0)
        self._buffer.extend(quantum.pieces)
        self._target.bytes_received += quantum.size
        self.ended = quantum.end
        self._paths.record(self._source.host, self._target.host, quantum)
        if self._announce is not None:
            announce, self._announce = self._announce, None
            announce()
        filling = self._filling
        if filling is not None:  # the reader would only go back to sleep
            try:
                self._pour(filling)
            except Exception as error:  # it is for the reader
                filling.error, self._filling = error, None
            if self._filling is not None and not self.ended:
                return
        wake(self._reader)

    def _consumed(self, size: int) -> None:
        # Credit goes back in quarters of a window: one small packet now and then, as QUIC does.
        self._uncredited += size
        if self._uncredited >= self._window // 4:
            credit, self._uncredited = self._uncredited, 0
            self._paths.signal(self._target.host, self._source.host, lambda: self._credit(credit))

    def _credit(self, size: int) -> None:
        self._credited += size
        self._entry.offer(self)


def _take_together(queue: list[Quantum], max_bytes: int) -> Quantum:
    """Up to `max_bytes` from the front of `queue`: several small ones together, or they would get less."""
    taken = queue.pop(0)
    while queue and taken.size < max_bytes:
        following = queue.pop(0)
        taken = Quantum(taken.pieces + following.pieces, taken.size + following.size, following.end)
    if taken.size > max_bytes:
        taken, rest = taken.split(max_bytes)
        queue.insert(0, rest)
    return taken
