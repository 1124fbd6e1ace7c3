"""One simulated host, as its protocol code sees it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from minga.core.aio import Backoff, Observers
from minga.core.errors import ClosedError, ConfigurationError, UnreachableError
from minga.network.interface import MAX_LEARNED, Address, Network, PeerId
from minga.network.virtual.connection import VirtualConnection
from minga.network.virtual.mailbox import Mailbox
from minga.network.virtual.nat import Nat
from minga.network.virtual.paths import Host, NetworkPaths
from minga.network.virtual.process import VirtualProcess
from minga.network.virtual.relay import Relay

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


class Directory(Protocol):
    """The part of its internet that a host needs."""

    dial_timeout_s: float

    @property
    def paths(self) -> NetworkPaths:
        """The paths between its hosts."""

    def at(self, endpoint: str) -> VirtualNetwork | None:
        """The host that listens at an endpoint, if there is one."""

    def at_relay(self, url: str, peer: PeerId) -> tuple[VirtualNetwork, Relay] | None:
        """The host of a peer that waits at a relay, if the relay is up."""

    def is_up(self, url: str) -> bool:
        """Whether a relay answers."""

    def punch(self, one: VirtualNetwork, other: VirtualNetwork) -> None:
        """Two hosts have begun to talk through a relay, and try for a direct path."""

    def forget(self, endpoint: str) -> None:
        """The host at this endpoint is gone."""


class Way(NamedTuple):
    """A host that answers, and the relay between; None for a direct path."""

    target: VirtualNetwork
    relay: Relay | None


class VirtualNetwork(Network):
    """One host's access to the virtual network. Made by `VirtualInternet.host`."""

    def __init__(self, internet: Directory, settings: HostSettings, state: Host, private_key: bytes) -> None:
        self.settings, self.private_key = settings, private_key
        self.state, self.clock_skew_s = state, settings.clock_skew_s
        self.mailbox: Mailbox[VirtualConnection] = Mailbox()
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
        connection = await self.mailbox.get()
        await self.state.gate()
        return connection

    async def close(self) -> None:
        """Say goodbye and vanish; a host that is stalled cannot say goodbye."""
        if not self.state.gone:
            far_ends = [end.far for end in self.state.ends]
            for end in [] if self.state.stalled else list(self.state.ends):
                end.hang_up(_closed)
            self.vanish()
            for end in far_ends:
                end.recheck()  # if the goodbye cannot reach it, it will notice the silence

    def vanish(self, *, is_noticed: bool = False) -> None:
        """End everything here without telling any peer. `is_noticed`: only the process ends; the machine closes its TCP
        connections, which are there where no relay is in between.
        """
        far_ends = [end.far for end in self.state.ends]
        paths, clock = self._paths, self._paths.clock
        for end in far_ends if is_noticed else []:
            if paths.relay(self.state, end.host) is None:
                round_trip_s = paths.latency_s(self.state, end.host) + paths.latency_s(end.host, self.state)
                clock.at(clock.now() + END_NOTICED_S + END_ROUND_TRIPS * round_trip_s, end.notice_end)
        self.state.vanish()
        self._paths.forget_signals(self.state)
        for end in list(self.state.ends):
            end.lose(_closed, drop=True)
        for end in far_ends:
            end.recheck()
        self.mailbox.fail(_closed)
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
        near = VirtualConnection(self.state, target.peer_id, self._paths)
        far = VirtualConnection(target.state, self.peer_id, self._paths)
        near.far, far.far = far, near
        self._paths.signal(self.state, target.state, lambda: target.mailbox.put(far))
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
        return any(end.far.host is target.state for end in self.state.ends)

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
