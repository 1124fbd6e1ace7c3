"""Peers behind every kind of NAT, in the virtual world: all join by one link, and train, through a relay if need be.

The organiser is at home, too, behind a port-restricted router; its link, written out and read again by all others as a
person would pass it on, holds a relay and the address that the relay sees. For each peer:

    nat                what its router lets in
    paths              how many of its connections are "direct", and how many "relayed"
    expected           the same, by what is known of pairs of NATs (`minga.network.virtual.paths`)
    steps_contributed  steps in which its samples counted
    upload_bit         what the planner believes of its upload, bits per second; None if nothing was measured
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from benchmarks._plain_spec import plain_spec
from minga.averaging.links import Links
from minga.core.events.training import StepApplied
from minga.core.spec.run_spec import RunSpec
from minga.identity.keys.keys import Identity
from minga.identity.links.links import EntryPoint, Link
from minga.network.interface import Address, PeerId
from minga.network.virtual.internet import HostSettings, Nat
from minga.network.virtual.paths import punches, relay_url
from minga.simulation import run_virtual
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.size_only_model import SizeOnlyModel, SizeOnlyReplica, no_gradient
from minga.simulation.swarm.swarm import Swarm

RELAY: Final = "fake"
RELAY_RATE, UP, DOWN = 8e6, 20e6, 50e6
"""Bits per second: what the relay carries in all, and the lines of the peers."""
ORGANISER: Final = "organiser"
NATS: Final = {
    ORGANISER: Nat.PORT_RESTRICTED,
    "public": Nat.NONE,
    "cloud": Nat.ONE_TO_ONE,
    "cone": Nat.FULL_CONE,
    "restricted": Nat.PORT_RESTRICTED,
    "symmetric0": Nat.SYMMETRIC,
    "symmetric1": Nat.SYMMETRIC,
}
NUMEL, MICRO_BATCH, MICRO_BATCH_S, TARGET_BATCH_SIZE = 100_000, 4, 0.5, 112
LIMIT_S: Final = 3600.0


def measure_relayed(steps: int, seed: int = 1) -> dict[str, Any]:
    """The figures of all peers after so many steps, and whether they are as they should be (`ok`)."""
    return run_virtual(_measure(steps, seed), limit_s=LIMIT_S)


async def _measure(steps: int, seed: int) -> dict[str, Any]:
    swarm = Swarm(_spec(), seed=seed, make_replica=_replica, gradient=no_gradient)
    swarm.add_relay(RELAY, RELAY_RATE / 8)
    link = ""
    for name, nat in NATS.items():
        host = HostSettings(UP / 8, DOWN / 8, nat=nat, relay=relay_url(RELAY))
        entries = [Address(PeerId(e.peer_id), e.direct, e.relay) for e in Link.parse(link).entries] if link else []
        peer = swarm.add(host, TrainerSettings(MICRO_BATCH, MICRO_BATCH_S), name=name, entries=entries)
        link = link or _link(peer)
    await swarm.run_until_step(steps)
    figures = {name: _figures(swarm, peer) for name, peer in swarm.peers.items()}
    await swarm.close()
    is_ok = all(f["paths"] == f["expected"] and f["steps_contributed"] >= steps - 1 for f in figures.values())
    return {"peers": figures, "link_characters": len(link), "relay_bit": RELAY_RATE, "ok": is_ok}


def _link(peer: SimulatedPeer) -> str:
    """What the organiser prints."""
    address = peer.network.address
    entry = EntryPoint(address.peer_id, address.direct, address.relay)
    return str(Link("1f" * 32, Identity.from_seed(bytes(32)).peer_id, (entry,)))


def _figures(swarm: Swarm, peer: SimulatedPeer) -> dict[str, Any]:
    node, nat = peer.session.node, NATS[peer.name]
    facts = [node.facts(other) for other in node.connected()]
    others = [NATS[name] for name in swarm.peers if name != peer.name]
    applied = [e.event.data for e in swarm.log.of(StepApplied.kind) if e.peer == peer.name]
    links = peer.session.board.get(node.peer_id, Links)
    return {
        "nat": str(nat),
        "paths": dict(Counter(each.path for each in facts if each is not None)),
        "expected": dict(Counter("direct" if punches(nat, other) else "relayed" for other in others)),
        "steps_contributed": sum(isinstance(data, StepApplied) and data.samples > 0 for data in applied),
        "upload_bit": round(8 * links.upload) if links is not None and links.upload else None,
    }


def _replica(spec: RunSpec) -> SizeOnlyReplica:
    return SizeOnlyReplica(spec, SizeOnlyModel.of_size(NUMEL, moments=0))


def _spec() -> RunSpec:
    return plain_spec("behind NAT", TARGET_BATCH_SIZE).published({})
