"""Swarms of several versions: what some peers know of, others pass on unread."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from minga.core.events.bus import EventBus
from minga.identity.keys.keys import Identity
from minga.network.gossip import anti_entropy, record_store, records
from minga.network.gossip.anti_entropy import Detail, Held
from minga.network.gossip.board import Board
from minga.network.gossip.record_kinds import AddressInfo, Kind, Payload, RecordKinds
from minga.network.gossip.record_store import MAX_DROPPED, MAX_OWNER_BYTES, MAX_UNKNOWN_KINDS, RECORD_BYTES, PeerRecords
from minga.network.gossip.records import Record, Verdict
from minga.network.interface import PeerId
from minga.network.rpc.run_clock import RunClock
from minga.network.rpc.stream import MESSAGE, MessageStream
from minga.network.virtual.internet import HostSettings
from minga.simulation import run_virtual
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.record_kinds import RUN_KINDS, Progress, StateInfo
from tests.worlds import board_swarm
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import assert_equal_states, make_spec, offences, virtually

EPOCH_S = 1_800_000_000.0
ME, ANN, BOB = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2, 3))


class Weather(Payload, frozen=True):
    """A kind of a version to come."""

    step: int


class MoodyProgress(Progress, frozen=True):
    """Progress with a field of a version to come."""

    mood: str = ""


class LaterKinds(RecordKinds):
    """Writes and reads that field, and writes one more into every payload."""

    def encode(self, payload: Payload) -> bytes:
        fields = msgspec.msgpack.decode(super().encode(payload))
        mood = {"mood": "keen"} if isinstance(payload, Progress) else {}
        return msgspec.msgpack.encode({**fields, **mood, "later": [1, "x"]})

    def open(self, code: int, payload: bytes) -> Payload | None:
        if code == self.of(Progress).code and payload:
            return msgspec.msgpack.decode(payload, type=MoodyProgress)
        return super().open(code, payload)


LATER = LaterKinds(*RUN_KINDS, Kind("weather", 100, Weather, 128))


def add_fields_to_messages(monkeypatch: pytest.MonkeyPatch, later: list[SimulatedPeer]) -> list[str]:
    """Every message that those peers send has a field, or an element, that the others do not know."""
    send = MessageStream.send
    sent: list[str] = []

    async def send_more(self: MessageStream, message: msgspec.Struct) -> None:
        is_later = any(self._access_link is peer.session.node.access_link for peer in later)
        if not is_later or message.__struct_config__.forbid_unknown_fields:
            await send(self, message)
            return
        body: Any = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
        body = {**body, "later": [1]} if isinstance(body, dict) else [*body, "later"]
        sent.append(type(message).__name__)
        await self._send_frame(MESSAGE, msgspec.msgpack.encode(body))

    monkeypatch.setattr(MessageStream, "send", send_more)
    return sent


@pytest.mark.parametrize("steps", [8, soaked(50)])
def test_two_versions_train_together(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    @virtually
    async def main() -> None:
        rng = random.Random(5)
        swarm = Swarm(make_spec(64), seed=5)
        later: list[SimulatedPeer] = []
        sent = add_fields_to_messages(monkeypatch, later)
        for number in range(4):
            trainer = TrainerSettings(4, rng.uniform(0.1, 0.15))
            kinds = LATER if number % 2 else RUN_KINDS
            peer = swarm.add(HostSettings(latency_s=rng.uniform(0.005, 0.04)), trainer, kinds=kinds)
            if number % 2:
                later.append(peer)
                board, events = peer.session.board, peer.session.events
                events.subscribe(
                    lambda event, board=board: (
                        board.put(Weather(int(str(event.fields["step"])))) if event.kind == "step.applied" else None
                    )
                )
        await swarm.run_until_step(steps, limit_s=600)
        await asyncio.sleep(3.0)
        assert offences(swarm) == []
        assert swarm.log.of("peer.cut_off") == []
        assert swarm.log.of("peer.disconnected") == []
        assert swarm.log.of("member.lost") == []
        await assert_equal_states(swarm)
        for one in later:
            for other in swarm.peers.values():
                said = other.session.board.store.owners[one.network.peer_id].entries[100]
                assert said.is_opaque == (other not in later)
                progress = other.session.board.get(one.network.peer_id, Progress)
                assert progress is not None
                assert progress.step >= steps - 2
                if other in later and other is not one:
                    weather = other.session.board.get(one.network.peer_id, Weather)
                    assert weather is not None
                    assert weather.step >= steps - 2
                    assert isinstance(progress, MoodyProgress)
                    assert progress.mood == "keen"
        assert {"Summary", "Detail", "Page", "Push", "Join", "SignedPlan", "Hold"} <= set(sent)
        await swarm.close()

    main()


def test_records_come_through_peers_that_cannot_read_them() -> None:
    async def main() -> None:
        swarm = board_swarm.Swarm(3, idle_timeout_s=5.0)
        middle = await swarm.add()
        ends = [await swarm.add(kinds=LATER), await swarm.add(kinds=LATER)]
        swarm.internet.cut(ends[0].network.name, ends[1].network.name)
        swarm.internet.cut(ends[1].network.name, ends[0].network.name)
        await swarm.until(lambda: board_swarm.everyone_sees(swarm.peers, swarm.peers))
        await asyncio.sleep(12.0)  # until their connection is lost
        for step in range(10):
            ends[0].board.put(Weather(step))
            ends[0].board.put(Progress(step, 0, 1.0, "training"))
            await swarm.until(
                lambda: (
                    ends[1].board.get(ends[0].peer_id, Weather) == Weather(step)  # noqa: B023
                    and ends[1].board.get(ends[0].peer_id, Progress) is not None
                )
            )
        assert not ends[0].node.is_connected(ends[1].peer_id)
        late = await swarm.add(kinds=LATER)  # enters by the one that cannot read it
        assert late.board.get(ends[0].peer_id, Weather) == Weather(9)
        assert middle.board.store.owners[ends[0].peer_id].entries[100].is_opaque
        assert all(peer.kinds("peer.offence") == peer.kinds("peer.cut_off") == [] for peer in swarm.peers)
        assert middle.kinds("peer.disconnected") == []
        await swarm.close()

    run_virtual(main(), limit_s=600.0)


# ---- one board


class World:
    """A board of this version; the test turns its clock."""

    def __init__(self, kinds: RecordKinds = RUN_KINDS) -> None:
        self.now_s = 0.0
        self.board = Board(
            ME,
            "r",
            run_clock=RunClock(lambda: EPOCH_S + self.now_s, lambda: self.now_s),
            clock=lambda: self.now_s,
            events=EventBus(lambda: self.now_s),
            kinds=kinds,
        )

    def wait(self) -> None:
        """A second passes."""
        for _ in range(4):
            self.now_s += 0.25
            self.board.watch(0.5)

    def tell(self, code: int, size: int, signer: Identity = ANN, sender: Identity | None = None) -> Verdict:
        """Somebody says something in bytes that mean nothing here, a second later."""
        self.wait()
        return self.board.receive(self.record(code, bytes(size), signer), PeerId((sender or signer).peer_id))

    def record(self, code: int, payload: bytes, signer: Identity = ANN) -> Record:
        now_ms = int((EPOCH_S + self.now_s) * 1000)
        return records.make_record(signer, "r", code, now_ms, now_ms + 3_000_000, payload)

    def owner(self, signer: Identity) -> PeerRecords:
        return self.board.store.owners[PeerId(signer.peer_id)]

    def opaque_bytes(self) -> int:
        held = (entry for owner in self.board.store.owners.values() for entry in owner.unknown())
        return sum(len(entry.record.payload) + RECORD_BYTES for entry in held)


@pytest.mark.parametrize("size", [10, 3000])
def test_one_owner_gets_little_room_for_what_nobody_here_knows(size: int) -> None:
    w = World()
    room = min(MAX_UNKNOWN_KINDS, MAX_OWNER_BYTES // (size + RECORD_BYTES))
    for code in range(20, 120):
        assert w.tell(code, size) is Verdict.NEW
    assert sorted(w.owner(ANN).entries) == list(range(120 - room, 120)), "the newest stay"
    assert not any(verdict.is_offence for verdict in w.board.verdicts)
    assert w.tell(30, size) is Verdict.NEW, "what was dropped comes in again when it is said anew"


def test_what_was_dropped_is_not_fetched_again() -> None:
    w = World()
    early = w.record(19, b"")
    for code in range(20, 40):
        w.tell(code, 10)
    theirs = Detail([Held(w.owner(ANN).prefix, [(early.code, early.version), (20, early.version + 1)])])
    assert anti_entropy.compare(w.board, theirs, anti_entropy.EVERYTHING)[1] == []
    assert w.board.receive(early, PeerId(BOB.peer_id)) is Verdict.STALE
    assert not Verdict.STALE.is_offence
    newer = Detail([Held(w.owner(ANN).prefix, [(2, early.version + 1)])])
    assert anti_entropy.compare(w.board, newer, anti_entropy.EVERYTHING)[1][0].codes == [2], (
        "of known kinds all is fetched"
    )


def test_many_owners_crowd_out_the_largest_of_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_store, "MAX_TOTAL_BYTES", 100_000)
    w = World()
    assert w.tell(12, 100, BOB) is Verdict.NEW
    verdicts = set()
    for number in range(60):
        flooder = Identity.from_seed(bytes([100 + number]) * 32)
        verdicts |= {w.tell(code, 3500, flooder, sender=ANN) for code in (20, 21)}
        assert w.opaque_bytes() <= 100_000
    assert verdicts <= {Verdict.NEW, Verdict.CROWDED}
    assert not Verdict.CROWDED.is_offence
    assert sorted(w.owner(BOB).entries) == [12]


def offered(holder: World, other: World) -> list[int]:
    """The codes of the records that `holder` would send if it began an exchange with `other` now."""
    detail = anti_entropy.detail(other.board, anti_entropy.summarise(holder.board, full=True), PeerId(BOB.peer_id))
    return sorted(entry.record.code for entry in anti_entropy.compare(holder.board, detail, anti_entropy.EVERYTHING)[0])


@pytest.mark.parametrize("seed", range(3))
def test_a_peer_with_more_room_does_not_send_in_each_exchange_what_another_one_dropped(seed: int) -> None:
    """One peer knows twelve kinds more than another one: four records more, once a second, for as long as both live."""
    rng = random.Random(seed)
    codes = list(range(20, 32))
    later = [
        Kind(f"later{code}", code, msgspec.defstruct(f"L{code}", [], bases=(Payload,), frozen=True), 64)
        for code in codes
    ]
    other, holder = World(), World(RUN_KINDS.extended(*later))
    said = []
    for code in codes:
        holder.now_s = other.now_s = other.now_s + 1.0
        said.append(holder.record(code, b""))
        assert holder.board.receive(said[-1], PeerId(ANN.peer_id)) is Verdict.NEW
    rng.shuffle(said)
    for record in said:
        other.now_s += 0.25
        other.board.receive(record, PeerId(BOB.peer_id))
    assert len(other.owner(ANN).entries) == MAX_UNKNOWN_KINDS
    assert offered(holder, other) == []
    holder.now_s += 1.0
    newer = holder.record(20, b"")
    assert holder.board.receive(newer, PeerId(ANN.peer_id)) is Verdict.NEW
    assert offered(holder, other) == [20], "what is new is offered as ever"


def test_an_owner_of_whom_all_was_dropped_is_not_taken_up_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boards that forget that they dropped a record would send one another a flood for as long as it is valid."""
    monkeypatch.setattr(record_store, "MAX_TOTAL_BYTES", 20_000)
    other, holder = World(), World()
    flood = []
    for number in range(20):
        flooder = Identity.from_seed(bytes([100 + number]) * 32)
        holder.now_s = other.now_s = other.now_s + 1.0
        flood.append(other.record(20, bytes(3500), flooder))
        other.board.receive(flood[-1], PeerId(ANN.peer_id))
    monkeypatch.setattr(record_store, "MAX_TOTAL_BYTES", 1 << 20)
    for record in flood:
        assert holder.board.receive(record, PeerId(ANN.peer_id)) is Verdict.NEW
    other.board.sweep()
    detail = anti_entropy.detail(other.board, anti_entropy.summarise(holder.board, full=True), PeerId(BOB.peer_id))
    assert anti_entropy.compare(holder.board, detail, anti_entropy.EVERYTHING) == ([], [])
    theirs = anti_entropy.detail(holder.board, anti_entropy.summarise(other.board, full=True), PeerId(BOB.peer_id))
    assert anti_entropy.compare(other.board, theirs, anti_entropy.EVERYTHING) == ([], [])
    assert {other.board.receive(record, PeerId(ANN.peer_id)) for record in flood} == {Verdict.STALE}
    other.now_s += 3_000.0 + 121.0
    other.board.sweep()
    assert len(other.board.store.owners) == 1, "what expired is forgotten wholly"


