"""Swarms whose members attest each other's contributions."""

from __future__ import annotations

import asyncio

import pytest

from minga.averaging.solver.division import Division, PartShare
from minga.identity.keys.keys import Identity
from minga.identity.links.signed_spec import SignedRunSpec
from minga.network.interface import PeerId
from minga.network.virtual.internet import HostSettings
from minga.receipts import receipts
from minga.receipts.document import verify_document, write_document
from minga.simulation.swarm.simulated_peer import TrainerSettings
from tests.worlds.receipt_world import given, hurry, make_swarm, receipts_of, sign_all, totals_at
from tests.worlds.swarm_tools import offences, virtually

ORGANISER = Identity.from_seed(bytes(32))


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@virtually
async def test_what_is_attested_is_what_was_given_up_to_the_last_count() -> None:
    swarm = make_swarm(5, clients=1, auxiliaries=1)
    await swarm.run_until_step(6)
    late = swarm.add(HostSettings(latency_s=0.005), TrainerSettings(2, 0.03))
    await swarm.run_until_step(13)
    await sign_all(swarm)
    book = receipts_of(swarm.peers["peer-0"]).book
    last = {}
    for count in book.counts:
        last |= {swarm.name_of(peer): count.step for peer in count.ids if count.claim_of(peer) is not None}
    gave = given(swarm)
    for name in ("peer-0", "peer-3", "peer-5", late.name):
        totals = totals_at(swarm, name)
        assert totals.keys() == swarm.peers.keys(), "everybody's are known to everybody"
    totals = totals_at(swarm, "peer-0")
    for name, peer in swarm.peers.items():
        # What was given after the last count is still to be claimed.
        later = sum(
            int(str(logged.event.fields["samples"]))
            for logged in swarm.log.of("step.applied")
            if logged.peer == name and int(str(logged.event.fields["step"])) > last[name]
        )
        total = totals[name]
        assert total.samples == gave[name] - later, name
        assert total.counted == total.claimed
        assert peer.network.settings.dialable or not total.reduced_bytes, "a client reduces nothing"
    # The vector is small: three reduce, and they are the same ones before and after somebody joins.
    assert sum(total.reduced_bytes > 0 for total in totals.values()) == 3
    assert totals["peer-5"].samples == 0 < totals["peer-5"].reduced_bytes, "an auxiliary only reduces"
    assert totals["peer-0"].steps == last["peer-0"]
    assert offences(swarm) == []
    data = write_document(book, SignedRunSpec.sign(swarm.spec, ORGANISER), PeerId(late.network.peer_id))
    proven = verify_document(data, swarm.spec.run_id, ORGANISER.peer_id)
    assert proven.totals == {late.network.peer_id: totals[late.name]}
    assert len(data) < 20_000
    await swarm.close()


@virtually
async def test_over_relays_the_roots_attest_what_the_sites_gave() -> None:
    """Two sites of two: the first of each is the root of a part, the second only a relay."""
    parts = (PartShare(0.5, 0, (0, 3)), PartShare(0.5, 2, (1, 2)))
    flat = Division((PartShare(1.0, 0),))
    sited = Division(parts, ((0, 1), (2, 3)))
    swarm = make_swarm(4, divide=lambda rates, *_: sited if len(rates.peers) == 4 else flat, numel=20_000)
    await swarm.run_until_step(25)
    await sign_all(swarm)
    assert any(logged.event.fields["sites"] == 2 for logged in swarm.log.of("round.begun"))
    totals, gave = totals_at(swarm, "peer-1"), given(swarm)
    for name in swarm.peers:
        assert 0.6 * gave[name] < totals[name].samples <= gave[name], name
    await swarm.close()


@virtually
async def test_the_last_round_of_a_run_has_a_count() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receipts, "COUNT_S", 1e6)
        swarm = make_swarm(3, stop_after_steps=12)
        await swarm.run_until_step(12)
        await asyncio.sleep(3.0)  # the peers see each other off, and tell what they signed
        totals, gave = totals_at(swarm, "peer-0"), given(swarm)
        for name in swarm.peers:
            assert 0.8 * gave[name] < totals[name].samples < gave[name], "all but what the last round itself had"
        await swarm.close()


@virtually
async def test_two_peers_attest_each_other_and_one_alone_attests_nothing() -> None:
    swarm = make_swarm(1)
    await swarm.run_until_step(20)
    assert len(receipts_of(swarm.peers["peer-0"]).book) == 0
    swarm.add(HostSettings(latency_s=0.005), TrainerSettings(2, 0.03))
    await asyncio.sleep(3.0)
    await sign_all(swarm)
    totals = totals_at(swarm, "peer-0")
    assert totals["peer-1"].samples > 0
    assert totals["peer-0"].samples > 0
    await swarm.close()
