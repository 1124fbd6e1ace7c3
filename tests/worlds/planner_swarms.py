"""Groups of peers for tests of the planner: the setups of the literature, and random ones."""

from __future__ import annotations

import random

from minga.averaging.solver.division import Division, PartShare, PeerRates, SwarmRates
from minga.averaging.solver.flat import predict

GBIT = 1e9 / 8
"""Bytes per second."""

VECTOR = GBIT
"""Bytes of a vector that takes 1 s at 1 Gb/s, so that times are in the units of the literature."""


def peer(upload: float, download: float | None = None, **facts: object) -> PeerRates:
    """A peer with rates in Gb/s; symmetric if only one is given."""
    return PeerRates(upload * GBIT, (upload if download is None else download) * GBIT, **facts)  # type: ignore[arg-type]


def auxiliary(rate: float, *, receives: bool = False) -> PeerRates:
    return peer(rate, sends=False, receives=receives)


def client(rate: float) -> PeerRates:
    return peer(rate, aggregates=False)


FAST = (peer(1.0),) * 8
SLOW = (peer(0.2),) * 16
SETUPS = {
    "A": SwarmRates(FAST),
    "B": SwarmRates(SLOW),
    "C": SwarmRates(FAST + SLOW),
    "D": SwarmRates((*SLOW, auxiliary(2.5))),
    "D, the auxiliary receives": SwarmRates((*SLOW, auxiliary(2.5, receives=True))),
}


def two_sites(inside: float = 1.0, across: float = 0.05, ends: float = 100.0, size: int = 4) -> SwarmRates:
    """Two sites of `size`; rates in Gb/s of pairs inside and across, and of every peer's own link."""
    numbers = range(2 * size)
    pairs = {(i, j): (inside if i // size == j // size else across) * GBIT for i in numbers for j in numbers if i != j}
    return SwarmRates((peer(ends),) * (2 * size), pairs)


def parameter_server(rates: SwarmRates, vector_bytes: float) -> Division:
    """One peer reduces everything: that which does it fastest."""
    able = [index for index, peer in enumerate(rates.peers) if peer.aggregates]
    servers = [Division((PartShare(1.0, index),)) for index in able]
    return min(servers, key=lambda server: predict(server, rates, vector_bytes).seconds)


def random_swarm(generator: random.Random, count: int, *, paths: float = 0.0, clients: float = 0.2) -> SwarmRates:
    """Rates over two decades, download up to 5 times upload; a fraction `paths` of the paths is slower than that."""
    peers = []
    for index in range(count):
        upload = 10 ** generator.uniform(-2, 0)
        able = index == 0 or generator.random() > clients
        speed = generator.uniform(1.0, 30.0)
        peers.append(peer(upload, upload * generator.choice((1, 2, 5)), samples_per_second=speed, aggregates=able))
    pairs = {
        (i, j): 10 ** generator.uniform(-2.5, 0) * GBIT
        for i in range(count)
        for j in range(count)
        if i != j and generator.random() < paths
    }
    return SwarmRates(tuple(peers), pairs)
