from __future__ import annotations

import asyncio
import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.core.errors import ConfigurationError
from minga.core.events.bus import Event, EventBus
from minga.identity.keys.keys import Identity
from minga.network.gossip import board, record_store
from minga.network.gossip import records as records_module
from minga.network.gossip.board import Board, Change, Presence
from minga.network.gossip.record_kinds import ADDRESS, BEAT, AddressInfo, Beat, Left, Payload
from minga.network.gossip.record_store import RECORDS_PER_SECOND
from minga.network.gossip.records import CLOCK_SKEW_S, MAX_TTL_S, TTL_BEATS, TTL_S, Record, Verdict
from minga.network.interface import Address, PeerId
from minga.network.rpc.run_clock import RunClock
from minga.training.record_kinds import RUN_KINDS, Progress, StateInfo

EPOCH_S = 1_800_000_000.0
ME, ANN, BOB = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2, 3))
A, B = PeerId(ANN.peer_id), PeerId(BOB.peer_id)
BEAT_S = 0.5


class World:
    """A board whose clocks the test turns."""

    def __init__(self, signer: Identity = ME, start_s: float = 0.0) -> None:
        self.now_s, self.skew_s = start_s, 0.0
        self.log: list[Event] = []
        events = EventBus(lambda: self.now_s)
        events.subscribe(self.log.append)
        self.board = Board(
            signer,
            "r",
            run_clock=RunClock(lambda: EPOCH_S + self.now_s + self.skew_s, lambda: self.now_s),
            clock=lambda: self.now_s,
            events=events,
            kinds=RUN_KINDS,
        )
        self.signed: list[Record] = []
        self.board.on_signed.add(self.signed.append)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 4)):
            self.now_s += 0.25
            self.board.watch(BEAT_S)

    def record(
        self,
        payload: Payload,
        *,
        signer: Identity = ANN,
        version: int | None = None,
        ttl_s: float = TTL_S,
        run_id: str = "r",
        raw: bytes | None = None,
    ) -> Record:
        now_ms = int((EPOCH_S + self.now_s) * 1000)
        encoded = RUN_KINDS.encode(payload) if raw is None else raw
        code = RUN_KINDS.of(type(payload)).code
        expires = now_ms + int(ttl_s * 1000)
        return records_module.make_record(
            signer, run_id, code, now_ms if version is None else version, expires, encoded
        )

    def kinds(self) -> list[str]:
        return [event.kind for event in self.log]


def progress(step: int, samples: int = 0) -> Progress:
    return Progress(step, samples, 1.0, "training")


def test_what_a_peer_says_is_read_by_type() -> None:
    w = World()
    address = w.record(AddressInfo("trainer", ("10.0.0.1:1",)), version=1)
    assert w.board.receive(address, A) is Verdict.NEW
    assert w.board.receive(w.record(progress(4), version=2), B, age_s=0.5) is Verdict.NEW
    assert w.board.get(A, Progress) == progress(4)
    assert w.board.get(A, StateInfo) is None
    assert w.board.get(B, Progress) is None
    assert w.board.address_of(A) == Address(A, ("10.0.0.1:1",))
    assert w.board.address_of(B) is None
    assert w.board.is_alive(A)
    assert not w.board.is_alive(B)
    ((owner, payload, age_s),) = w.board.items(Progress)
    assert (owner, payload, age_s) == (A, progress(4), pytest.approx(0.5))


def test_own_records_are_read_like_others_and_their_versions_grow() -> None:
    w = World()
    assert not w.board.is_alive(w.board.peer_id)
    for step in range(5):
        w.board.put(progress(step))
    versions = [record.version for record in w.signed]
    assert versions == sorted(set(versions))
    assert versions[0] == EPOCH_S * 1000
    assert w.board.get(w.board.peer_id, Progress) == progress(4)
    assert w.board.owners() == [w.board.peer_id]
    assert all(records_module.is_genuine(record, "r") for record in w.signed)


@pytest.mark.parametrize("payload", [progress(-1), Progress(1, 1, math.nan, "training"), Payload()])
def test_what_is_not_valid_is_not_published(payload: Payload) -> None:
    w = World()
    with pytest.raises(ConfigurationError):
        w.board.put(payload)
    assert not w.signed


def refused(w: World, record: Record) -> Verdict:
    before = {owner: dict(known.entries) for owner, known in w.board.store.owners.items()}
    verdict = w.board.receive(record, B)
    assert {owner: known.entries for owner, known in w.board.store.owners.items()} == before
    assert w.board.verdicts[verdict] == 1
    return verdict


