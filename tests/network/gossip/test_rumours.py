"""How records spread: to everybody within a bound, whatever breaks, and with few sends while nothing does."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from minga.network.gossip import rumours
from minga.network.gossip.record_store import StoredRecord
from minga.network.gossip.records import Record, Verdict, genuine
from minga.network.gossip.rumours import RumourSpreader
from minga.network.interface import PeerId
from minga.network.virtual.internet import HostSettings
from minga.simulation import run_virtual
from minga.training.record_kinds import Progress
from tests.worlds.board_swarm import RUN, Peer, Swarm, everyone_sees
from tests.worlds.seeds import seeds, soaked
from tests.worlds.swarm_tools import virtually


def progress(step: int) -> Progress:
    return Progress(step, 0, 1.0, "training")


def in_swarm(size: int, scenario: Callable[[Swarm], Coroutine[Any, Any, None]], *, seed: int, **host: Any) -> Swarm:
    async def run() -> Swarm:
        swarm = Swarm(seed, idle_timeout_s=5.0)
        await swarm.grow(2)
        await swarm.grow(size - 2, HostSettings(**host) if host else None)
        await swarm.until(lambda: everyone_sees(swarm.peers, swarm.peers), 30.0)
        await asyncio.sleep(10.0)
        await scenario(swarm)
        await swarm.close()
        return swarm

    return run_virtual(run(), limit_s=600.0)


def drop_pushes(monkeypatch: pytest.MonkeyPatch, is_dropped: Callable[[PeerId, PeerId], bool]) -> None:
    """Pushes from one peer to another for which `is_dropped` says so take their time and bring nothing."""
    plain = RumourSpreader._push

    async def push(self: RumourSpreader, peer: PeerId, entries: list[StoredRecord]) -> None:
        if is_dropped(self._board.peer_id, peer):
            await asyncio.sleep(rumours.PUSH_TIMEOUT_S)
            raise TimeoutError
        await plain(self, peer, entries)

    monkeypatch.setattr(RumourSpreader, "_push", push)


async def everyone_hears(swarm: Swarm, writers: list[Peer], limit_s: float) -> None:
    for step, writer in enumerate(writers):
        writer.board.put(progress(step))
        expected = writer.board.get(writer.peer_id, Progress)
        living = [peer for peer in swarm.peers if not peer.network.state.gone]
        await swarm.until(
            lambda: all(p.board.get(writer.peer_id, Progress) == expected for p in living),  # noqa: B023
            limit_s,
        )


@pytest.mark.parametrize("seed", seeds(1, of=3))
@pytest.mark.parametrize("size", [soaked(5), 7, soaked(16)])
def test_records_reach_everybody_over_bad_lines_and_past_one_way_paths(
    monkeypatch: pytest.MonkeyPatch, size: int, seed: int
) -> None:
    """A quarter of all ordered pairs hears nothing by pushes, and once all know all, none is taken for lost."""
    draw = random.Random(seed)
    deaf: dict[tuple[PeerId, PeerId], bool] = {}
    drop_pushes(monkeypatch, lambda one, other: deaf.setdefault((one, other), draw.random() < 0.25))

    async def scenario(swarm: Swarm) -> None:
        for peer in swarm.peers:
            peer.log.clear()
        await everyone_hears(swarm, draw.sample(swarm.peers, 4), 6.0)
        await asyncio.sleep(5.0)

    swarm = in_swarm(size, scenario, seed=seed, latency_s=0.05, loss=0.02)
    assert [lost for peer in swarm.peers for lost in peer.kinds("member.lost")] == []


@pytest.mark.parametrize("seed", seeds(1, of=2))
def test_records_reach_everybody_while_peers_come_and_go(seed: int) -> None:
    async def scenario(swarm: Swarm) -> None:
        draw = random.Random(seed)
        for _ in range(2):
            swarm.internet.kill(draw.choice([p for p in swarm.peers[1:] if not p.network.state.gone]).network)
            await swarm.add()
            living = [peer for peer in swarm.peers if not peer.network.state.gone]
            await everyone_hears(swarm, [living[0], living[-1]], 6.0)

    in_swarm(7, scenario, seed=seed)


@pytest.mark.parametrize("seed", seeds(1, of=2))
@pytest.mark.parametrize(
    ("size", "most_records", "most_pushes"),
    [soaked(2, 1.1, 2.5), soaked(6, 1.1, 11), (8, 2.5, 15), soaked(20, 2.7, 15)],
)
def test_in_a_steady_swarm_few_records_come_twice(
    monkeypatch: pytest.MonkeyPatch, size: int, most_records: float, most_pushes: float, seed: int
) -> None:
    """`most_records` received for each that is new, `most_pushes` of each peer in a second."""
    verdicts, pushes = Counter[Verdict](), Counter[str]()
    push = RumourSpreader._push

    async def pushed(self: RumourSpreader, *arguments: Any) -> None:
        pushes["all"] += 1
        await push(self, *arguments)

    async def scenario(swarm: Swarm) -> None:
        monkeypatch.setattr(RumourSpreader, "_push", pushed)
        for peer in swarm.peers:
            peer.board.verdicts.clear()
        await asyncio.sleep(10.0)
        for peer in swarm.peers:
            verdicts.update(peer.board.verdicts)

    in_swarm(size, scenario, seed=seed)
    assert verdicts.total() < most_records * verdicts[Verdict.NEW]
    assert pushes["all"] < most_pushes * 10 * size


def test_while_one_peer_takes_nothing_the_others_repeat_what_its_owner_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a small swarm nobody repeats records of which the owner says that it tells all."""
    repeated, broken = Counter[bool](), set[tuple[PeerId, PeerId]]()
    drop_pushes(monkeypatch, lambda one, other: (one, other) in broken)
    add = RumourSpreader.add

    def added(self: RumourSpreader, owner: PeerId, code: int, source: PeerId, *, is_told_to_all: bool = False) -> None:
        if owner == source != self._board.peer_id:
            repeated[not is_told_to_all] += 1
        add(self, owner, code, source, is_told_to_all=is_told_to_all)

    async def scenario(swarm: Swarm) -> None:
        monkeypatch.setattr(RumourSpreader, "add", added)
        await asyncio.sleep(5.0)
        assert repeated[True] == 0
        assert repeated[False] > 100
        writer, deaf = swarm.peers[1], swarm.peers[3]
        broken.add((writer.peer_id, deaf.peer_id))
        await asyncio.sleep(2.0)
        assert repeated[True] > 0
        writer.board.put(progress(7))
        assert await swarm.until(lambda: deaf.board.get(writer.peer_id, Progress) == progress(7)) < 0.5
        await asyncio.sleep(20.0)

    swarm = in_swarm(5, scenario, seed=1)
    assert [lost for peer in swarm.peers for lost in peer.kinds("member.lost")] == []


