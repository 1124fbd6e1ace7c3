"""The board: everything that the peers of a run say about themselves, held by each of them and read without a lookup.

A peer also reads what others have of its own key: records of an earlier life, which it outdoes, or of another process
that uses a copy of the key and entered elsewhere. Of two such the older one stays. It answers the younger one's address
with its own, which names that one: a process that was killed could not have done so. The younger one ends upon it.

The board does no input or output: `minga.network.gossip.gossip` carries records to and from others and drives `watch`,
`beat` and `sweep`. `minga.network.gossip.record_store` decides which records are kept, and
`minga.network.gossip.failure_detector` which peers are alive. Use a board on the thread of its event loop only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar, cast

import msgspec

from minga.core.aio import Observers, Signal
from minga.core.events.bus import EventBus
from minga.core.events.network import BoardStalled, MemberJoined, MemberLeft, MemberLost, RecordIgnored
from minga.core.thread_guard import loop_bound
from minga.identity.keys.keys import Identity
from minga.network.authorizer import Authorizer, OpenAuthorizer
from minga.network.gossip import records
from minga.network.gossip.failure_detector import AwakeClock, FailureDetector
from minga.network.gossip.record_kinds import (
    ADDRESS,
    BEAT,
    NETWORK_KINDS,
    AddressInfo,
    Beat,
    Credential,
    Payload,
    RecordKinds,
)
from minga.network.gossip.record_store import LEFT, RecordStore, StoredRecord
from minga.network.gossip.records import MAX_TTL_S, TTL_BEATS, TTL_S, Record, Verdict, check_dates
from minga.network.interface import Address, PeerId
from minga.network.rpc import keepalive
from minga.network.rpc.handshake import Incarnation
from minga.network.rpc.run_clock import RunClock

MAX_FORMER = 256
"""How many addresses of peers that fell silent are remembered, to heal a split that lasted long."""

DEAD_KEPT_S = 30.0
"""Seconds for which silent owners stay on a board that is more than half full."""

P = TypeVar("P", bound=Payload)


class Presence(Enum):
    """How a peer's being there changed: it appeared, said goodbye, or fell silent."""

    JOINED = auto()
    LEFT = auto()
    LOST = auto()


_TOLD: Final = {Presence.JOINED: MemberJoined, Presence.LEFT: MemberLeft, Presence.LOST: MemberLost}

Change = str | Presence
"""What changed about one owner: the content of its record of this name, or whether it is there."""

Observer = Callable[[PeerId, Change], None]


class Item(NamedTuple, Generic[P]):
    """One owner's record of some kind: its content, and seconds since its newest version came."""

    owner: PeerId
    payload: P
    age_s: float


