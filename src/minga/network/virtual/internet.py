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
import random
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from minga.core.errors import ConfigurationError
from minga.identity.keys.keys import remember_signatures
from minga.network.interface import PeerId
from minga.network.virtual.host import HostSettings, VirtualNetwork, check_latency, check_rate
from minga.network.virtual.link import TURN_S
from minga.network.virtual.nat import Nat, punches
from minga.network.virtual.paths import Delivery, Host, NetworkPaths
from minga.network.virtual.relay import PUNCH_ROUND_TRIPS, Relay

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

        A name that is in use may be taken over only from a host that is gone: that is how a peer restarts.
        """
        number = self._made
        settings = settings or HostSettings()
        if settings.relay is not None and settings.relay not in self._relays:
            raise ConfigurationError(f"there is no relay {settings.relay}")
        name = name or f"peer-{number}"
        if name in self.hosts and not self.hosts[name].state.gone:
            raise ConfigurationError(f"a host named {name} exists")
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
            f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:4433",
        )
        network = VirtualNetwork(self, settings, state, key)
        self._made += 1
        self.hosts[name] = network
        if settings.dialable:
            self._endpoints[state.public] = network
        return network

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
        by_state = {each.state: each for each in self.hosts.values()}
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

    def _relay(self, url: str) -> Relay:
        if url not in self._relays:
            raise ConfigurationError(f"there is no relay {url}")
        return self._relays[url]

    def _set_down(self, url: str, is_down: bool) -> None:
        relay = self._relay(url)
        relay.is_down = is_down
        self.paths.flush_signals()
        for one, other in self.paths.relayed(relay):
            for end in list(one.ends):
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
        for end in list(one.state.ends):
            if other is None or end.far.host is other.state:
                end.recheck()
                end.far.recheck()
