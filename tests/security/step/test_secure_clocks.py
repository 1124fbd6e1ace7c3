"""Clocks that differ by two minutes change nothing in a secure run, which goes by what was said and not by when."""

from __future__ import annotations

import torch

from minga.network.virtual.internet import HostSettings, VirtualNetwork
from minga.security.protocol.rules import SecureSettings
from minga.simulation.attacks.gradient_attacks import WrongAggregate
from minga.simulation.attacks.protocol_attacks import WithheldReveal
from tests.worlds.secure_swarm import LATENCY_S, SecureSwarm
from tests.worlds.secure_world import Quadratic
from tests.worlds.swarm_tools import later, virtually

STEPS = 20
SKEWS_S = (-60.0, 0.0, 60.0)


class SkewedSwarm(SecureSwarm):
    """The clocks of its peers are slow, right and fast in turn."""

    def _host(self, name: str) -> VirtualNetwork:
        skew_s = SKEWS_S[len(self.names) % len(SKEWS_S)]
        host = self.internet.host(HostSettings(latency_s=LATENCY_S, clock_skew_s=skew_s), name=name)
        self.names[host.peer_id], self._addresses[host.peer_id] = name, host.address
        return host


@virtually
async def test_members_and_newcomers_with_wrong_clocks_come_to_the_same_end() -> None:
    swarm = SkewedSwarm(
        6,
        lambda: Quadratic(50, compute_s=0.5),
        {"p3": lambda allies: WrongAggregate(3, allies), "p4": lambda _: WithheldReveal(5)},
        settings=SecureSettings(probation_steps=4),
    )
    later(1.0, lambda: [swarm.join(name) for name in ("slow", "right", "fast")])
    ends = await swarm.run(STEPS)
    peers = [*swarm.honest, *(swarm.peers[name] for name in ("slow", "right", "fast"))]
    assert [peer.network.settings.clock_skew_s for peer in peers[-3:]] == list(SKEWS_S)
    assert {ends[peer.name] for peer in peers} == {None}
    first = peers[0]
    assert swarm.bans(first) == {"p3": "WRONG_AGGREGATE", "p4": "SILENT"}
    for peer in peers:
        assert peer.member.is_member
        assert isinstance(peer.work, Quadratic)
        assert isinstance(first.work, Quadratic)
        assert torch.equal(peer.work.parameters[STEPS], first.work.parameters[STEPS])
        assert peer.member._progress.standing.digest == first.member._progress.standing.digest