@loop_bound
class Board:
    """All records of one run as one peer knows them, and what this peer itself publishes.

    `run_clock` gives the dates of records, `clock` the loop's time in seconds. `authorizer` says which peers' records
    are kept (default: all). `kinds` are those that this peer can read and write; others are passed on unread.
    """

    def __init__(
        self,
        signer: Identity,
        run_id: str,
        *,
        run_clock: RunClock,
        clock: Callable[[], float],
        events: EventBus,
        authorizer: Authorizer | None = None,
        kinds: RecordKinds = NETWORK_KINDS,
    ) -> None:
        self.kinds = kinds
        self.peer_id = PeerId(signer.peer_id)
        self.run_id, self.events = run_id, events
        self.now = AwakeClock(clock, keepalive.PULSE_S)  # the gossip looks at it with each tick
        self.on_signed = Observers[[Record]]()
        """Called with every record that this peer signs."""
        self.on_rival = Observers[[Incarnation]]()
        """Called with an older process that uses this peer's key and lives."""
        self.generation = 0
        """Grows by one with each change."""
        self.verdicts: Counter[Verdict] = Counter()
        """The verdicts on all records received so far."""
        self._observers = Observers[[PeerId, Change]]()
        self._bell = Signal()
        self._authorizer = authorizer or OpenAuthorizer()
        self.store = RecordStore(self.peer_id, run_id, self.now(), self._authorizer, kinds)
        self._signer, self.run_clock = signer, run_clock
        self._detector = FailureDetector()
        self._former: dict[PeerId, Address] = {}
        self._alive: set[PeerId] = set()
        self._last_signed = self.now()
        self._superseded = False
        self._ttl_s, self._last_expiry_ms = TTL_S, 0
        self._views: dict[int, dict[PeerId, Payload]] = {}
        self._unsorted: set[int] = set()  # the views to which a peer was added at the end

    # ---- reading

    def get(self, owner: PeerId, payload_type: type[P]) -> P | None:
        """The payload of `owner`'s record of this type, or None; the owner may be dead by now."""
        known = self.store.owners.get(owner)
        entry = known.entries.get(self.kinds.of(payload_type).code) if known else None
        return cast(P, entry.payload) if entry and entry.payload is not None else None

    def owners(self) -> list[PeerId]:
        """All living peers including this one, in order of their ids."""
        return sorted(self._alive)

    def items(self, payload_type: type[P]) -> list[Item[P]]:
        """The records of this type of all living peers, in order of owners."""
        code, now = self.kinds.of(payload_type).code, self.now()
        found = ((peer, self.store.owners[peer].entries.get(code)) for peer in self.owners())
        return [
            Item(peer, cast(P, entry.payload), max(0.0, now - entry.arrived))
            for peer, entry in found
            if entry is not None and entry.payload is not None
        ]

    def payloads(self, payload_type: type[P]) -> Mapping[PeerId, P]:
        """The payloads of all living peers' records of this type, in order of their ids.

        It is kept and brought up to date with each change, peers that come and go included, so that asking costs
        nothing; copy it to keep it beyond this turn of the loop, or for another thread.
        """
        code = self.kinds.of(payload_type).code
        if code not in self._views:
            self._views[code] = {peer: payload for peer, payload, _ in self.items(payload_type)}
        elif code in self._unsorted:
            self._views[code] = dict(sorted(self._views[code].items()))
        self._unsorted.discard(code)
        return cast("Mapping[PeerId, P]", self._views[code])

    def is_alive(self, peer: PeerId) -> bool:
        """Whether the peer said no goodbye and is not silent for suspiciously long; unknown peers are not alive.

        Silence is judged every quarter of a second. This peer is alive once it published something.
        """
        return peer in self._alive

    @property
    def alive_count(self) -> int:
        """How many peers are alive, this one included once it published something."""
        return len(self._alive)

    def address_of(self, peer: PeerId) -> Address | None:
        """Where `peer` can be dialled, if known; remembered for some that are long gone. Fits `Node(lookup=…)`."""
        info = self.get(peer, AddressInfo)
        return Address(peer, info.direct, info.relay) if info is not None else self._former.get(peer)

    def addresses(self) -> list[Address]:
        """Where others can be dialled: living peers, and those that fell silent without a goodbye; oldest first."""
        known = dict(self._former)
        for peer in self.store.owners:
            address = self.address_of(peer)
            if address is not None and peer != self.peer_id:
                known[peer] = address
        return [address for address in known.values() if address.dialable]

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call `observer` with each change from now on; returns the function that ends this."""
        return self._observers.add(observer)

    async def changed(self, since: int) -> int:
        """Wait until `generation` is greater than `since`; returns it."""
        while self.generation <= since:
            await self._bell.wait()
        return self.generation

    # ---- writing

    def put(self, payload: Payload) -> None:
        """Publish an own record, in place of the one of this type before; nothing more once this peer said goodbye.

        Raises `ConfigurationError` if a field is out of range or the payload is too large.
        """
        encoded = self.kinds.encode(payload)
        self._sign(self.kinds.of(type(payload)).code, encoded, payload)

    def retract(self, payload_type: type[Payload]) -> None:
        """Withdraw the own record of this type, if there is one."""
        if self.get(self.peer_id, payload_type) is not None:
            self._sign(self.kinds.of(payload_type).code, b"", None)

    def forget(self, peer: PeerId) -> None:
        """Drop all records of another peer until it writes a new one; its old records do not come back."""
        if peer in self.store.owners and peer != self.peer_id:
            self.store.owners[peer].forget()
            self._detector.forget(peer)
            self._former.pop(peer, None)
            self._review(peer)

    def expel(self, peer: PeerId) -> None:
        """Drop another peer, with all that is known of it, because it takes part no more."""
        if peer in self.store.owners and peer != self.peer_id:
            self._drop(peer)
        self._former.pop(peer, None)

    def receive(self, record: Record, sender: PeerId, age_s: float = 0.0) -> Verdict:
        """Take in a record that `sender`, an authenticated neighbour, passed on `age_s` after it got it itself."""
        return (
            Verdict.STALE if self.hear_again(record.owner, record, age_s) else self.receive_other(record, sender, age_s)
        )

    def receive_other(self, record: Record, sender: PeerId, age_s: float) -> Verdict:
        """The same for a record that is not on the board, see `hear_again`."""
        now = self.now()
        verdict = self.store.judge(record, sender, now, self.run_clock.now())
        if verdict is Verdict.NEW:
            genuine = records.genuine(record, self.run_id)
            verdict = Verdict.FORGED if genuine is None else self._take_in(genuine, sender, now, age_s)
        elif verdict is Verdict.STALE:
            if record.version == self.store.owners[record.owner].newest:
                self._detector.heard_again(record.owner, now, age_s)
        elif verdict is Verdict.SUPERSEDING:
            self._supersede(record)
        self.verdicts[verdict] += 1
        if verdict is not Verdict.NEW and verdict is not Verdict.STALE:
            self._report(verdict, record, sender)
        return verdict

    def hear_again(self, peer: PeerId, record: Record, age_s: float) -> bool:
        """Whether exactly this version of a record of `peer`, its owner, is on the board, as with most records that
        come; then only its age counts.
        """
        owner = self.store.owners.get(peer)
        entry = owner.entries.get(record.code) if owner is not None else None
        if owner is None or entry is None or entry.record.version != record.version:
            return False
        if record.version == owner.newest:
            self._detector.heard_again(peer, self.now(), age_s)
        self.verdicts[Verdict.STALE] += 1
        return True

    # ---- driven by the gossip

    def watch(self, beat_s: float) -> None:
        """Note who came and went; call it every `now.period_s`. `beat_s` is the longest pause peers now make."""
        slept = self.now.tick()
        if slept > self.now.period_s:
            self.events.emit(BoardStalled(seconds=slept))
        self._detector.beat_s = max(beat_s, 0.98 * self._detector.beat_s)  # others may see a smaller swarm later
        now = self.now()
        if self._detector.may_have_died(now):
            silent = [p for p in self._alive if p != self.peer_id and not self._detector.is_alive(p, now)]
            for peer in sorted(silent):
                self._review(peer)

    def beat(self, beat_s: float) -> float:
        """Renew own records that are due and, if nothing was signed for `beat_s`, sign a beat.

        Returns the seconds after which to call this again.
        """
        if self.store.own.has_left or not self.store.own.entries:
            return beat_s
        self._ttl_s = min(max(TTL_S, TTL_BEATS * beat_s), MAX_TTL_S)
        now, run_time = self.now(), self.run_clock.now()
        for code, entry in sorted(self.store.own.entries.items()):
            # After a third of its own life: in a swarm that grows, later ones live longer.
            is_old = entry.record.expires / 1000.0 - run_time <= 2.0 * (now - entry.arrived)
            is_refused = check_dates(entry.record, 1000.0 * run_time) is Verdict.FUTURE  # by a clock that was ahead
            if (is_old or is_refused or self._superseded) and code != BEAT.code and entry.payload is not None:
                self._sign(code, entry.record.payload, entry.payload)
        self._superseded = False
        quiet_s = self.now() - self._last_signed
        if quiet_s < beat_s - 0.01:
            return beat_s - quiet_s
        self.put(Beat())
        return beat_s

    def connection_lost(self, peer: PeerId) -> None:
        """Suspect a peer more because the last connection to it is gone."""
        self._detector.connection_lost(peer)

    def sweep(self) -> None:
        """Drop what expired; call it every few seconds."""
        now = self.now()
        gone, expired = self.store.sweep(
            self.run_clock.now(), lambda peer: self._detector.silence_s(peer, now) > DEAD_KEPT_S
        )
        for peer in gone:
            self._drop(peer)
        for peer, code in expired:
            self._tell(peer, code)

    # ---- inner workings

    def _take_in(self, record: Record, sender: PeerId, now: float, age_s: float) -> Verdict:
        """Keep a genuine record, unread if its kind, or its content, is not known here.

        Only of basic kinds is it certain that an honest peer would not have passed on what this one cannot read.
        """
        try:
            payload, is_opaque = self.kinds.open(record.code, record.payload), False
        except ValueError:
            payload, is_opaque = None, True
        if is_opaque and self.kinds.is_basic(record.code):
            return Verdict.BAD_PAYLOAD
        if isinstance(payload, Credential) and not self._authorizer.learn(record.owner, payload.credential):
            return Verdict.NOT_ADMITTED
        is_kept = self._accept(record, payload, sender, now, age_s, is_opaque=is_opaque)
        return Verdict.NEW if is_kept else Verdict.CROWDED

    def _supersede(self, record: Record) -> None:
        """Outdo, at the next beat, a record of an earlier life of this peer; retract it if this life has none."""
        own = self.store.own
        own.newest = max(own.newest, record.version)
        self._last_expiry_ms = self._latest(self._last_expiry_ms, record.expires)
        self._superseded = True
        if record.code == LEFT:
            own.floor = max(own.floor, record.version)
        elif record.code not in own.entries and not self.kinds.is_basic(record.code):
            self._sign(record.code, b"", None)
        if record.code == ADDRESS.code:
            self._meet_rival(record)

    def _meet_rival(self, record: Record) -> None:
        """An address that another process with this peer's key published, dead by now or not."""
        own = self.get(self.peer_id, AddressInfo)
        try:
            theirs = self.kinds.open(record.code, record.payload)
        except ValueError:  # of a later version
            return
        if own is None or own.incarnation is None or not isinstance(theirs, AddressInfo) or theirs.incarnation is None:
            return
        if theirs.incarnation > own.incarnation and own.rival != theirs.incarnation.nonce:
            self.put(msgspec.structs.replace(own, rival=theirs.incarnation.nonce))
        elif theirs.incarnation < own.incarnation and theirs.rival == own.incarnation.nonce:
            self.on_rival.tell(theirs.incarnation)

    def _sign(self, code: int, encoded: bytes, payload: Payload | None) -> None:
        now_ms, own = int(self.run_clock.now() * 1000.0), self.store.own
        if own.has_left:  # it would take the goodbye back
            return
        version = max(own.newest + 1, now_ms)
        # An earlier one that outlived this one, because the swarm was larger then, could be replayed.
        expires = self._last_expiry_ms = max(now_ms + int(self._ttl_s * 1000.0), self._latest(self._last_expiry_ms))
        record = records.make_record(self._signer, self.run_id, code, version, expires, encoded)
        self._last_signed = self.now()
        entry = StoredRecord(record, payload, self._last_signed, own.entries.get(code))
        own.store(entry)
        self.on_signed.tell(record)
        if not entry.is_renewal:
            self._tell(self.peer_id, code)
        self._review(self.peer_id)

    def _latest(self, *expiries_ms: int) -> int:
        """The latest but for those further ahead than any may be, by a clock that was ahead; 0 if there is none."""
        limit_ms = int(self.run_clock.now() * 1000.0) + int(MAX_TTL_S * 1000.0)
        return max((each for each in expiries_ms if each <= limit_ms), default=0)

    def _accept(
        self, record: Record, payload: Payload | None, sender: PeerId, now: float, age_s: float, *, is_opaque: bool
    ) -> bool:
        """Whether the record is kept: there may be no room for what is not known here."""
        peer = record.owner
        owner, evicted = self.store.add(peer, sender, now)
        if evicted is not None:
            self._drop(evicted)
        if record.version > owner.newest:
            self._detector.heard(peer, now, age_s)
        arrived = now - min(max(age_s, 0.0), MAX_TTL_S)
        entry = StoredRecord(record, payload, arrived, owner.entries.get(record.code), is_opaque=is_opaque)
        is_kept = self.store.keep(owner, entry)
        if not entry.is_renewal:
            self._tell(peer, record.code)
        self._review(peer)
        return is_kept

    def _drop(self, peer: PeerId) -> None:
        if peer in self.store.owners:
            self.store.remove(peer)
        self._detector.forget(peer)
        self._review(peer)

    def _review(self, peer: PeerId) -> None:
        owner = self.store.owners.get(peer)
        alive = owner is not None and not owner.has_left and not owner.is_forgotten
        if alive and peer != self.peer_id:
            alive = self._detector.is_alive(peer, self.now())
        if alive == (peer in self._alive):
            return
        if alive:
            self._alive.add(peer)
            self._former.pop(peer, None)
        else:
            self._alive.remove(peer)
            address = self.address_of(peer)
            if address is not None and address.dialable:
                self._former[peer] = address
                while len(self._former) > MAX_FORMER:
                    del self._former[next(iter(self._former))]
        gone = Presence.LEFT if owner is not None and owner.has_left else Presence.LOST
        presence = Presence.JOINED if alive else gone
        for code in self._views:
            self._update_view(peer, code)
        self.events.emit(_TOLD[presence](peer=peer))
        self._notify(peer, presence)

    def _tell(self, peer: PeerId, code: int) -> None:
        """The content of this record is another one, or gone."""
        if code != BEAT.code:
            for changed in self._views if code == LEFT else (code,):  # a goodbye voids what was said before it
                self._update_view(peer, changed)
            self._notify(peer, self.kinds.name(code))

    def _notify(self, peer: PeerId, change: Change) -> None:
        self.generation += 1
        self._bell.fire()
        self._observers.tell(peer, change)

    def _update_view(self, peer: PeerId, code: int) -> None:
        owner, view = self.store.owners.get(peer), self._views.get(code)
        if view is None:
            return
        entry = owner.entries.get(code) if owner is not None and peer in self._alive else None
        if entry is None or entry.payload is None:
            view.pop(peer, None)
            return
        if peer not in view:
            self._unsorted.add(code)
        view[peer] = entry.payload

    def _report(self, verdict: Verdict, record: Record, sender: PeerId) -> None:
        """Tell of the 1st, 2nd, 4th, 8th, … record that was ignored for one reason."""
        count = self.verdicts[verdict]
        if not verdict.is_offence and count.bit_count() == 1:
            self.events.emit(RecordIgnored(peer=record.owner, sender=sender, reason=verdict.value, count=count))
