"""The virtual network: simulated hosts behind simulated links, in one process, from one seed.

Theory of operation. Every host has an uplink and a downlink whose rates its transfers share evenly, and a latency to
the middle of the network. It has a share of lost packets, which cost time because they are sent again. The path from
one host to another may be narrower than both their links. A host may be behind a NAT (`nat`); two hosts that get no
direct path through theirs talk through the relay that both use, and share its rate with all others that do (`relay`).
Everything happens by timers of the running loop, so on the loop of `minga.simulation` hours pass in seconds, and equal
seeds give equal runs.

Faults give no notice. Behind a cut, a stall or a kill the other hosts see only silence; a connection counts as lost
after `idle_timeout_s` of it, as with QUIC. Meanwhile

* a *cut* holds back what is under way; it goes on when the cut ends before the timeout; so does a relay that is down;
* a *stalled* host (SIGSTOP) neither sends nor receives, and its operations hang; what its `process` runs stands
  still, on a loop that knows of processes. When it resumes, it goes on with what queued up;
* a *killed* host vanishes: nothing more leaves it, its operations raise `ClosedError`, pending ones too, and
  the tasks of its `process` are cancelled. With SIGKILL alone the others notice it soon, if that is asked for;
* a host that is *closed* says goodbye: the others know it after the latency.

Not modelled: congestion control (links are shared evenly at once), routers in the middle.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from minga.core.aio import Backoff, Observers
from minga.core.errors import ClosedError, ConfigurationError, UnreachableError
from minga.identity.keys.keys import remember_signatures
from minga.network.interface import MAX_LEARNED, Address, Network, PeerId
from minga.network.interrupt import AcceptQueue
from minga.network.virtual.connection import VirtualConnection
from minga.network.virtual.paths import PUNCH_ROUND_TRIPS, TURN_S, Delivery, Host, Nat, NetworkPaths, Relay, punches
from minga.network.virtual.process import VirtualProcess

# ---- One simulated host, as its protocol code sees it.


EPOCH_S = 1_767_225_600.0
"""Wall time at loop time zero: 2026-01-01 00:00 UTC."""

FIRST_RETRY_S = 0.25
LONGEST_RETRY_S = 1.0
"""Seconds after which a first packet without an answer is sent again: at first, and at most after doubling."""

END_NOTICED_S, END_ROUND_TRIPS = 0.3, 6.0
"""Seconds and round trips until the real network is sure that a process has ended whose machine lives."""

MAX_LATENCY_S = 60.0


@dataclass(frozen=True)
class HostSettings:
    """A simulated host: rates in bytes per second (None: unlimited), one-way `latency_s` to the middle of the network,
    `loss` as the chance of losing a packet, `clock_skew_s` by which its clock is fast.
    `VirtualInternet.set_region_latency` sets the latency between the middles of two regions. A host that is not
    `dialable` only dials out, and has no address. `nat` is what its router lets in, `relay` the URL of the relay that
    it uses.

    Raises `ConfigurationError` for values that make no sense.
    """

    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None
    latency_s: float = 0.01
    loss: float = 0.0
    dialable: bool = True
    clock_skew_s: float = 0.0
    region: str = ""
    nat: Nat = Nat.NONE
    relay: str | None = None

    @property
    def takes_newcomers(self) -> bool:
        """Whether a peer that knows its address from the start gets in."""
        return self.dialable and (self.relay is not None or self.nat in (Nat.NONE, Nat.ONE_TO_ONE))

    def __post_init__(self) -> None:
        for field in ("up_bytes_per_s", "down_bytes_per_s"):
            check_rate(field, getattr(self, field))
        check_latency("latency_s", self.latency_s)
        if not 0 <= self.loss <= 0.9:
            raise ConfigurationError(f"loss must be between 0 and 0.9, not {self.loss}")
        if not math.isfinite(self.clock_skew_s):
            raise ConfigurationError(f"clock_skew_s must be finite, not {self.clock_skew_s}")


class Way(NamedTuple):
    """A host that answers, and the relay between; None for a direct path."""

    target: VirtualNetwork
    relay: Relay | None


class VirtualNetwork(Network):
    """One host's access to the virtual network. Made by `VirtualInternet.host`."""

    def __init__(self, internet: VirtualInternet, settings: HostSettings, state: Host, private_key: bytes) -> None:
        self.settings, self.private_key = settings, private_key
        self.state, self.clock_skew_s = state, settings.clock_skew_s
        self.arrivals: AcceptQueue[VirtualConnection] = AcceptQueue()
        self.ends: dict[VirtualConnection, None] = {}
        """Its ends of connections that are open."""
        self._internet, self._paths = internet, internet.paths
        self._on_address = Observers[[]]()
        self._learned: deque[str] = deque(maxlen=MAX_LEARNED)
        self._met_relay = False
        self.look_for_relay()

    @property
    def name(self) -> str:
        """The host's name in scripts and logs."""
        return self.state.name

    @property
    def process(self) -> VirtualProcess:
        """The process on this host; start its tasks by `process.run`, so that a stall stops and a kill ends them."""
        return self.state.process

    @property
    def peer_id(self) -> PeerId:
        """This host's id."""
        return self.state.peer_id

    @property
    def address(self) -> Address:
        """Where others can dial this host: where it is announced or a relay or peers see it, and its own interface."""
        if not self.settings.dialable:
            return Address(self.peer_id)
        nat, public = self.state.nat, self.state.public
        direct = dict.fromkeys(self._learned)
        if nat in (Nat.NONE, Nat.ONE_TO_ONE) or (self._met_relay and nat.has_one_port):
            direct[public] = None
        if nat is not Nat.NONE:
            direct[f"192.168.{'.'.join(public.split('.')[2:])}"] = None
        return Address(self.peer_id, tuple(direct), self.settings.relay if self._met_relay else None)

    @property
    def on_address(self) -> Observers[[]]:
        """See `Network`."""
        return self._on_address

    async def announce(self, endpoint: str) -> None:
        """See `Network`."""
        await self.state.gate()
        if self.settings.dialable and endpoint not in self.address.direct and _is_endpoint(endpoint):
            self._learned.append(endpoint)
            self._on_address.tell()

    def look_for_relay(self) -> None:
        """Take note of the own relay once it answers."""
        relay = self.settings.relay
        if relay is not None and not self._met_relay and self._internet.is_up(relay):
            self._met_relay = True
            self._on_address.tell()

    def wall_time(self) -> float:
        """Unix seconds by this host's clock, which goes with the loop's."""
        return EPOCH_S + self._paths.clock.now() + self.clock_skew_s

    def steady_time(self) -> float:
        """Seconds by the loop's clock."""
        return self._paths.clock.now()

    async def connect(self, address: Address) -> VirtualConnection:
        """Dial: a round trip, or an error after `dial_timeout_s` without an answer; see `Network`."""
        return await self._dial(address, as_stranger=False)

    async def can_dial(self, address: Address) -> bool:
        """See the interface."""
        try:
            connection = await self._dial(address, as_stranger=True)
        except UnreachableError:
            return False
        await connection.close()
        return True

    async def accept(self) -> VirtualConnection:
        """Wait for a peer that dials; see `Network`."""
        await self.state.gate()
        connection = await self.arrivals.take()
        await self.state.gate()
        return connection

    async def close(self) -> None:
        """Say goodbye and vanish; a host that is stalled cannot say goodbye."""
        if not self.state.gone:
            far_ends = [end.far for end in self.ends]
            for end in [] if self.state.stalled else list(self.ends):
                end.hang_up(_closed)
            self.vanish()
            for end in far_ends:
                end.recheck()  # if the goodbye cannot reach it, it will notice the silence

    def vanish(self, *, is_noticed: bool = False) -> None:
        """End everything here without telling any peer. `is_noticed`: only the process ends; the machine closes its TCP
        connections, which are there where no relay is in between.
        """
        far_ends = [end.far for end in self.ends]
        paths, clock = self._paths, self._paths.clock
        for end in far_ends if is_noticed else []:
            if paths.relay(self.state, end.host) is None:
                round_trip_s = paths.latency_s(self.state, end.host) + paths.latency_s(end.host, self.state)
                clock.at(clock.now() + END_NOTICED_S + END_ROUND_TRIPS * round_trip_s, end.notice_end)
        self.state.vanish()
        self._paths.forget_signals(self.state)
        for end in list(self.ends):
            end.lose(_closed, drop=True)
        for end in far_ends:
            end.recheck()
        self.arrivals.fail(_closed)
        self._internet.forget(self.state.public)

    async def _dial(self, address: Address, *, as_stranger: bool) -> VirtualConnection:
        await self.state.gate()
        peer = address.peer_id
        if not address.dialable:
            raise UnreachableError("no address to dial is known", peer=peer)
        if self.state.public in address.direct:
            raise UnreachableError("that address is this peer's own", peer=peer)
        target, relay = await self._knock(address, as_stranger=as_stranger)
        if not (as_stranger and self._talks_to(target)):
            self._paths.set_relay(self.state, target.state, relay)
        await self.state.sleep(self._paths.clock, 2 * self._paths.latency_s(self.state, target.state))
        if target.peer_id != peer:
            raise UnreachableError(f"peer {target.peer_id[:10]} answers at that address", peer=peer)
        if target.state.gone:
            raise UnreachableError("it went away while it was dialled", peer=peer)
        near = VirtualConnection(self.state, target.peer_id, self._paths, self.ends)
        far = VirtualConnection(target.state, self.peer_id, self._paths, target.ends)
        near.far, far.far = far, near
        self._paths.signal(self.state, target.state, lambda: target.arrivals.put(far))
        for end in (near, far):
            end.recheck()  # the path may have been cut in the meantime
        if relay is not None:
            self._internet.punch(self, target)
        return near

    async def _knock(self, address: Address, *, as_stranger: bool) -> Way:
        """Send first packets, ever more rarely, until one is answered: directly, or else through the relay."""
        now = self._paths.clock.now
        deadline, backoff = now() + self._internet.dial_timeout_s, Backoff(FIRST_RETRY_S, LONGEST_RETRY_S)
        while True:
            for endpoint in address.direct:
                target = self._internet.at(endpoint)
                if target is not None and self._gets_in(target, as_stranger=as_stranger) and self._answers(target):
                    return Way(target, None)
            if address.relay is not None and self.settings.relay is not None:
                found = self._internet.at_relay(address.relay, address.peer_id)
                if found is not None and self._answers(found[0]):
                    return Way(*found)
            rest, pause = deadline - now(), backoff.next_s()
            await self.state.sleep(self._paths.clock, min(pause, rest))
            if pause >= rest:
                raise UnreachableError(f"no answer for {self._internet.dial_timeout_s:g} s", peer=address.peer_id)

    def _gets_in(self, target: VirtualNetwork, *, as_stranger: bool) -> bool:
        """Whether the router of `target` lets a first packet in: a hole is open for those that it talks to already."""
        if target.state.nat.lets_in:
            return True
        is_direct = self._paths.relay(self.state, target.state) is None
        return is_direct and not as_stranger and self._talks_to(target)

    def _talks_to(self, target: VirtualNetwork) -> bool:
        return any(end.far.host is target.state for end in self.ends)

    def _answers(self, target: VirtualNetwork) -> bool:
        paths, here, there = self._paths, self.state, target.state
        if not (paths.is_open(here, there) and paths.is_open(there, here)):
            return False
        return not (paths.lost(here, there) or paths.lost(there, here))


