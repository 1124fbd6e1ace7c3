"""The virtual network: simulated hosts behind simulated links, in one process, from one seed.

Theory of operation. Every host has an uplink and a downlink whose rates its transfers share evenly, and a latency to
the middle of the network. It has a share of lost packets, which cost time because they are sent again, and perhaps a
NAT behind which no host can dial it. The path from one host to another may be narrower than both their links.
Everything happens by timers of the running loop, so on the loop of `minga.simulation` hours pass in seconds, and equal
seeds give equal runs.

Faults give no notice. Behind a cut, a stall or a kill the other hosts see only silence; a connection counts as lost
after `idle_timeout_s` of it, as with QUIC. Meanwhile

* a *cut* holds back what is under way; it goes on when the cut ends before the timeout;
* a *stalled* host (SIGSTOP) neither sends nor receives, and its operations hang; what its `process` runs stands
  still, on a loop that knows of processes. When it resumes, it goes on with what queued up;
* a *killed* host (SIGKILL) vanishes: nothing more leaves it, its operations raise `ClosedError`, pending ones too, and
  the tasks of its `process` are cancelled;
* a host that is *closed* says goodbye: the others know it after the latency.

Not modelled: congestion control (links are shared evenly at once), routers in the middle, relays.
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
from minga.network.virtual.paths import Delivery, Host, NetworkPaths

__all__ = ["Delivery", "HostSettings", "VirtualInternet", "VirtualNetwork"]

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
        self._made = 0

    def host(
        self, settings: HostSettings | None = None, *, name: str | None = None, private_key: bytes | None = None
    ) -> VirtualNetwork:
        """Add a host. Its Ed25519 `private_key` (32 bytes) follows from the seed and its number unless given.

        A name that is in use may be taken over only from a host that is gone: that is how a peer restarts.
        """
        number = self._made
        settings = settings or HostSettings()
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
        )
        endpoint = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:4433"
        network = VirtualNetwork(self, settings, state, key, endpoint)
        self._made += 1
        self.hosts[name] = network
        if settings.dialable:
            self._endpoints[endpoint] = network
        return network

    # ---- what goes wrong

    def kill(self, host: VirtualNetwork | str) -> None:
        """Let a host vanish without a word."""
        network = self._find(host)
        if not network.state.gone:
            network.vanish()
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

    def forget(self, endpoint: str) -> None:
        """The endpoint cannot be dialled any more."""
        self._endpoints.pop(endpoint, None)

    def _find(self, host: VirtualNetwork | str) -> VirtualNetwork:
        if isinstance(host, VirtualNetwork):
            return host
        if host not in self.hosts:
            raise ConfigurationError(f"there is no host named {host}")
        return self.hosts[host]

    def _recheck(self, one: VirtualNetwork, other: VirtualNetwork | None = None) -> None:
        """Something about one host, or about the path between two, changed."""
        self.paths.flush_signals()
        for end in list(one.state.ends):
            if other is None or end.far.host is other.state:
                end.recheck()
                end.far.recheck()
