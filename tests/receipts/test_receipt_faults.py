"""Members that come and go, die at the wrong moment, and come back."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from minga.core.aio import DiskWrites
from minga.network.virtual.internet import HostSettings
from minga.receipts.book_file import BookFile, read_book
from minga.receipts.receipts import Receipts
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training import session
from tests.worlds.receipt_world import given, hurry, make_swarm, receipts_of, sign_all, totals_at
from tests.worlds.swarm_tools import later, offences, virtually


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where all peers of a swarm keep their books."""
    hurry(monkeypatch)

    def kept(node: object, identity: object, file: object, token_of: object) -> Receipts:
        return Receipts(node, identity, BookFile(tmp_path, node.peer_id, DiskWrites()), token_of)  # type: ignore[arg-type,attr-defined]

    monkeypatch.setattr(session, "Receipts", kept)
    return tmp_path


async def begun(peer: SimulatedPeer) -> Receipts:
    while peer.session.member is None:
        await asyncio.sleep(0.01)
    return receipts_of(peer)


def attesters(swarm: Swarm, viewer: str) -> set[str]:
    book = receipts_of(swarm.peers[viewer]).book
    return {swarm.name_of(each.attester) for each in book.attestations(count.place for count in book.counts)}


@virtually
async def test_a_peer_killed_when_it_has_signed_goes_on_with_its_book() -> None:
    swarm = make_swarm(4)
    receipts = await begun(swarm.peers["peer-1"])
    sign, killed = receipts._sign, asyncio.Event()

    def die() -> None:
        sign()
        if receipts.book and not killed.is_set():
            killed.set()
            later(0.0, lambda: swarm.internet.kill(swarm.peers["peer-1"].network))

    receipts._sign = die  # type: ignore[method-assign]
    await killed.wait()
    await asyncio.sleep(0.5)
    before = receipts.book.counts
    assert before
    assert "peer-1" not in attesters(swarm, "peer-0"), "it died before any leader passed its word on"
    swarm.restart("peer-1")
    again = await begun(swarm.peers["peer-1"])
    assert again.book.counts[: len(before)] == before
    await swarm.run_until_step(25)
    await sign_all(swarm)
    assert "peer-1" in attesters(swarm, "peer-0")
    book = receipts_of(swarm.peers["peer-0"]).book
    signed = {
        step
        for each in book.attestations(count.place for count in book.counts)
        if swarm.name_of(each.attester) == "peer-1"
        for _, step in each.places
    }
    assert {count.step for count in before} <= signed, "of the time before it died, too"
    assert totals_at(swarm, "peer-0")["peer-1"].samples <= given(swarm)["peer-1"]
    await swarm.close()


@virtually
async def test_through_churn_most_is_attested_and_nothing_twice() -> None:
    rng, swarm = random.Random(7), make_swarm(6, clients=1)
    await swarm.run_until_step(8)
    swarm.internet.kill(swarm.peers["peer-2"].network)
    await asyncio.sleep(2.0)
    await swarm.peers["peer-3"].session.close()
    swarm.add(HostSettings(latency_s=0.005), TrainerSettings(2, rng.uniform(0.02, 0.04)))
    await asyncio.sleep(2.0)
    swarm.restart("peer-2")
    swarm.internet.kill(swarm.peers["peer-4"].network)
    await asyncio.sleep(3.0)
    await sign_all(swarm)
    gave = given(swarm)
    totals = totals_at(swarm, "peer-0")
    assert all(total.samples <= gave[name] for name, total in totals.items())
    assert totals["peer-0"].samples > 0.6 * gave["peer-0"]
    assert sum(total.samples for total in totals.values()) > 0.5 * sum(gave.values())
    assert totals["peer-3"].samples > 0, "what a peer gave before it left stays attested"
    assert offences(swarm) == []
    await swarm.close()


@virtually
async def test_a_member_that_lacks_a_count_asks_its_attester_and_has_the_word_on_all_others() -> None:
    swarm = make_swarm(3)
    receipts = await begun(swarm.peers["peer-2"])
    honest, missed = receipts.take, []

    def take(plan: object, note: bytes) -> None:
        honest(plan, note)  # type: ignore[arg-type]
        if receipts._pending is not None and not missed:
            missed.append(receipts._pending.count.step)
            receipts._pending = None

    receipts.take = take  # type: ignore[assignment,method-assign]
    await swarm.run_until_step(20)
    await sign_all(swarm)
    assert missed
    assert missed[0] not in {count.step for count in receipts.book.counts}
    assert attesters(swarm, "peer-2") == swarm.peers.keys()
    assert totals_at(swarm, "peer-2")["peer-0"].samples > 0
    assert receipts._file is not None
    kept = read_book(receipts._file.path)
    assert (kept.counts, kept.totals()) == (receipts.book.counts, receipts.totals())
    await swarm.close()
