"""What a member concludes from the board is the same as if it looked at every record each time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import msgspec
import pytest

from minga.identity.keys.keys import Identity
from minga.network.gossip.record_kinds import AddressInfo, Left, Payload
from minga.network.gossip.records import Verdict, make_record
from minga.network.interface import PeerId
from minga.training.life.board_view import BoardView
from minga.training.lineage import Lineage
from minga.training.record_kinds import RUN_KINDS, Progress
from tests.worlds.board_swarm import RUN, Swarm
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import virtually

STATUSES = ("training", "syncing", "averaging", "paused", "finished")


def looked_at_all(view: BoardView) -> dict[PeerId, Progress]:
    """The progress of all other living members of the epoch, from the records themselves."""
    board, me = view._board, view._node.peer_id
    infos = {item.owner: item.payload for item in board.items(AddressInfo)}
    return {
        item.owner: item.payload
        for item in board.items(Progress)
        if item.owner != me
        and item.payload.lineage.epoch == view.lineage.epoch
        and item.owner in infos
        and infos[item.owner].role != "monitor"
    }


def assert_equal(view: BoardView, step: int) -> None:
    known = looked_at_all(view)
    active = {peer: p for peer, p in known.items() if p.status not in ("syncing", "finished")}
    settled = {peer: p for peer, p in known.items() if p.status != "syncing"}
    last = view.last_step
    reached = {
        peer: (p.status == "finished" and last is not None and p.step >= last, p.step) for peer, p in settled.items()
    }
    own = max((False, step), *((True, step) for each in reached.values() if each == (True, step)), (False, 0))
    dialable = [reached[peer] for peer, p in settled.items() if not p.client]
    bodies = [*reached.values()], dialable
    past = [sum(each > own for each in members) for members in bodies]
    newest = sorted(dialable or reached.values(), reverse=True)
    assert list(view.active().items()) == list(active.items())
    assert list(view.settled().items()) == list(settled.items())
    assert view.ahead(step) == [peer for peer, each in reached.items() if each > own]
    assert view.at(step) == [peer for peer, p in active.items() if p.step == step]
    is_half = [count > 0 and 2 * count >= len(members) + 1 for count, members in zip(past, bodies, strict=True)]
    assert view.is_behind(step) == any(is_half)
    found = view.newest()
    assert (found and (found.final, found.step)) == (newest[(len(newest) - 1) // 2] if newest else None)
    assert set(view.syncing()) == {peer for peer, p in known.items() if p.status == "syncing"}
    assert view.alive() == expected_alive(view)
    finished = {peer: p.step for peer, p in settled.items() if p.status == "finished" and not reached[peer][0]}
    assert view.through(step) & settled.keys() == {peer for peer, each in finished.items() if each <= step}
    assert view.through(step).isdisjoint(active)
    assert view.distances(step).keys() == settled.keys() - view.through(step)


def expected_alive(view: BoardView) -> list[PeerId]:
    board = view._board
    progress: Mapping[PeerId, Progress] = {item.owner: item.payload for item in board.items(Progress)}
    elsewhere = {peer for peer, each in progress.items() if each.lineage.epoch != view.lineage.epoch}
    others = {item.owner for item in board.items(AddressInfo) if item.payload.role != "monitor"}
    return sorted((others - elsewhere) | {view._node.peer_id})


@pytest.mark.parametrize("seed", [5, *map(soaked, (18, 25, 28, 33, 35))])
def test_conclusions_follow_every_change(seed: int) -> None:
    """Those of peers that write again after a goodbye, or after they were forgotten, too."""

    @virtually
    async def main() -> None:
        rng, swarm = random.Random(seed), Swarm(seed=seed)
        await swarm.grow(6)
        view = BoardView(swarm.peers[0].board, swarm.peers[0].node)
        for round_number in range(120):
            teller = rng.choice(swarm.peers[1:])
            if not teller.network.state.gone:
                status, step = rng.choice(STATUSES), rng.randrange(3, 6)
                lineage, client = Lineage(epoch=int(rng.random() < 0.1)), rng.random() < 0.2
                teller.board.put(Progress(step, 1, 1.0, status, client=client, lineage=lineage))
            if rng.random() < 0.05:
                teller.board.put(AddressInfo(rng.choice(("monitor", "trainer")), teller.network.address.direct))
            if round_number in (40, 70):
                swarm.internet.kill(teller.network)
            if round_number in (55, 110, 115):
                await swarm.add()
            if round_number in (60, 90, 105) and not teller.network.state.gone:
                teller.board.put(Left())
            if round_number == 65:
                swarm.peers[0].board.forget(teller.board.peer_id)
            if round_number == 95:
                swarm.peers[0].board.expel(teller.board.peer_id)
            if round_number in (20, 80):
                view.last_step = 4 if view.last_step is None else 5
            if round_number in (85, 100):
                view.lineage = Lineage(epoch=1 - view.lineage.epoch)
            await asyncio.sleep(0.3 * rng.random())
            for step in (2, 3, 4, 5):
                assert_equal(view, step)
        await swarm.close()

    main()


@virtually
async def test_who_was_through_stays_so_when_it_dies_until_it_is_started_again() -> None:
    swarm = Swarm(seed=3)
    await swarm.grow(3)
    me, _, other = swarm.peers
    view = BoardView(me.board, me.node)
    view.last_step = 100
    other.board.put(Progress(4, 0, 0.0, "finished"))
    await swarm.until(lambda: me.board.get(other.peer_id, Progress) is not None)
    later = BoardView(me.board, me.node)
    assert later.through(4) == {other.peer_id}
    swarm.internet.kill(other.network)  # nobody looked at the view since
    await swarm.until(lambda: not me.board.is_alive(other.peer_id))
    assert view.through(4) == {other.peer_id}
    assert not view.through(3), "it may know what came of that step"
    view.lineage = Lineage(solo=1)
    assert not view.through(4), "more rounds that peers took together led to its state"
    view.lineage = Lineage()
    me.board.forget(other.peer_id)  # as when what it said expires
    assert me.board.get(other.peer_id, Progress) is None
    assert view.through(4) == {other.peer_id}
    again = await swarm.add(private_key=other.network.private_key)
    await swarm.until(lambda: me.board.is_alive(other.peer_id))
    assert not view.through(4)
    again.board.put(Progress(4, 0, 0.0, "finished"))
    await swarm.until(lambda: view.through(4) == {other.peer_id})
    again.board.put(Progress(4, 0, 0.0, "training"))
    await swarm.until(lambda: not view.through(4))
    await swarm.close()


def test_who_came_in_while_another_entered_is_not_waited_for() -> None:
    @virtually
    async def main() -> None:
        swarm = Swarm(seed=6)
        await swarm.grow(3)
        view, newcomer = BoardView(swarm.peers[0].board, swarm.peers[0].node), swarm.peers[1]
        newcomer.board.put(Progress(3, 0, 0.0, "syncing"))
        await swarm.until(lambda: bool(view.syncing()))
        newcomer.board.put(Progress(3, 0, 0.0, "training"))
        await swarm.add()
        await asyncio.sleep(1.0)
        assert view.active()[newcomer.peer_id].status == "training"
        assert not view.syncing()
        await swarm.close()

    main()


@virtually
async def test_a_goodbye_is_told_from_a_death_also_if_it_comes_late() -> None:
    swarm = Swarm(seed=7)
    await swarm.grow(3)
    view = BoardView(swarm.peers[0].board, swarm.peers[0].node)
    killed, cut = swarm.peers[1:]
    for peer in (killed, cut):
        peer.board.put(Progress(3, 0, 0.0, "training"))
    await swarm.until(lambda: len(view.active()) == 2)
    swarm.internet.kill(killed.network)
    swarm.internet.cut(cut.network, swarm.peers[0].network)
    await swarm.until(lambda: not view.active())
    assert not any(view.said_goodbye(peer.peer_id) for peer in (killed, cut))
    cut.board.put(Left())
    swarm.internet.restore(cut.network, swarm.peers[0].network)
    await swarm.until(lambda: view.said_goodbye(cut.peer_id))
    assert not view.said_goodbye(killed.peer_id)
    await swarm.close()


@virtually
async def test_a_goodbye_that_comes_after_the_next_process_voids_what_was_said_before() -> None:
    swarm = Swarm(seed=8)
    await swarm.grow(2)
    me, teller = swarm.peers[0], Identity.generate()
    view = BoardView(me.board, me.node)

    def hear(payload: Payload, version: int) -> None:
        code, now_ms = RUN_KINDS.of(type(payload)).code, int(me.board.run_clock.now() * 1000)
        record = make_record(teller, RUN, code, version, now_ms + 60_000, RUN_KINDS.encode(payload))
        assert me.board.receive(record, swarm.peers[1].peer_id) is Verdict.NEW

    hear(AddressInfo("trainer", ("10.0.0.9:1",)), 1)
    hear(Progress(5, 1, 1.0, "training"), 2)
    assert view.at(5) == [teller.peer_id]
    hear(AddressInfo("trainer", ("10.0.0.9:2",)), 4)
    assert view.at(5) == [teller.peer_id]
    hear(Left(), 3)  # by a longer way
    assert me.board.is_alive(PeerId(teller.peer_id))
    assert not view.at(5), "its next process has not said yet where it is"
    await swarm.close()


def test_who_went_on_alone_is_told_of_an_end_that_stands_higher_and_of_no_other() -> None:
    """The one that finished may have left by then, and is of this epoch."""
    together = Lineage("f" * 32, rounds="a" * 32)

    @virtually
    async def main() -> None:
        swarm = Swarm(seed=7)
        await swarm.grow(3)
        view, (me, other, third) = BoardView(swarm.peers[0].board, swarm.peers[0].node), swarm.peers
        view.last_step = 5
        view.lineage = alone = msgspec.structs.replace(together, rounds="b" * 32, solo=2, alone=me.peer_id)
        assert not view.gave_way_too_late(5)
        # So far went, by rounds of its own, one that was alone for longer.
        lower = msgspec.structs.replace(together, rounds="c" * 32, solo=4, alone=third.peer_id)
        third.board.put(Progress(5, 0, 0.0, "finished", lineage=lower))
        await swarm.until(lambda: view.settled().get(third.peer_id) is not None)
        assert not view.gave_way_too_late(5)
        other.board.put(Progress(5, 0, 0.0, "syncing", lineage=together))
        await swarm.until(lambda: other.peer_id in view.syncing())
        assert view.with_state() == {other.peer_id, third.peer_id}
        assert not view.gave_way_too_late(5)
        other.board.put(Progress(5, 0, 0.0, "finished", lineage=together))
        await swarm.until(lambda: other.peer_id in view.settled())
        assert view.gave_way_too_late(5)
        other.board.put(Left())
        await swarm.until(lambda: other.peer_id not in view.settled())
        assert view.gave_way_too_late(5)
        view.lineage = together
        assert not view.gave_way_too_late(5)
        view.lineage = msgspec.structs.replace(alone, epoch=1)
        assert not view.gave_way_too_late(5)
        await swarm.close()

    main()