def test_bad_records_are_refused_each_for_its_reason() -> None:
    w = World()
    good = w.record(progress(1))
    replace = msgspec.structs.replace
    cases = {
        Verdict.FORGED: replace(good, signature=w.record(progress(2)).signature),
        Verdict.MALFORMED: replace(good, key=good.key + b"x"),
        Verdict.BAD_PAYLOAD: w.record(Beat(), raw=b"\xc0"),
        Verdict.FUTURE: w.record(progress(1), ttl_s=MAX_TTL_S + CLOCK_SKEW_S + 1),
        Verdict.EXPIRED: w.record(progress(1), ttl_s=-CLOCK_SKEW_S - 1),
    }
    for expected, record in cases.items():
        assert refused(w, record) is expected
        assert expected.is_offence == (expected not in (Verdict.FUTURE, Verdict.EXPIRED))
    assert [e.fields["reason"] for e in w.log if e.kind == "record.ignored"] == [
        Verdict.FUTURE.value,
        Verdict.EXPIRED.value,
    ]
    assert w.board.receive(good, A) is Verdict.NEW


def test_a_forged_record_does_not_use_up_its_victims_budget() -> None:
    w = World()
    w.board.receive(w.record(progress(0), version=1), A)
    forged = msgspec.structs.replace(w.record(progress(1)), signature=bytes(64))
    assert {w.board.receive(forged, B) for _ in range(200)} == {Verdict.FORGED}
    assert w.board.receive(w.record(progress(1)), A) is Verdict.NEW


def test_an_owner_that_writes_too_often_is_slowed_down_not_accused() -> None:
    w = World()
    verdicts = [w.board.receive(w.record(progress(n), version=n + 1), A) for n in range(200)]
    assert verdicts.count(Verdict.NEW) == 2 * RECORDS_PER_SECOND
    assert set(verdicts) == {Verdict.NEW, Verdict.TOO_OFTEN}
    w.run(1.0)
    assert w.board.receive(w.record(progress(1000)), A) is Verdict.NEW


def test_a_goodbye_ends_a_peer_at_once_and_voids_what_it_said() -> None:
    w = World()
    old = [w.record(AddressInfo("trainer", ("10.0.0.1:1",)), version=1), w.record(progress(1), version=2)]
    for record in old:
        w.board.receive(record, A)
    left = w.record(Left("finished"), version=3)
    assert w.board.receive(left, A) is Verdict.NEW
    assert not w.board.is_alive(A)
    assert w.board.get(A, Progress) is None
    assert w.board.address_of(A) is None
    assert w.board.addresses() == []
    assert w.kinds()[-1] == "member.left"
    for record in [*old, w.record(StateInfo(1, "ab" * 32), version=2)]:
        assert w.board.receive(record, B) is Verdict.STALE
    assert w.board.receive(w.record(progress(2), version=4), A) is Verdict.NEW
    assert w.board.is_alive(A)
    assert w.board.receive(left, B) is Verdict.STALE
    assert w.board.owners() == [A]


@pytest.mark.parametrize("says_goodbye", [False, True])
@pytest.mark.parametrize("life", ["the same", "one that met the old", "one that did not"])
def test_no_replay_undoes_what_came_later_though_what_was_said_before_in_a_larger_swarm_lived_longer(
    life: str, says_goodbye: bool
) -> None:
    leaver, other = World(ANN), World(BOB)
    leaver.board.put(AddressInfo("trainer"))
    leaver.board.beat(20.0)
    leaver.board.put(progress(7))
    said = leaver.signed
    if life != "the same":
        leaver = World(ANN, start_s=1.0)
    if life == "one that met the old":
        by_a_clock_ahead = leaver.record(Beat(), ttl_s=2.0 * MAX_TTL_S)
        assert {leaver.board.receive(record, B) for record in [*said, by_a_clock_ahead]} == {Verdict.SUPERSEDING}
    leaver.board.put(AddressInfo("client"))
    leaver.board.beat(BEAT_S)
    if says_goodbye:
        leaver.board.put(Left())
    assert life == "one that did not" or leaver.signed[-1].expires >= said[-1].expires
    for record in [*said, *leaver.signed]:
        other.board.receive(record, A)
    replays = set[Verdict]()
    while other.board.verdicts[Verdict.EXPIRED] < len(said):
        other.run(10.0)
        other.board.sweep()
        replays |= {other.board.receive(record, B) for record in said}
        assert not other.board.is_alive(A)
    assert replays == {Verdict.STALE, Verdict.EXPIRED}
    assert list(other.board.store.owners) == [other.board.peer_id]


