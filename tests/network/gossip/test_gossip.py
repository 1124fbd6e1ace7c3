from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec
import pytest

from minga.averaging.links import LINKS, LinkRow, Links
from minga.core.errors import ProtocolError, RejectedError, UnreachableError
from minga.identity.keys.keys import Identity
from minga.network.gossip import anti_entropy, gossip, records, rumours
from minga.network.gossip.anti_entropy import Aged, Detail, Held, Page, Push, Summary, WantedRecords
from minga.network.gossip.board import Board
from minga.network.gossip.gossip import EXCHANGE_METHOD, EXCHANGE_TIMEOUT_S
from minga.network.gossip.record_kinds import BEAT, Beat, Payload
from minga.network.gossip.record_store import MAX_DROPPED, MAX_OWNERS, PeerRecords, StoredRecord
from minga.network.gossip.records import Record, Verdict
from minga.network.gossip.rumours import METHOD as PUSH_METHOD
from minga.network.gossip.rumours import RumourSpreader
from minga.network.interface import PeerId
from minga.network.rpc import multiplexer, node
from minga.simulation import run_virtual
from minga.training.record_kinds import RUN_KINDS, Progress
from tests.worlds.board_swarm import RUN, Peer, Swarm, everyone_sees
from tests.worlds.seeds import seeds, soaked

EPOCH_MS = 1_767_225_600_000
STRANGER = Identity.from_seed(b"stranger" * 4)


def progress(step: int) -> Progress:
    return Progress(step, 0, 1.0, "training")


def in_swarm(
    size: int, scenario: Callable[[Swarm], Coroutine[Any, Any, None]], *, seed: int = 0, limit_s: float = 600.0
) -> Swarm:
    async def run() -> Swarm:
        swarm = Swarm(seed, idle_timeout_s=5.0)
        await swarm.grow(size)
        await swarm.until(lambda: everyone_sees(swarm.peers, swarm.peers), 20.0)
        await scenario(swarm)
        await swarm.close()
        return swarm

    return run_virtual(run(), limit_s=limit_s)


def losses(swarm: Swarm) -> list[tuple[str, str]]:
    return [lost for peer in swarm.peers for lost in peer.kinds("member.lost")]


def offences(peer: Peer, offender: Peer) -> list[str]:
    return [
        str(e.fields["what"]) for e in peer.log if e.kind == "peer.offence" and e.fields["peer"] == offender.peer_id
    ]


