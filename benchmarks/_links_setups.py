"""The networks of `benchmarks.links`: the setups of "Distributed Deep Learning in Open Collaborations", and three more.

Rates are those of the paper times one factor for each setup, so that the links and not this machine's processors are
what a round waits for: `SCALE`, `CROWD_SCALE` for C, which has most peers, and `HOME_SCALE` for home links, which are
slow as it is. Vectors are sized so that a round of the best plan takes many seconds, which is long against handshakes,
slow start and the bursts of the shaping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minga.averaging.solver.division import PeerRates, SwarmRates, usable
from tests.netlab import Host
from tests.worlds.lower_bound import shortest_round

SCALE, CROWD_SCALE, HOME_SCALE = 0.02, 0.01, 0.2
GIGABIT = SCALE * 1e9


@dataclass(frozen=True)
class Setup:
    """One network of peers. The `auxiliaries` have no gradients; a vector has `mib` MiB of float32.

    `server` is the peer that a parameter server is best put on, `sites` the groups of hosts that are near each other.
    """

    name: str
    hosts: tuple[Host, ...]
    mib: float
    server: str
    auxiliaries: frozenset[str] = frozenset()
    paths: Mapping[tuple[str, str], float] = field(default_factory=dict)
    sites: tuple[tuple[str, ...], ...] = ()

    @property
    def numel(self) -> int:
        """Elements of the vector."""
        return int(self.mib * (1 << 18))

    @property
    def trainers(self) -> int:
        """How many peers have gradients."""
        return len(self.hosts) - len(self.auxiliaries)

    def bound_s(self) -> float:
        """Seconds that a round without relays takes at least, by the rates that the links really have."""
        number = {host.name: i for i, host in enumerate(self.hosts)}
        peers = tuple(
            PeerRates(_bytes(host.up), _bytes(host.down), sends=host.name not in self.auxiliaries)
            for host in self.hosts
        )
        pairs = {(number[a], number[b]): rate / 8 for (a, b), rate in self.paths.items()}
        return shortest_round(usable(SwarmRates(peers, pairs)), 4.0 * self.numel)


def _bytes(rate: float | None) -> float | None:
    return None if rate is None else rate / 8


def _symmetric(prefix: str, count: int, gigabits: float, scale: float = SCALE) -> tuple[Host, ...]:
    rate = gigabits * 1e9 * scale
    return tuple(Host(f"{prefix}{i}", rate, rate) for i in range(count))


def _home() -> Setup:
    homes = tuple(Host(f"home{i}", up=HOME_SCALE * 20e6, down=HOME_SCALE * 100e6) for i in range(8))
    server = Host("aux", HOME_SCALE * 1e9, HOME_SCALE * 1e9)
    return Setup("home", (*homes, server), 4, "aux", frozenset({"aux"}))


def _sites() -> Setup:
    hosts = _symmetric("east", 4, 1.0) + _symmetric("west", 4, 1.0)
    sites = tuple(tuple(h.name for h in hosts if h.name.startswith(site)) for site in ("east", "west"))
    across = [(a, b) for here, there in (sites, sites[::-1]) for a in here for b in there]
    return Setup("sites", hosts, 7, hosts[0].name, paths=dict.fromkeys(across, 0.05 * GIGABIT), sites=sites)


def setups() -> dict[str, Setup]:
    """All setups by name.

    A: 8 x 1 Gb/s. B: 16 x 0.2 Gb/s. C: both. D: B and an auxiliary of 2.5 Gb/s. E: 8 x 0.2 Gb/s and an auxiliary of
    1 Gb/s, which best reduces nearly all and still leaves something to the others. home: 8 x 20 Mb/s up and 100 Mb/s
    down, and an auxiliary of 1 Gb/s. sites: two of 4 peers, 1 Gb/s within, and 0.05 Gb/s from any peer of one site to
    any peer of the other.
    """
    fast, slow = _symmetric("fast", 8, 1.0), _symmetric("slow", 16, 0.2)
    server = Host("aux", 2.5 * GIGABIT, 2.5 * GIGABIT)
    made = [
        Setup("A", fast, 12, "fast0"),
        Setup("B", slow, 8, "slow0"),
        Setup("C", _symmetric("fast", 8, 1.0, CROWD_SCALE) + _symmetric("slow", 16, 0.2, CROWD_SCALE), 14, "fast0"),
        Setup("D", (*slow, server), 24, "aux", frozenset({"aux"})),
        Setup("E", (*slow[:8], Host("aux", GIGABIT, GIGABIT)), 4, "aux", frozenset({"aux"})),
        _home(),
        _sites(),
    ]
    return {setup.name: setup for setup in made}