def test_a_dead_peers_last_record_cannot_be_replayed() -> None:
    w = World()
    last = w.record(progress(1))
    w.board.receive(last, A)
    replays = []
    for _ in range(80):
        w.run(5.0)
        w.board.sweep()
        replays.append(w.board.receive(last, B))
        assert not w.board.is_alive(A)
    assert replays[0] is Verdict.STALE
    assert replays[-1] is Verdict.EXPIRED
    assert set(replays) == {Verdict.STALE, Verdict.EXPIRED}
    assert list(w.board.store.owners) == [w.board.peer_id]
    assert w.kinds().count("member.joined") == 1


def test_a_forgotten_peer_comes_back_only_by_writing_anew() -> None:
    w = World()
    first = w.record(AddressInfo("trainer", ("10.0.0.1:1",)), version=1)
    second = w.record(progress(1), version=2)
    w.board.receive(first, A)
    w.board.receive(second, A)
    w.board.forget(A)
    assert not w.board.is_alive(A)
    assert w.board.get(A, Progress) is None
    assert w.board.receive(first, B) is w.board.receive(second, B) is Verdict.STALE
    assert not w.board.is_alive(A)
    assert w.board.receive(w.record(progress(2), version=3), A) is Verdict.NEW
    assert w.board.is_alive(A)
    w.board.forget(w.board.peer_id)
    w.board.forget(B)


def test_a_silent_peer_dies_and_its_address_is_remembered() -> None:
    w = World()
    for _ in range(20):
        w.board.receive(w.record(AddressInfo("trainer", ("10.0.0.1:1",))), A)
        w.run(BEAT_S)
    assert w.board.is_alive(A)
    w.run(3.0)
    assert not w.board.is_alive(A)
    assert w.board.items(AddressInfo) == []
    assert w.board.get(A, AddressInfo) is not None
    for _ in range(100):
        w.run(5.0)
        w.board.sweep()
    assert w.board.get(A, AddressInfo) is None
    assert w.board.addresses() == [Address(A, ("10.0.0.1:1",))]
    assert [kind for kind in w.kinds() if kind.startswith("member")] == ["member.joined", "member.lost"]


def test_own_records_are_renewed_and_beats_fill_the_pauses() -> None:
    w = World()
    assert w.board.beat(BEAT_S) == BEAT_S
    assert not w.signed
    w.board.put(AddressInfo("trainer"))
    for _ in range(400):
        w.run(w.board.beat(BEAT_S))
    gaps = [b.version - a.version for a, b in zip(w.signed, w.signed[1:], strict=False)]
    assert max(gaps) <= BEAT_S * 1000
    address = [record for record in w.signed if record.code == 1]
    assert len(address) == pytest.approx(400 * BEAT_S / (TTL_S / 3), abs=2)
    w.board.put(Left())
    count = len(w.signed)
    w.run(w.board.beat(BEAT_S))
    assert len(w.signed) == count


def test_what_is_put_after_a_goodbye_does_not_take_it_back() -> None:
    """As the rates of the link are, which are measured while the goodbye is on its way."""
    w, other = World(), World(BOB)
    w.board.put(AddressInfo("trainer"))
    w.board.put(Left())
    w.board.put(progress(3))
    w.board.retract(AddressInfo)
    for record in w.signed:
        other.board.receive(record, A)
    assert not other.board.is_alive(w.board.peer_id)
    assert not w.board.is_alive(w.board.peer_id)


def test_whoever_slept_beyond_the_life_of_its_records_renews_them() -> None:
    w = World()
    w.board.put(AddressInfo("trainer", ("10.0.0.1:1",)))
    w.board.put(progress(4))
    w.board.retract(Progress)
    w.now_s += BEAT_S
    w.board.beat(BEAT_S)
    beat = w.signed[-1]
    assert beat.code == BEAT.code
    w.now_s += 3600.0
    w.board.watch(BEAT_S)
    w.board.sweep()
    assert w.board.receive(beat, A) is Verdict.STALE, "a neighbour that has not swept yet passes it on"
    w.signed.clear()
    w.board.beat(BEAT_S)
    assert {record.code for record in w.signed} == {ADDRESS.code}
    assert w.board.is_alive(w.board.peer_id)
    assert w.board.address_of(w.board.peer_id) == Address(w.board.peer_id, ("10.0.0.1:1",))
    assert list(w.board.store.own.entries) == [ADDRESS.code], "neither a retraction nor a beat is renewed"