@pytest.mark.parametrize("size", [2, soaked(3), 8, soaked(20)])
def test_everyone_soon_knows_everyone_and_what_changes(size: int) -> None:
    async def scenario(swarm: Swarm) -> None:
        writer = swarm.peers[size // 2]
        for step in range(3):
            writer.board.put(progress(step))
            seconds = await swarm.until(
                lambda: all(p.board.get(writer.peer_id, Progress) == progress(step) for p in swarm.peers)  # noqa: B023
            )
            assert seconds < 0.2 + 0.5 * math.log2(size)
        await asyncio.sleep(4.0)

    swarm = in_swarm(size, scenario)
    assert losses(swarm) == []
    assert all(peer.kinds("peer.offence") == [] for peer in swarm.peers)


def test_a_newcomer_knows_everyone_at_once_and_the_entry_knows_it() -> None:
    async def scenario(swarm: Swarm) -> None:
        gone = swarm.peers[3]
        swarm.internet.kill(gone.network)
        rest = [peer for peer in swarm.peers if peer is not gone]
        await swarm.until(lambda: everyone_sees(rest, rest))
        newcomer = await swarm.add()
        everyone = [*rest, newcomer]
        assert everyone_sees([newcomer, swarm.peers[0]], everyone)  # and does not take the dead for living
        assert await swarm.until(lambda: everyone_sees(everyone, everyone)) < 1.0

    in_swarm(6, scenario)


@pytest.mark.parametrize("seed", seeds(1, of=2))
def test_a_killed_peer_is_noticed_by_all_within_three_seconds(seed: int) -> None:
    async def scenario(swarm: Swarm) -> None:
        await asyncio.sleep(15.0)
        victim = swarm.peers[2]
        swarm.internet.kill(victim.network)
        rest = [peer for peer in swarm.peers if peer is not victim]
        assert await swarm.until(lambda: everyone_sees(rest, rest)) < 3.0

    swarm = in_swarm(6, scenario, seed=seed)
    assert {peer for _, peer in losses(swarm)} == {swarm.peers[2].peer_id}


def test_what_a_peer_says_just_before_its_goodbye_is_heard_by_all() -> None:
    async def scenario(swarm: Swarm) -> None:
        leaver, *rest = swarm.peers
        heard: dict[str, int] = {}

        def listen(peer: Peer) -> None:
            def note(owner: PeerId, _: object) -> None:
                if (said := peer.board.get(owner, Progress)) is not None:
                    heard[peer.peer_id] = said.step

            peer.board.observe(note)

        for peer in rest:
            listen(peer)
        leaver.board.put(progress(29))
        await asyncio.sleep(5.0)
        leaver.board.put(progress(30))
        await leaver.gossip.leave()
        await leaver.node.close()
        assert await swarm.until(lambda: everyone_sees(rest, rest)) < 0.2
        assert heard == {peer.peer_id: 30 for peer in rest}

    in_swarm(4, scenario)


def test_a_stopped_peer_is_dropped_accuses_nobody_and_comes_back() -> None:
    async def scenario(swarm: Swarm) -> None:
        await asyncio.sleep(15.0)
        stopped = swarm.peers[1]
        rest = [peer for peer in swarm.peers if peer is not stopped]
        swarm.internet.stall(stopped.network)
        assert await swarm.until(lambda: everyone_sees(rest, rest)) < 3.0
        await asyncio.sleep(1.0)
        swarm.internet.resume(stopped.network)
        assert await swarm.until(lambda: everyone_sees(swarm.peers, swarm.peers)) < 5.0

    swarm = in_swarm(5, scenario)
    assert {peer for _, peer in losses(swarm)} == {swarm.peers[1].peer_id}


def test_a_split_heals_even_after_all_records_ran_out() -> None:
    async def scenario(swarm: Swarm) -> None:
        left, right = swarm.peers[:2], swarm.peers[2:]
        for one in left:
            for other in right:
                swarm.internet.cut(one.network, other.network)
        await swarm.until(lambda: everyone_sees(left, left) and everyone_sees(right, right), 20.0)
        await asyncio.sleep(130.0)
        for one in left:
            for other in right:
                swarm.internet.restore(one.network, other.network)
        assert await swarm.until(lambda: everyone_sees(swarm.peers, swarm.peers), 120.0) < 90.0

    in_swarm(4, scenario, limit_s=1200.0)


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_who_lost_all_neighbours_soon_finds_the_one_that_it_can_reach(seed: int) -> None:
    """As members do whose routers let nobody in, when the only peer in reach of all was started again."""

    async def scenario(swarm: Swarm) -> None:
        hub, *others, lost = swarm.peers
        for other in [hub, *others]:
            swarm.internet.cut(lost.network, other.network)
        await asyncio.sleep(60.0)
        swarm.internet.restore(lost.network, hub.network)
        assert await swarm.until(lambda: lost.node.is_connected(hub.peer_id), 200.0) < 25.0

    in_swarm(20, scenario, seed=seed)


# ---- peers that lie


def record(payload: Payload, version: int, *, ttl_ms: int = 60_000, signer: Identity = STRANGER) -> Record:
    code = RUN_KINDS.of(type(payload)).code
    return records.make_record(signer, RUN, code, version, EPOCH_MS + ttl_ms, RUN_KINDS.encode(payload))


async def push(liar: Peer, victim: Peer, message: msgspec.Struct) -> None:
    async with liar.node.open(victim.peer_id, PUSH_METHOD) as stream:
        await stream.send(message)
        await stream.finish()
        await stream.receive_end()


GOOD = record(progress(1), EPOCH_MS)
LIES: dict[str, tuple[Record, str]] = {
    "forged": (msgspec.structs.replace(GOOD, version=GOOD.version + 1, signature=bytes(64)), "wrong signature"),
    "beyond any size": (msgspec.structs.replace(GOOD, payload=bytes(100_000)), "length <= 4096"),
    "forged of an unknown kind": (msgspec.structs.replace(GOOD, code=99, version=GOOD.version + 1), "wrong signature"),
    "bad payload": (
        records.make_record(STRANGER, RUN, BEAT.code, EPOCH_MS + 1, EPOCH_MS + 60_000, b"\xc0"),
        "the payload does not fit",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_a_liar_is_named_and_cut_off_and_nothing_it_sent_spreads(name: str) -> None:
    lie, reason = LIES[name]

    async def scenario(swarm: Swarm) -> None:
        liar, victim, other = swarm.peers
        await push(liar, victim, Push([Aged(GOOD, 0)]))
        for _ in range(8):
            with pytest.raises(UnreachableError):
                await push(liar, victim, Push([Aged(lie, 0)]))
        (what,) = set(offences(victim, liar))
        assert reason in what
        assert ("peer.cut_off", liar.peer_id) in victim.kinds("peer.cut_off")
        await asyncio.sleep(2.0)
        assert other.board.get(PeerId(STRANGER.peer_id), Progress) == progress(1)
        assert offences(other, victim) == []

    in_swarm(3, scenario)


MALFORMED: dict[str, tuple[str, list[Any]]] = {
    "push of the wrong type": (PUSH_METHOD, [Summary(True, b"")]),
    "negative age": (PUSH_METHOD, [Push([Aged(GOOD, -1)])]),
    "summary cut short": (EXCHANGE_METHOD, [Summary(True, bytes(13))]),
    "wanted prefix too short": (EXCHANGE_METHOD, [Summary(True, b""), Page([], False, [WantedRecords(b"x", [1])])]),
    "empty pages without end": (EXCHANGE_METHOD, [Summary(True, b""), Page([], True), Page([], True)]),
    "push instead of page": (EXCHANGE_METHOD, [Summary(True, b""), Detail([])]),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_messages_that_do_not_belong_are_an_offence_of_the_sender(name: str) -> None:
    method, messages = MALFORMED[name]

    async def scenario(swarm: Swarm) -> None:
        liar, victim = swarm.peers

        async def lie() -> None:
            async with liar.node.open(victim.peer_id, method) as stream:
                for number, message in enumerate(messages):
                    if number:
                        await stream.receive(Detail)
                    await stream.send(message)
                await stream.receive(Page)

        with pytest.raises((UnreachableError, ProtocolError)):
            await lie()
        assert len(offences(victim, liar)) == 1

    in_swarm(2, scenario)


def test_too_many_exchanges_at_once_are_refused() -> None:
    async def scenario(swarm: Swarm) -> None:
        asker, asked = swarm.peers

        async def idle() -> None:
            async with asker.node.open(asked.peer_id, EXCHANGE_METHOD) as stream:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(3.0):
                        await stream.receive(Detail)

        tasks = [asyncio.ensure_future(idle()) for _ in range(4)]
        await asyncio.sleep(0.5)
        with pytest.raises(RejectedError, match="too many exchanges"):
            await asker.gossip.synchronise(asked.peer_id)
        await asyncio.gather(*tasks)
        await asyncio.sleep(0.5)
        await asker.gossip.synchronise(asked.peer_id)

    in_swarm(2, scenario)


def test_large_boards_travel_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anti_entropy, "PAGE_BYTES", 1000)
    monkeypatch.setattr(anti_entropy, "DETAIL_BYTES", 1000)  # 34 owners with one record
    strangers = [Identity.from_seed(n.to_bytes(32, "big")) for n in range(60)]

    async def scenario(swarm: Swarm) -> None:
        one, other = swarm.peers
        swarm.internet.cut(one.network, other.network)
        for number, signer in enumerate(strangers):
            target = (one, other)[number % 2]
            target.board.receive(record(Beat(), EPOCH_MS, signer=signer), target.peer_id)
        swarm.internet.restore(one.network, other.network)
        for _ in range(2):
            await one.gossip.synchronise(other.peer_id)
        for peer in swarm.peers:
            assert {PeerId(signer.peer_id) for signer in strangers} <= set(peer.board.owners())

    in_swarm(2, scenario)


def test_an_owner_that_is_named_many_times_is_answered_once() -> None:
    async def scenario(swarm: Swarm) -> None:
        board, owner = swarm.peers[0].board, swarm.peers[0].board.store.own
        records = list(owner.entries.values())
        wanted = [WantedRecords(owner.prefix, sorted(owner.entries))] * 1000
        assert anti_entropy.select(board, wanted, anti_entropy.EVERYTHING) == records
        detail = Detail([Held(owner.prefix, [])] * 1000)
        assert anti_entropy.compare(board, detail, anti_entropy.EVERYTHING) == (records, [])

    in_swarm(1, scenario)


@pytest.mark.parametrize("answer", [Detail, Page])
def test_whoever_never_reads_the_answer_to_an_exchange_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, answer: type[Detail | Page]
) -> None:
    monkeypatch.setattr(multiplexer, "WINDOW_BYTES", 4096 if answer is Page else 512)

    async def scenario(swarm: Swarm) -> None:
        asker, asked = swarm.peers
        for number in range(60):
            signer = Identity.from_seed(number.to_bytes(32, "big"))
            asked.board.receive(record(Beat(), EPOCH_MS, signer=signer), asked.peer_id)
        async with asker.node.open(asked.peer_id, EXCHANGE_METHOD) as stream:
            await stream.send(Summary(True, b""))
            if answer is Page:
                held = (await stream.receive(Detail)).held
                await stream.send(Page([], False, [WantedRecords(each.prefix, [BEAT.code]) for each in held]))
            await asyncio.sleep(EXCHANGE_TIMEOUT_S + 1.0)
            with pytest.raises(UnreachableError):
                await stream.receive(answer)

    in_swarm(2, scenario)


def test_a_flood_of_made_up_owners_keeps_no_newcomer_out() -> None:
    """All their versions are more than a message holds, and they come before all others."""

    async def scenario(swarm: Swarm) -> None:
        [entry] = swarm.peers
        for number in range(MAX_OWNERS - 2):
            flood, _ = entry.board.store.add(PeerId(f"{number:016x}" + "0" * 48), PeerId("f" * 64), 0.0)
            flood.dropped = dict.fromkeys(range(200, 200 + MAX_DROPPED), EPOCH_MS)
            flood._dropped_expires = 2 * EPOCH_MS
        newcomer = await swarm.add()
        assert everyone_sees([newcomer], swarm.peers)
        assert newcomer.kinds("peer.offence") == []

    in_swarm(1, scenario)


def test_large_records_come_to_everybody_without_being_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[tuple[PeerId, PeerId]] = []
    links = Links(1000, 1000, rows=(LinkRow(bytes(8), 1, 1, 1, 1, 1),))

    async def scenario(swarm: Swarm) -> None:
        await asyncio.sleep(20.0)  # nobody gets to know another neighbour now
        writer = swarm.peers[3]

        async def push(self: RumourSpreader, peer: PeerId, entries: list[StoredRecord]) -> None:
            pushed.extend((self._board.peer_id, peer) for e in entries if e.record.code == LINKS.code)
            await original(self, peer, entries)

        original, neighbours = RumourSpreader._push, len(writer.node.connected())
        monkeypatch.setattr(RumourSpreader, "_push", push)
        writer.board.put(links)
        await swarm.until(lambda: all(p.board.get(writer.peer_id, Links) == links for p in swarm.peers), 20.0)
        assert len(pushed) == min(neighbours, rumours.FANOUT)
        assert {sender for sender, _ in pushed} == {writer.peer_id}

    in_swarm(7, scenario)


def _holds(owners: Mapping[PeerId, PeerRecords], record: Record) -> bool:
    owner = owners.get(record.owner)
    entry = owner.entries.get(record.code) if owner is not None else None
    return entry is not None and entry.record == record


@pytest.mark.parametrize("code", [RUN_KINDS.of(Progress).code, 99])
def test_large_records_that_nobody_can_read_are_not_repeated_whatever_kind_they_claim(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Else each of them would cost every peer three to six times its bytes, for the price of one."""
    pushed: list[PeerId] = []
    unreadable = records.make_record(STRANGER, RUN, code, EPOCH_MS + 1, EPOCH_MS + 600_000, bytes(4000))

    async def scenario(swarm: Swarm) -> None:
        async def push(self: RumourSpreader, peer: PeerId, entries: list[StoredRecord]) -> None:
            pushed.extend(peer for entry in entries if entry.record == unreadable)
            await original(self, peer, entries)

        original = RumourSpreader._push
        monkeypatch.setattr(RumourSpreader, "_push", push)
        assert swarm.peers[0].board.receive(unreadable, PeerId(STRANGER.peer_id)) is Verdict.NEW
        swarm.peers[0].gossip._pusher.add(unreadable.owner, code, PeerId(STRANGER.peer_id))
        held = [peer.board.store.owners for peer in swarm.peers]
        await swarm.until(lambda: all(_holds(owners, unreadable) for owners in held), 30.0)
        assert pushed == []

    in_swarm(6, scenario)


def test_a_slow_neighbour_and_a_flood_of_owners_cost_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rumours, "MAX_RECORDS", 50)

    async def scenario(swarm: Swarm) -> None:
        slow, flooded = swarm.peers
        pusher = flooded.gossip._pusher
        outboxes = pusher._outboxes
        outboxes[slow.peer_id] = {}  # as while a push is under way
        for number in range(1000):  # owners that are off the board again when it is their turn
            pusher.add(PeerId(f"{number:064x}"), 1, PeerId("f" * 64))
            if number % 10 == 9:
                await asyncio.sleep(0.1)
                assert len(outboxes[slow.peer_id]) <= 50
        flooded.board.put(progress(7))
        await asyncio.sleep(0.1)
        assert (flooded.peer_id, RUN_KINDS.of(Progress).code) in outboxes.pop(slow.peer_id)

    in_swarm(2, scenario)


def test_who_has_connections_enough_dials_nobody_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossip, "MIN_NEIGHBOURS", 0)
    monkeypatch.setattr(gossip, "RANDOM_DIAL_CHANCE", 1.0)
    monkeypatch.setattr(node, "MAX_PEERS", 4)

    async def scenario(swarm: Swarm) -> None:
        await asyncio.sleep(15.0)
        # Nobody dials more than two others; everybody would know all six by now.
        assert sum(len(peer.node.connected()) for peer in swarm.peers) <= 7 * 2 * 2

    in_swarm(7, scenario)


def test_who_entered_asks_no_living_peer_that_it_dials_for_what_rumours_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, plain = list[bool](), anti_entropy.summarise

    def summarise(board: Board, *, full: bool) -> Summary:
        asked.append(full)
        return plain(board, full=full)

    monkeypatch.setattr(anti_entropy, "summarise", summarise)

    async def scenario(swarm: Swarm) -> None:
        await swarm.until(lambda: all(len(peer.node.connected()) == 5 for peer in swarm.peers))

    in_swarm(6, scenario)
    assert asked.count(True) == 5 < len(asked)