def _is_endpoint(text: str) -> bool:
    ip, colon, port = text.rpartition(":")
    return bool(ip and colon) and port.isdecimal()


def check_rate(field: str, rate: float | None) -> None:
    """Raise `ConfigurationError` unless `rate` is None or a positive number of bytes per second."""
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise ConfigurationError(f"{field} must be positive, or None for no limit, not {rate}")


def check_latency(field: str, seconds: float) -> None:
    """Raise `ConfigurationError` unless `seconds` is a plausible one-way latency."""
    if not 0 <= seconds <= MAX_LATENCY_S:
        raise ConfigurationError(f"{field} must be between 0 and {MAX_LATENCY_S:g} seconds, not {seconds}")


def _closed() -> ClosedError:
    return ClosedError("this network was closed")


__all__ = ["Delivery", "HostSettings", "Nat", "VirtualInternet", "VirtualNetwork"]

WINDOW_BYTES = 2 << 20
IDLE_TIMEOUT_S = 30.0
DIAL_TIMEOUT_S = 5.0
SIGNATURES = 1 << 15


class VirtualInternet:
    """All simulated hosts and what lies between them; must be made on a running loop.

    Hosts are named `peer-0`, `peer-1`, … by default; every method takes a host or its name. A stream may have
    `window_bytes` under way. The streams that share a link have a turn at least about every `turn_s` seconds: less is
    nearer to real links, and takes longer to simulate. `on_delivery` is called for every piece that arrives (for
    comparing two runs).
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        window_bytes: int = WINDOW_BYTES,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        dial_timeout_s: float = DIAL_TIMEOUT_S,
        turn_s: float = TURN_S,
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> None:
        remember_signatures(SIGNATURES)  # of all hosts' records
        self.seed, self.dial_timeout_s = seed, dial_timeout_s
        self.hosts: dict[str, VirtualNetwork] = {}
        self.paths = NetworkPaths(
            random.Random(f"minga virtual network {seed}"),
            window_bytes=window_bytes,
            idle_timeout_s=idle_timeout_s,
            turn_s=turn_s,
            on_delivery=on_delivery,
        )
        self._endpoints: dict[str, VirtualNetwork] = {}
        self._relays: dict[str, Relay] = {}
        self._made = 0

    def host(
        self, settings: HostSettings | None = None, *, name: str | None = None, private_key: bytes | None = None
    ) -> VirtualNetwork:
        """Add a host. Its Ed25519 `private_key` (32 bytes) follows from the seed and its number unless given.

        A name that is in use may be taken over only from a host that is gone: that is how a peer restarts. It keeps the
        address, as a peer keeps its port, and what was done to its line, its router and its paths goes on.
        """
        number = self._made
        settings = settings or HostSettings()
        if settings.relay is not None and settings.relay not in self._relays:
            raise ConfigurationError(f"there is no relay {settings.relay}")
        name = name or f"peer-{number}"
        if name in self.hosts and not self.hosts[name].state.gone:
            raise ConfigurationError(f"a host named {name} exists")
        former = self.hosts.get(name)
        key = private_key or hashlib.sha256(f"minga virtual host {self.seed} {number}".encode()).digest()
        peer_id = PeerId(Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw().hex())
        state = Host(
            name,
            peer_id,
            self.paths.link(settings.up_bytes_per_s),
            self.paths.link(settings.down_bytes_per_s),
            settings.latency_s,
            settings.loss,
            settings.region,
            settings.nat,
            former.state.public if former else f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:4433",
        )
        if former:
            self._take_over(former, state)
        network = VirtualNetwork(self, settings, state, key)
        self._made += 1
        self.hosts[name] = network
        if settings.dialable:
            self._endpoints[state.public] = network
        return network

    def _take_over(self, former: VirtualNetwork, state: Host) -> None:
        """Let what was changed since a host was added hold for the one in its place."""
        given, left = former.settings, former.state
        if (left.up.rate, left.down.rate) != (given.up_bytes_per_s, given.down_bytes_per_s):
            state.up.rate, state.down.rate = left.up.rate, left.down.rate
        if left.nat is not given.nat:
            state.nat = left.nat
        self.paths.take_over(left, state)

    def add_relay(
        self, url: str, bytes_per_s: float | None = None, *, latency_s: float = 0.01, region: str = ""
    ) -> None:
        """Add a relay at a URL, which hosts name in their settings. All that it carries shares `bytes_per_s`."""
        check_rate("bytes_per_s", bytes_per_s)
        check_latency("latency_s", latency_s)
        if url in self._relays:
            raise ConfigurationError(f"there is a relay {url} already")
        self._relays[url] = Relay(url, self.paths.link(bytes_per_s), latency_s, region)

    # ---- what goes wrong

    def kill(self, host: VirtualNetwork | str, *, is_noticed: bool = False) -> None:
        """Let a host vanish without a word, as if its machine lost its power.

        `is_noticed`: only its process ends. The others know soon, because its machine closes its TCP connections.
        """
        network = self._find(host)
        if not network.state.gone:
            network.vanish(is_noticed=is_noticed)
            network.state.freeze(False)
            network.process.kill()

    def stall(self, host: VirtualNetwork | str) -> None:
        """Stop everything that a host does and hears, until `resume`."""
        network = self._find(host)
        if not network.state.gone and not network.state.stalled:
            network.state.freeze(True)
            self._recheck(network)

    def resume(self, host: VirtualNetwork | str) -> None:
        """Let a stalled host go on."""
        network = self._find(host)
        if not network.state.gone and network.state.stalled:
            network.state.freeze(False)
            self._recheck(network)

    def cut(self, first: VirtualNetwork | str, second: VirtualNetwork | str, *, one_way: bool = False) -> None:
        """Let nothing pass between two hosts; with `one_way` only what goes from `first` to `second` is held."""
        one, other = self._find(first), self._find(second)
        self.paths.cut(one.state, other.state)
        if not one_way:
            self.paths.cut(other.state, one.state)
        self._recheck(one, other)

    def restore(self, first: VirtualNetwork | str, second: VirtualNetwork | str) -> None:
        """End a cut in both directions."""
        one, other = self._find(first), self._find(second)
        self.paths.restore(one.state, other.state)
        self.paths.restore(other.state, one.state)
        self._recheck(one, other)

    def stop_relay(self, url: str) -> None:
        """Let a relay carry nothing until `start_relay`: hosts that need it become unreachable to each other."""
        self._set_down(url, True)

    def start_relay(self, url: str) -> None:
        """Let a relay go on."""
        self._set_down(url, False)
        for network in self.hosts.values():
            if not network.state.gone:
                network.look_for_relay()

    def set_nat(self, host: VirtualNetwork | str, nat: Nat) -> None:
        """Change what the router of a host lets in, as when a port is forwarded; open paths stay as they are, or become
        direct.
        """
        network = self._find(host)
        network.state.nat = nat
        by_state = self._by_state()
        for one, other in self.paths.relayed():
            if one is network.state and other in by_state:
                self.punch(network, by_state[other])

    def set_clock(self, host: VirtualNetwork | str, skew_s: float) -> None:
        """Set the clock of a host, so that it is fast by `skew_s` seconds from now on."""
        self._find(host).clock_skew_s = skew_s

    def set_rate(
        self, host: VirtualNetwork | str, up_bytes_per_s: float | None, down_bytes_per_s: float | None
    ) -> None:
        """Change a host's rates from the next quantum on; None is without limit."""
        check_rate("up_bytes_per_s", up_bytes_per_s)
        check_rate("down_bytes_per_s", down_bytes_per_s)
        state = self._find(host).state
        state.up.rate, state.down.rate = up_bytes_per_s, down_bytes_per_s

    def set_latency(self, first: VirtualNetwork | str, second: VirtualNetwork | str, latency_s: float) -> None:
        """Fix the one-way latency between two hosts, instead of the sum of theirs."""
        check_latency("latency_s", latency_s)
        self.paths.set_latency(self._find(first).state, self._find(second).state, latency_s)

    def set_region_latency(self, first: str, second: str, latency_s: float) -> None:
        """Add a one-way latency to all paths between hosts of two regions (or of one)."""
        check_latency("latency_s", latency_s)
        self.paths.set_region_latency(first, second, latency_s)

    def set_region_rate(self, first: str, second: str, bytes_per_s: float) -> None:
        """Limit the rate of each path between hosts of two regions (or of one), in each direction."""
        check_rate("bytes_per_s", bytes_per_s)
        self.paths.set_region_rate(first, second, bytes_per_s)

    def set_path_rate(
        self, source: VirtualNetwork | str, target: VirtualNetwork | str, bytes_per_s: float | None
    ) -> None:
        """Limit the rate from `source` to `target`, whatever their links carry; open streams keep their path."""
        check_rate("bytes_per_s", bytes_per_s)
        self.paths.set_limit(self._find(source).state, self._find(target).state, bytes_per_s)

    # ---- for the hosts

    def at(self, endpoint: str) -> VirtualNetwork | None:
        """The host that can be dialled at an endpoint."""
        return self._endpoints.get(endpoint)

    def at_relay(self, url: str, peer: PeerId) -> tuple[VirtualNetwork, Relay] | None:
        """The host of a peer that waits at a relay."""
        relay = self._relays.get(url)
        if relay is None or relay.is_down:
            return None
        waiting = (each for each in self._endpoints.values() if each.settings.relay == url and each.peer_id == peer)
        return next(((host, relay) for host in waiting), None)

    def is_up(self, url: str) -> bool:
        """Whether a relay answers."""
        return not self._relay(url).is_down

    def punch(self, one: VirtualNetwork, other: VirtualNetwork) -> None:
        """Give two hosts that talk through a relay a direct path after a while, if their NATs allow one."""
        if punches(one.state.nat, other.state.nat):
            pause_s = 2 * PUNCH_ROUND_TRIPS * self.paths.latency_s(one.state, other.state)
            self.paths.clock.at(self.paths.clock.now() + pause_s, self._go_direct, one, other)

    def forget(self, endpoint: str) -> None:
        """The endpoint cannot be dialled any more."""
        self._endpoints.pop(endpoint, None)

    def _find(self, host: VirtualNetwork | str) -> VirtualNetwork:
        if isinstance(host, VirtualNetwork):
            return host
        if host not in self.hosts:
            raise ConfigurationError(f"there is no host named {host}")
        return self.hosts[host]

    def _by_state(self) -> dict[Host, VirtualNetwork]:
        return {each.state: each for each in self.hosts.values()}

    def _relay(self, url: str) -> Relay:
        if url not in self._relays:
            raise ConfigurationError(f"there is no relay {url}")
        return self._relays[url]

    def _set_down(self, url: str, is_down: bool) -> None:
        relay = self._relay(url)
        relay.is_down = is_down
        self.paths.flush_signals()
        by_state = self._by_state()
        for one, other in self.paths.relayed(relay):
            for end in list(by_state[one].ends) if one in by_state else []:
                if end.far.host is other:
                    end.recheck()

    def _go_direct(self, one: VirtualNetwork, other: VirtualNetwork) -> None:
        relay = self.paths.relay(one.state, other.state)
        if relay is not None and not relay.is_down and punches(one.state.nat, other.state.nat):
            self.paths.set_relay(one.state, other.state, None)
            self._recheck(one, other)

    def _recheck(self, one: VirtualNetwork, other: VirtualNetwork | None = None) -> None:
        """Something about one host, or about the path between two, changed."""
        self.paths.flush_signals()
        for end in list(one.ends):
            if other is None or end.far.host is other.state:
                end.recheck()
                end.far.recheck()