def test_records_that_were_signed_by_a_clock_that_was_ahead_are_renewed_once_it_is_right() -> None:
    """Others refused the address for as long as the clock had been ahead."""
    w = World()
    w.skew_s = 86400.0
    w.board.put(AddressInfo("trainer"))
    w.skew_s = 0.0
    w.now_s += BEAT_S
    w.board.beat(BEAT_S)
    (address,) = [each for each in w.signed[1:] if each.code == ADDRESS.code]
    assert address.expires <= (EPOCH_S + w.now_s + TTL_S) * 1000


def test_a_swarm_that_grows_has_nothing_renewed_before_a_third_of_its_life() -> None:
    w = World()
    w.board.put(AddressInfo("trainer"))
    w.run(1.0)
    w.board.beat(10.0)
    assert [record.code for record in w.signed] == [1]
    w.run(TTL_S / 3)
    w.board.beat(10.0)
    first, second = [record for record in w.signed if record.code == 1]
    assert second.expires - second.version == pytest.approx(1000 * TTL_BEATS * 10.0, abs=2)
    assert first.expires - first.version == pytest.approx(1000 * TTL_S, abs=2)


def test_a_restarted_peer_outdoes_its_earlier_life_whose_clock_was_ahead() -> None:
    earlier = World()
    earlier.skew_s = 90.0
    earlier.board.put(AddressInfo("trainer", ("10.0.0.1:1",)))
    earlier.board.put(progress(7))
    w = World()
    w.board.put(AddressInfo("client"))
    assert {w.board.receive(record, A) for record in earlier.signed} == {Verdict.SUPERSEDING}
    assert w.board.get(w.board.peer_id, AddressInfo) == AddressInfo("client")
    w.board.beat(BEAT_S)
    other = World(BOB)
    for record in [*w.signed, *earlier.signed]:
        other.board.receive(record, A)
    assert other.board.get(w.board.peer_id, AddressInfo) == AddressInfo("client")
    assert other.board.get(w.board.peer_id, Progress) is None  # retracted: this life said nothing of the kind
    assert other.board.verdicts[Verdict.STALE] == 2
    assert {w.board.receive(record, A) for record in earlier.signed} == {Verdict.STALE}
    forged = msgspec.structs.replace(w.signed[0], version=2**63)
    assert w.board.receive(forged, A) is Verdict.FORGED


def test_a_goodbye_of_an_earlier_life_does_not_end_this_one() -> None:
    earlier = World()
    earlier.skew_s = 90.0
    earlier.board.put(Left())
    w = World()
    w.board.put(AddressInfo("client"))
    w.board.receive(earlier.signed[0], A)
    w.board.beat(BEAT_S)
    other = World(BOB)
    for record in [*earlier.signed, *w.signed]:
        other.board.receive(record, A)
    assert other.board.is_alive(w.board.peer_id)
    assert w.board.is_alive(w.board.peer_id)


def test_whoever_was_stopped_accuses_nobody() -> None:
    w = World()
    for _ in range(20):
        w.board.receive(w.record(Beat()), A)
        w.run(BEAT_S)
    w.now_s += 60.0
    w.board.watch(BEAT_S)
    assert w.board.is_alive(A)
    assert "board.stalled" in w.kinds()
    w.run(4.0)
    assert not w.board.is_alive(A)


def test_hearsay_about_a_peer_long_dead_does_not_revive_it() -> None:
    w = World()
    assert w.board.receive(w.record(AddressInfo("trainer")), B, age_s=50.0) is Verdict.NEW
    assert not w.board.is_alive(A)
    assert set(w.board.store.owners) == {A, w.board.peer_id}