def test_what_a_stranger_claims_of_dropped_records_has_to_be_signed_and_is_bounded() -> None:
    w = World()
    early = [w.record(code, b"") for code in range(60, 120)]
    for code in range(20, 40):
        w.tell(code, 10)
    forged = msgspec.structs.replace(early[0], code=200)
    assert w.board.receive(forged, PeerId(BOB.peer_id)) is Verdict.FORGED
    for record in early:
        w.wait()
        assert w.board.receive(record, PeerId(BOB.peer_id)) is Verdict.STALE
    assert len(w.owner(ANN).dropped) == MAX_DROPPED
    assert len(list(w.owner(ANN).versions())) == MAX_DROPPED + MAX_UNKNOWN_KINDS
    w.now_s += 1.0
    left = w.record(6, msgspec.msgpack.encode({}))
    assert w.board.receive(left, PeerId(BOB.peer_id)) is Verdict.NEW
    assert not w.owner(ANN).dropped, "a goodbye voids them"


def test_fields_of_any_shape_that_nobody_here_knows_are_no_offence_and_break_nothing() -> None:
    """Deep nests, keys of thousands of characters, the same key a hundred times, numbers where words are due."""
    rng, w = random.Random(1), World()
    known = RUN_KINDS.encode(Progress(1, 2, 3.0, "training"))
    fields = msgspec.msgpack.decode(known)
    deep = b"\x91" * 3000 + b"\xc0"
    hostile = [
        msgspec.msgpack.encode({**fields, "k" * 3500: 1}),
        msgspec.msgpack.encode({**fields, **{f"f{n}": rng.random() for n in range(200)}}),
        bytes([known[0] + 1]) + known[1:] + b"\xa1x" + deep,
        bytes([known[0] + 1]) + known[1:] + b"\xa1x" + b"\xdf\xff\xff\xff\xff",
        bytes([known[0] + 1]) + known[1:] + b"\xa1x" + b"\xc9\xff\xff\xff\xff\x01",
        bytes([known[0] + 1]) + known[1:] + b"\xa2\xff\xfe\xc0",
        b"\xdc\xff\xff" + rng.randbytes(2000),
        *(rng.randbytes(rng.randrange(1, 4096)) for _ in range(50)),
    ]
    for payload in hostile:
        w.wait()
        verdict = w.board.receive(w.record(RUN_KINDS.of(Progress).code, payload), PeerId(BOB.peer_id))
        assert verdict is Verdict.NEW
        w.board.get(PeerId(ANN.peer_id), Progress)


