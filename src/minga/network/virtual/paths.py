"""What lies between simulated hosts: latency, loss, limits, relays, cuts, and small signals that need no bandwidth."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple, Protocol

from minga.core.errors import ClosedError, MingaError
from minga.network.interface import PeerId
from minga.network.virtual.link import Clock, LineDirection, Quantum, resend_delay_s
from minga.network.virtual.nat import Nat
from minga.network.virtual.process import VirtualProcess
from minga.network.virtual.relay import Relay


class ConnectionEnd(Protocol):
    """What hosts and pipes need of one end of a connection; `far` is its other end."""

    host: Host
    paths: NetworkPaths
    bytes_sent: int
    bytes_received: int

    @property
    def far(self) -> ConnectionEnd:
        """The other end."""

    def hang_up(self, error: Callable[[], MingaError]) -> None:
        """End both sides; the far one hears of it."""

    def lose(self, error: Callable[[], MingaError], *, drop: bool) -> None:
        """End this side."""

    def recheck(self) -> None:
        """Look again whether the far end can be reached."""

    def notice_end(self) -> None:
        """The far end's process has ended."""


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
        self.ends: dict[ConnectionEnd, None] = {}
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
        return self._limits.get((source, target))

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
