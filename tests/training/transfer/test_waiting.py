"""Requests for a state that is not there yet: what they may cost the donor, and each other."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from minga.training.state.manifest import MAX_STEP, Manifest
from minga.training.state.snapshot import StateSnapshot
from minga.training.transfer import server
from minga.training.transfer.download import Wanted
from minga.training.transfer.messages import DESCRIBE, DescribeReply, DescribeRequest
from tests.training.transfer.test_state_sync import fetch, make_snapshot, same
from tests.worlds.transfer_world import Peer, Swarm, virtually


async def ask(liar: Peer, donor: Peer, minimum_step: int) -> None:
    while True:
        try:
            await liar.node.call(donor.id, DESCRIBE, DescribeRequest(minimum_step), DescribeReply)
        except Exception:
            await asyncio.sleep(0.1)


@virtually
async def test_a_donor_copies_no_state_that_is_older_than_what_is_waited_for(swarm: Swarm) -> None:
    donor, liar = swarm.peer(), swarm.peer()
    asking = asyncio.ensure_future(ask(liar, donor, MAX_STEP))
    copies = []
    for step in range(1, 101):
        await asyncio.sleep(1.0)
        if donor.server.wants(step):  # what the session does between two steps
            copies.append(step)
            donor.server.publish(make_snapshot(step, chunks=5))
    asking.cancel()
    assert not copies, f"{len(copies)} copies of the whole state in 100 steps, and nobody took one"


@virtually
async def test_one_peer_does_not_take_all_places_among_the_waiting(swarm: Swarm) -> None:
    donor, liar, newcomer = swarm.peer(), swarm.peer(), swarm.peer()
    asking = [asyncio.ensure_future(ask(liar, donor, MAX_STEP)) for _ in range(64)]
    await asyncio.sleep(1.0)
    fetching = asyncio.ensure_future(fetch(newcomer, [donor], Wanted(1)))
    await asyncio.sleep(1.0)
    donor.server.publish(make_snapshot(1))
    try:
        assert same(await fetching, make_snapshot(1))  # refused: too many peers are waiting for the state here
    finally:
        for each in asking:
            each.cancel()


@pytest.mark.parametrize("comes", [True, False])
def test_a_program_whose_loop_has_ended_hears_once_that_others_wait_for_its_state(
    comes: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    @virtually
    async def main(swarm: Swarm) -> None:
        donor, behind, ahead = swarm.peer(), swarm.peer(), swarm.peer()
        assert not donor.server.wants(5)
        asking = [asyncio.ensure_future(ask(behind, donor, 5)), asyncio.ensure_future(ask(ahead, donor, 6))]
        for _ in range(20):
            await asyncio.sleep(25.0)
            if comes:
                donor.server.wants(5)
        for each in asking:
            each.cancel()

    with caplog.at_level(logging.WARNING, "minga.training"):
        main(tmp_path)
    told = [each.message for each in caplog.records if "waits for the state of step 5" in each.message]
    assert len(told) == (not comes)


def test_no_copies_pile_up_while_one_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer waits, and steps are shorter than the hashing of a large state takes."""
    hashing, most = 0, 0
    real = server.build_manifest

    def slow(snapshot: StateSnapshot) -> Manifest:
        nonlocal hashing, most
        hashing += 1
        most = max(most, hashing)
        time.sleep(0.5)  # a state of 1 GB, about
        hashing -= 1
        return real(snapshot)

    monkeypatch.setattr(server, "build_manifest", slow)

    async def main() -> None:
        swarm = Swarm(tmp_path)
        donor, newcomer = swarm.peer(), swarm.peer()
        fetching = asyncio.ensure_future(fetch(newcomer, [donor], Wanted(1)))
        step = 0
        while not fetching.done():
            step += 1
            if donor.server.wants(step):
                donor.server.publish(make_snapshot(step, chunks=5))
            await asyncio.sleep(0.05)
        await donor.node.close()
        await newcomer.node.close()

    asyncio.run(asyncio.wait_for(main(), 60.0))
    assert most <= 2, f"{most} copies of the state at a time"