def test_what_is_unreadable_in_a_known_kind_is_kept_and_passed_on_without_accusation() -> None:
    w = World()
    known = w.record(RUN_KINDS.of(StateInfo).code, RUN_KINDS.encode(StateInfo(1, "ab" * 32)))
    assert w.board.receive(known, PeerId(ANN.peer_id)) is Verdict.NEW
    for payload in (b"\xc0", bytes(4000), msgspec.msgpack.encode({"step": 1, "digest": "later:xyz"})):
        w.now_s += 1.0
        record = w.record(known.code, payload)
        assert w.board.receive(record, PeerId(BOB.peer_id)) is Verdict.NEW
        assert w.board.get(PeerId(ANN.peer_id), StateInfo) is None
        held = [Held(w.owner(ANN).prefix, [])]
        (entry,) = anti_entropy.compare(w.board, Detail(held), anti_entropy.EVERYTHING)[0]
        assert entry.record is record


def test_a_peer_takes_back_what_its_later_version_said_in_an_earlier_life() -> None:
    w = World()
    signed: list[Record] = []
    w.board.on_signed.add(signed.append)
    w.board.put(AddressInfo("trainer"))
    w.now_s += 1.0
    assert w.board.receive(w.record(77, b"x", ME), PeerId(ANN.peer_id)) is Verdict.SUPERSEDING
    assert (signed[-1].code, signed[-1].payload) == (77, b"")