def test_observers_and_waiters_hear_of_changes_but_not_of_beats() -> None:
    async def scenario() -> None:
        w = World()
        heard: list[tuple[str, Change]] = []
        end = w.board.observe(lambda peer, change: heard.append((peer, change)))
        waiter = asyncio.ensure_future(w.board.changed(w.board.generation))
        await asyncio.sleep(0)
        w.board.receive(w.record(progress(1), version=1), A)
        assert await waiter == w.board.generation == len(heard)
        w.board.receive(w.record(progress(1), version=2), A)  # renewed, not changed
        w.board.receive(w.record(Beat(), version=3), A)
        assert heard == [(A, "progress"), (A, Presence.JOINED)]
        assert await w.board.changed(0) == 2
        w.board.receive(w.record(progress(2), version=4), A)
        assert heard[2:] == [(A, "progress")]
        end()
        w.board.receive(w.record(Left(), version=5), A)
        assert len(heard) == 3

    asyncio.run(scenario())


def stranger(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32, "big"))


def test_a_flood_of_made_up_owners_is_bounded_and_crowds_out_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_store, "MAX_OWNERS", 60)
    w = World()
    honest = [stranger(1000 + n) for n in range(20)]
    for number, signer in enumerate(honest):  # half of them are known by hearsay of Bob
        sender = PeerId(signer.peer_id) if number % 2 else B
        assert w.board.receive(w.record(Beat(), signer=signer), sender) is Verdict.NEW
    verdicts = [w.board.receive(w.record(Beat(), signer=stranger(n)), A) for n in range(200)]
    assert len(w.board.store.owners) == 60
    assert verdicts.count(Verdict.FULL) == 200 - 39
    assert not Verdict.FULL.is_offence
    late = [stranger(2000 + n) for n in range(15)]
    for number, signer in enumerate(late):  # newcomers by other ways still find room
        sender = PeerId(signer.peer_id) if number % 2 else B
        assert w.board.receive(w.record(Beat(), signer=signer), sender) is Verdict.NEW
    assert len(w.board.store.owners) == 60
    assert all(w.board.is_alive(PeerId(signer.peer_id)) for signer in [*honest, *late])
    w.run(40.0)
    w.board.sweep()
    assert list(w.board.store.owners) == [w.board.peer_id]  # more than half full: the dead go early
    assert not w.board.store._introduced


def test_a_full_board_of_direct_acquaintances_turns_newcomers_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_store, "MAX_OWNERS", 5)
    w = World()
    peers = [stranger(n) for n in range(10)]
    verdicts = [w.board.receive(w.record(Beat(), signer=p), PeerId(p.peer_id)) for p in peers]
    assert verdicts == [Verdict.NEW] * 4 + [Verdict.FULL] * 6


def test_what_expires_of_a_living_peer_is_gone_for_all_who_ask() -> None:
    w = World()
    changes: list[tuple[PeerId, object]] = []
    w.board.receive(w.record(progress(1), version=1), A)
    assert list(w.board.payloads(Progress)) == [A]
    w.board.observe(lambda peer, change: changes.append((peer, change)))
    for version in range(2, 100):
        w.run(2.0)
        w.board.receive(w.record(Beat(), version=version), A)
        w.board.sweep()
    assert w.board.is_alive(A)
    assert w.board.get(A, Progress) is None
    assert dict(w.board.payloads(Progress)) == {}
    assert changes == [(A, "progress")]


def test_remembered_addresses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "MAX_FORMER", 3)
    w = World()
    for n in range(6):
        w.board.receive(w.record(AddressInfo("trainer", ("10.0.0.1:1",)), signer=stranger(n)), B)
        w.run(1.0)
    w.run(10.0)
    for _ in range(60):
        w.run(5.0)
        w.board.sweep()
    assert [address.peer_id for address in w.board.addresses()] == [stranger(n).peer_id for n in (3, 4, 5)]


PAYLOADS: list[Payload] = [progress(1), AddressInfo("trainer"), Beat(), Left(), StateInfo(1, "ab" * 32)]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(1, 12)), max_size=14), st.randoms())
def test_boards_agree_whatever_the_order_of_arrival(
    written: list[tuple[int, int, int]], generator: random.Random
) -> None:
    w = World()
    by_version = {(owner, version): kind for owner, kind, version in written}  # no owner signs a version twice
    records = [
        w.record(PAYLOADS[kind], signer=stranger(owner), version=version)
        for (owner, version), kind in by_version.items()
    ]
    views = []
    for _ in range(2):
        generator.shuffle(records)
        other = World()
        for record in [*records, *records]:
            assert other.board.receive(record, B) in (Verdict.NEW, Verdict.STALE)
        views.append(
            {
                peer: (list(owner.versions()), owner.fingerprint)
                for peer, owner in other.board.store.owners.items()
                if owner.entries
            }
        )
    assert views[0] == views[1]
