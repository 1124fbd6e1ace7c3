"""Runs whose peers are behind NATs: they train through a relay, the planner sees it as slow, and it may fail."""

from __future__ import annotations

import itertools

import pytest

from minga.core.spec.run_spec import RunSpec
from minga.identity.links.links import EntryPoint, Link
from minga.network.interface import Address, PeerId
from minga.network.virtual.internet import HostSettings, Nat
from minga.network.virtual.paths import punches, relay_url
from minga.simulation.runner import Simulation
from minga.simulation.scenario.scenario import Scenario, changed, read_scenario
from minga.simulation.swarm.size_only_model import SizeOnlyModel, SizeOnlyReplica, no_gradient
from minga.simulation.swarm.swarm import Swarm, TrainerSettings
from minga.training.status.run_status import LossMeter, live_rates, read_status
from tests.worlds.swarm_tools import make_spec, rounds, virtually

pytestmark = pytest.mark.promise("peers-behind-nat-take-part")

RELAY_BYTES_PER_S, LINE_BYTES_PER_S = 1e6, 4e6


def replica(spec: RunSpec) -> SizeOnlyReplica:
    return SizeOnlyReplica(spec, SizeOnlyModel.of_size(200_000, moments=0))


def swarm_behind(nats: list[Nat], *, relay: bool = True) -> Swarm:
    swarm = Swarm(make_spec(64, codec="float16"), make_replica=replica, gradient=no_gradient)
    if relay:
        swarm.add_relay("main", RELAY_BYTES_PER_S)
    for nat in nats:
        add(swarm, nat, relay=relay)
    return swarm


def add(swarm: Swarm, nat: Nat, *, relay: bool = True, entries: list[Address] | None = None) -> None:
    host = HostSettings(LINE_BYTES_PER_S, LINE_BYTES_PER_S, nat=nat, relay=relay_url("main") if relay else None)
    swarm.add(host, TrainerSettings(4, 0.5), name=f"home-{len(swarm.peers)}", entries=entries)


def paths(swarm: Swarm, name: str) -> dict[str, str]:
    """The kinds of path that a peer has to the others, by their names."""
    node = swarm.peers[name].session.node
    known = {swarm.name_of(peer): node.facts(peer) for peer in node.connected()}
    return {other: facts.path for other, facts in known.items() if facts is not None}


@virtually
async def test_a_run_all_behind_symmetric_nat_trains_through_the_relay_and_the_planner_sees_it_as_slow() -> None:
    swarm = swarm_behind([Nat.SYMMETRIC] * 4)
    await swarm.run_until_step(6)
    assert {path for name in swarm.peers for path in paths(swarm, name).values()} == {"relayed"}
    assert [peer.session.settings.role for peer in swarm.alive()] == ["trainer"] * 4
    session = swarm.peers["home-0"].session
    status = read_status(session.board, session.node, swarm.spec, LossMeter())
    assert [peer.path for peer in status.peers if not peer.is_self] == ["relayed"] * 3
    live = live_rates(swarm.peers["home-0"].session.board)
    assert len(live.peers) == 4
    for rates in live.rates.peers:
        for seen in (rates.upload, rates.download):
            assert seen is not None
            assert seen <= 1.25 * RELAY_BYTES_PER_S < LINE_BYTES_PER_S / 2
    await swarm.close()


@virtually
async def test_peers_behind_every_kind_of_nat_join_by_one_link_and_train_over_the_paths_that_their_nats_allow() -> None:
    """The organiser is behind a router, too; its link is written out, and read again as a person passes it on."""
    nats = [Nat.PORT_RESTRICTED, *Nat, Nat.SYMMETRIC]
    swarm = swarm_behind(nats[:1])
    here = swarm.peers["home-0"].network.address
    link = str(Link("1f" * 32, here.peer_id, (EntryPoint(here.peer_id, here.direct, here.relay),)))
    for nat in nats[1:]:
        entries = Link.parse(link).entries
        add(swarm, nat, entries=[Address(PeerId(each.peer_id), each.direct, each.relay) for each in entries])
    await swarm.run_until_step(5)
    for number, nat in enumerate(nats):
        others = {f"home-{i}": punches(nat, other) for i, other in enumerate(nats) if i != number}
        expected = {name: "direct" if is_direct else "relayed" for name, is_direct in others.items()}
        assert paths(swarm, f"home-{number}") == expected
    assert [set(group) for group in rounds(swarm)[4].values()] == [set(swarm.peers)]
    await swarm.close()


@virtually
async def test_peers_that_need_a_relay_stop_while_it_is_down_until_one_of_them_can_be_reached_without_it() -> None:
    swarm = swarm_behind([Nat.SYMMETRIC, Nat.SYMMETRIC, Nat.PORT_RESTRICTED])
    await swarm.run_until_step(3)
    swarm.script("stop_relay main at 0s for 60s")
    await swarm.run_until_step(4, limit_s=120.0)
    reached_s = swarm.internet.paths.clock.now()
    assert reached_s > 60.0
    await swarm.run_until_step(6, limit_s=120.0)
    assert len(set(swarm.digests().values())) == 1
    assert all(len(paths(swarm, name)) == 2 for name in swarm.peers)
    swarm.script("open_nat home-1")
    await swarm.run_until_step(8)
    assert paths(swarm, "home-0") == {"home-1": "direct", "home-2": "relayed"}
    assert paths(swarm, "home-1") == {"home-0": "direct", "home-2": "direct"}
    await swarm.close()


@virtually
async def test_without_a_relay_those_behind_closed_routers_are_clients_and_the_full_cone_becomes_a_trainer() -> None:
    swarm = swarm_behind([Nat.NONE, Nat.NONE, Nat.PORT_RESTRICTED, Nat.SYMMETRIC, Nat.FULL_CONE], relay=False)
    await swarm.run_until_step(3)
    roles = [peer.session.settings.role for peer in swarm.peers.values()]
    assert roles == ["trainer", "trainer", "client", "client", "trainer"]
    await swarm.close()


def test_a_scenario_with_relay_nat_and_outage_goes_on_after_the_outage() -> None:
    soon = "stop_relay rented at 20s for 1min\nopen_nat home-1 at 2min"
    changes = [("stop.steps", "6"), ("peers.home.count", "3"), ("faults.script", soon)]
    values = changed(read_scenario("behind-nat"), changes)
    outcome = Simulation(Scenario.from_mapping(values)).run()
    ends = [step.applied_s for step in outcome.timeline.finished()]
    assert outcome.ended_by == "steps"
    assert max(late - early for early, late in itertools.pairwise(ends)) > 50.0