def test_all_boards_of_a_process_share_one_object_and_no_forgery_takes_its_place() -> None:
    async def scenario(swarm: Swarm) -> None:
        swarm.peers[2].board.put(progress(3))
        code, owner = swarm.peers[2].board.kinds.of(Progress).code, swarm.peers[2].peer_id
        others = [peer.board for peer in swarm.peers if peer.peer_id != owner]
        await swarm.until(lambda: all(board.get(owner, Progress) == progress(3) for board in others))
        records = [board.store.owners[owner].entries[code].record for board in others]
        assert len({id(record) for record in records}) == 1
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(records[0]), type=Record)
        assert again is not records[0]
        assert genuine(again, RUN) is records[0]
        forged = msgspec.structs.replace(again, version=again.version + 1)
        assert genuine(forged, RUN) is None
        assert genuine(again, "another run") is None

    in_swarm(6, scenario, seed=0)


def test_what_a_peer_without_neighbours_says_is_told_to_the_first_that_comes() -> None:
    @virtually
    async def main() -> None:
        swarm = Swarm(1)
        alone, newcomer = Peer(swarm.internet.host(), swarm), Peer(swarm.internet.host(), swarm)
        for peer in (alone, newcomer):
            # exchanges bring all records, and beats the own ones, but later
            for later in ("_exchange_forever", "_beat_forever"):
                setattr(peer.gossip, later, asyncio.Event().wait)
            await peer.join(None)
        alone.board.put(progress(7))
        await asyncio.sleep(20.0)
        await newcomer.node.dial(alone.network.address)
        await swarm.until(lambda: newcomer.board.get(alone.peer_id, Progress) == progress(7), 2.0)
        for peer in (alone, newcomer):
            await peer.node.close()

    main()
