"""One simulated host, as its protocol code sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from minga.core.errors import ClosedError, ConfigurationError, UnreachableError
from minga.network.interface import Address, Network, PeerId
from minga.network.virtual.connection import Mailbox, VirtualConnection
from minga.network.virtual.paths import Host, NetworkPaths
from minga.network.virtual.process import VirtualProcess

EPOCH_S = 1_767_225_600.0
"""Wall time at loop time zero: 2026-01-01 00:00 UTC."""

FIRST_RETRY_S = 0.25
LONGEST_RETRY_S = 1.0
"""Seconds after which a first packet without an answer is sent again: at first, and at most after doubling."""

MAX_LATENCY_S = 60.0


@dataclass(frozen=True)
class HostSettings:
    """A simulated host: rates in bytes per second (None: unlimited), one-way `latency_s` to the middle of the network,
    `loss` as the chance of losing a packet, `clock_skew_s` by which its clock is fast.
    `VirtualInternet.set_region_latency` sets the latency between the middles of two regions.

    Raises `ConfigurationError` for values that make no sense.
    """

    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None
    latency_s: float = 0.01
    loss: float = 0.0
    dialable: bool = True
    clock_skew_s: float = 0.0
    region: str = ""

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

    def forget(self, endpoint: str) -> None:
        """The host at this endpoint is gone."""


class VirtualNetwork(Network):
    """One host's access to the virtual network. Made by `VirtualInternet.host`."""

    def __init__(
        self, internet: Directory, settings: HostSettings, state: Host, private_key: bytes, endpoint: str
    ) -> None:
        self.settings, self.private_key = settings, private_key
        self.state = state
        self.mailbox: Mailbox[VirtualConnection] = Mailbox()
        self._internet, self._paths, self._endpoint = internet, internet.paths, endpoint

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
        """Where others can dial this host."""
        return Address(self.peer_id, (self._endpoint,) if self.settings.dialable else ())

    def wall_time(self) -> float:
        """Unix seconds by this host's clock, which goes with the loop's."""
        return EPOCH_S + self._paths.clock.now() + self.settings.clock_skew_s

    async def connect(self, address: Address) -> VirtualConnection:
        """Dial: a round trip, or an error after `dial_timeout_s` without an answer; see `Network`."""
        await self.state.gate()
        peer = address.peer_id
        if not address.dialable:
            raise UnreachableError("no address to dial is known", peer=peer)
        if self._endpoint in address.direct:
            raise UnreachableError("that address is this peer's own", peer=peer)
        target = await self._knock(address)
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
        return near

    async def can_dial(self, address: Address) -> bool:
        """See the interface."""
        try:
            connection = await self.connect(address)
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

    def vanish(self) -> None:
        """End everything here without telling any peer."""
        far_ends = [end.far for end in self.state.ends]
        self.state.vanish()
        self._paths.forget_signals(self.state)
        for end in list(self.state.ends):
            end.lose(_closed, drop=True)
        for end in far_ends:
            end.recheck()
        self.mailbox.fail(_closed)
        self._internet.forget(self._endpoint)

    async def _knock(self, address: Address) -> VirtualNetwork:
        """Send first packets, ever more rarely, until one is answered."""
        now = self._paths.clock.now
        deadline, pause = now() + self._internet.dial_timeout_s, FIRST_RETRY_S
        while True:
            for endpoint in address.direct:
                target = self._internet.at(endpoint)
                if target is not None and self._answers(target):
                    return target
            rest = deadline - now()
            await self.state.sleep(self._paths.clock, min(pause, rest))
            if pause >= rest:
                raise UnreachableError(f"no answer for {self._internet.dial_timeout_s:g} s", peer=address.peer_id)
            pause = min(2 * pause, LONGEST_RETRY_S)

    def _answers(self, target: VirtualNetwork) -> bool:
        paths, here, there = self._paths, self.state, target.state
        if not (paths.is_open(here, there) and paths.is_open(there, here)):
            return False
        return not (paths.lost(here, there) or paths.lost(there, here))


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
