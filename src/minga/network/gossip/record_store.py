"""The records of all owners: which are kept, which are evicted, and when.

Theory of operation. The store holds the newest record of every owner and name. It also holds a version of each owner up
to which no record is accepted any more (its *floor*), so a replay brings back no record that was replaced, retracted or
forgotten. The floor is kept until all that came of its owner has expired, plus the tolerated clock skew: from then on a
replay is refused for its date. No record expires sooner than one before it, unless its owner forgot that one in a
restart. A record "left" voids all earlier ones of its owner.

In a run that is not open to every peer (`minga.network.authorizer`) only admitted owners are kept. A record "access"
holds its owner's credential, so it is checked first.

Memory is bounded: `MAX_OWNERS` owners with at most one record of bounded size per known kind, and a little room for
others. Keys cost nothing, so a full store makes the neighbour pay that introduced most owners: its last introduction
makes room for a new owner. If that neighbour introduces the new owner, too, the new owner is refused. So a flood crowds
out itself first.

An owner that signs two different records of the same version is not detected; whichever came first stays until the
next version.

A newer peer, or a package that others do not have, publishes records of *unknown kinds*, which this peer cannot read.
This peer checks signature, owner, version and dates as for any other record, and passes the record on unread, so that
it reaches peers that can read it. This peer cannot judge their value, so they get little room:

* of one owner the newest `MAX_UNKNOWN_KINDS` that fit into `MAX_OWNER_BYTES` are kept, the oldest version goes first;
* when all together take more than `MAX_TOTAL_BYTES`, the owner with the most bytes loses its oldest, again and again,
  until an eighth of the room is free. So a flood from one key crowds out itself, and one from many keys the largest.

Of dropped records the newest version of each owner is remembered (`PeerRecords.opaque_floor`). So none is fetched again
from peers that have room for it, or can read it; the next version is taken as usual. Codes and versions are remembered,
too, until they expire (`PeerRecords.dropped`). So such peers do not send them again.

A record of a known kind may be unreadable (a later version's word in an old field, or more bytes). It stays in the one
place that its kind has anyway, so it takes at most `MAX_PAYLOAD_BYTES` for each known kind.
"""

from __future__ import annotations

import heapq
import math
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable

from minga.network.authorizer import Authorizer
from minga.network.gossip import records
from minga.network.gossip.record_kinds import ACCESS, BEAT, Payload, RecordKinds
from minga.network.gossip.record_kinds import LEFT as LEFT_KIND
from minga.network.gossip.records import CLOCK_SKEW_S, Record, Verdict
from minga.network.interface import PeerId

# ---- The records of one owner.


RECORDS_PER_SECOND = 25.0
"""New versions per second that one owner may write in the long run; a burst may be twice as many."""

LEFT = LEFT_KIND.code
PREFIX_BYTES = 8
MAX_DROPPED = 32
"""Records of one owner that were dropped for want of room, of which the versions are remembered."""
_VERSION = struct.Struct(">BQ")


class StoredRecord:
    """The newest record of one name: as it came, its content, and when it came (awake clock, seconds).

    `payload` is None for a retraction and once the record was forgotten (then it is not `passed_on` any more); the
    version still guards against replays. `is_renewal`: the version before had the same content and was not forgotten.
    `is_opaque`: this peer cannot read it, so its payload is None, too.
    """

    __slots__ = ("arrived", "is_opaque", "is_renewal", "passed_on", "payload", "record")

    def __init__(
        self,
        record: Record,
        payload: Payload | None,
        arrived: float,
        before: StoredRecord | None = None,
        *,
        is_opaque: bool = False,
    ) -> None:
        self.record, self.payload, self.arrived = record, payload, arrived
        self.passed_on, self.is_opaque = True, is_opaque
        self.is_renewal = before is not None and before.passed_on and before.record.payload == record.payload


class PeerRecords:
    """One owner: its entries by code, its newest version, and the neighbour that first sent a record of it
    (`introducer`).

    `is_forgotten` while nothing of it may be read. `opaque_floor` is the newest version of a kind outside `kinds` that
    was dropped for want of room: nothing older of such kinds comes in again. Other peers may have room for what is
    `dropped` here (codes and versions), so this peer tells them that it knows these versions: else they would send them
    in each exchange.
    """

    __slots__ = (
        "_budget",
        "_budget_time",
        "_dropped_expires",
        "_fingerprint",
        "_kinds",
        "_latest_expiry",
        "_soonest_expiry",
        "dropped",
        "entries",
        "floor",
        "introducer",
        "is_forgotten",
        "newest",
        "opaque_floor",
        "prefix",
    )

    def __init__(self, peer: PeerId, introducer: PeerId, now: float, kinds: RecordKinds) -> None:
        self.introducer, self._kinds = introducer, kinds
        self.prefix = bytes.fromhex(peer[: 2 * PREFIX_BYTES])
        self.entries: dict[int, StoredRecord] = {}
        self.dropped: dict[int, int] = {}
        self.newest = self.floor = self.opaque_floor = self._dropped_expires = self._latest_expiry = 0
        self.is_forgotten = False
        self._budget, self._budget_time = 2.0 * RECORDS_PER_SECOND, now
        self._fingerprint: bytes | None = None
        self._soonest_expiry = math.inf  # no record expires before, but a later one may be the first

    def is_stale(self, record: Record) -> bool:
        """Whether the record is not newer than what is known already."""
        return self.is_past(record.code, record.version)

    def is_past(self, code: int, version: int) -> bool:
        """The same by code and version."""
        entry = self.entries.get(code)
        floor = self.floor if code in self._kinds else max(self.floor, self.opaque_floor)
        return version <= max(floor, entry.record.version if entry else 0)

    def may_write(self, now: float) -> bool:
        """Whether the owner's budget of new versions allows one more."""
        self._budget = min(self._budget + (now - self._budget_time) * RECORDS_PER_SECOND, 2.0 * RECORDS_PER_SECOND)
        self._budget_time = now
        return self._budget >= 1.0

    def store(self, entry: StoredRecord) -> None:
        """Keep a record that is genuine and not stale, and drop what it voids."""
        record = entry.record
        self.is_forgotten = False
        self._budget -= 1.0
        self._fingerprint = None
        self._soonest_expiry = min(self._soonest_expiry, record.expires)
        self._latest_expiry = max(self._latest_expiry, record.expires)
        self.entries[record.code] = entry
        self.dropped.pop(record.code, None)
        self.newest = max(self.newest, record.version)
        left = self.entries.get(LEFT)
        if left is not None:
            self.floor = max(self.floor, left.record.version)
            self.entries = {code: e for code, e in self.entries.items() if e is left or e.record.version > self.floor}
            self.dropped = {code: version for code, version in self.dropped.items() if version > self.floor}
            if self.newest > left.record.version:
                del self.entries[LEFT]

    def unknown(self) -> list[StoredRecord]:
        """The entries of kinds that are not known here, oldest version first."""
        found = [entry for code, entry in self.entries.items() if code not in self._kinds]
        return sorted(found, key=lambda entry: entry.record.version)

    def evict(self, entry: StoredRecord) -> None:
        """Drop an entry of a kind that is not known here, for want of room."""
        record = entry.record
        self.opaque_floor = max(self.opaque_floor, record.version)
        self._dropped_expires = max(self._dropped_expires, record.expires)
        del self.entries[record.code]
        self._note_dropped(record)

    def lacks_room_for(self, record: Record) -> bool:
        """Whether the record is news that is refused only because newer ones were dropped for want of room."""
        if record.code in self._kinds or record.code in self.entries:
            return False
        return record.version > max(self.floor, self.dropped.get(record.code, 0))

    def turn_away(self, record: Record) -> None:
        """Note a genuine record for which there is no room; it counts as one that its owner wrote."""
        self._budget -= 1.0
        self._note_dropped(record)

    def _note_dropped(self, record: Record) -> None:
        self.dropped[record.code] = record.version
        self._soonest_expiry = -math.inf
        if len(self.dropped) > MAX_DROPPED:
            del self.dropped[min(self.dropped, key=self.dropped.__getitem__)]
        self._fingerprint = None

    @property
    def has_left(self) -> bool:
        """Whether the newest word of the owner was goodbye."""
        return LEFT in self.entries

    def forget(self) -> None:
        """Drop all content; versions are kept until they expire."""
        self.is_forgotten, self.floor = True, self.newest
        for entry in self.entries.values():
            entry.payload, entry.passed_on = None, False

    def is_fresh(self, before_ms: float) -> bool:
        """Whether surely no record expired before `before_ms` (Unix milliseconds), dropped ones included."""
        return before_ms <= self._soonest_expiry

    def expires_completely(self, before_ms: float) -> bool:
        """Whether every record, replaced and dropped ones too, expired before `before_ms` (Unix milliseconds)."""
        return self._latest_expiry < before_ms

    def expire(self, before_ms: float, *, is_own: bool) -> list[int]:
        """Drop the records that expired before `before_ms` (Unix milliseconds); returns their codes.

        What this peer itself says stays, to be renewed: it was asleep, or was stopped, and could not. Beats never are.
        """
        kept = {
            code: entry
            for code, entry in self.entries.items()
            if entry.record.expires >= before_ms or (is_own and entry.payload is not None and code != BEAT.code)
        }
        expired = [code for code in self.entries if code not in kept]
        if expired:
            if not is_own:  # what an earlier life said is to be outdone, also when it is older
                self.floor = max(self.floor, *(self.entries[code].record.version for code in expired))
            self.entries, self._fingerprint = kept, None
        if self.dropped and self._dropped_expires < before_ms:
            self.dropped, self._fingerprint = {}, None
        if not self.dropped:
            self._soonest_expiry = min((entry.record.expires for entry in kept.values()), default=math.inf)
        return expired

    def versions(self) -> list[tuple[int, int]]:
        """Code and version of each record, dropped ones too, in order of codes."""
        held = [(code, entry.record.version) for code, entry in self.entries.items()]
        return sorted([*self.dropped.items(), *held] if self.dropped else held)

    @property
    def fingerprint(self) -> bytes:
        """Four bytes that differ, almost always, when any version differs."""
        if self._fingerprint is None:
            packed = b"".join(_VERSION.pack(code, version) for code, version in self.versions())
            self._fingerprint = zlib.crc32(packed).to_bytes(4, "big")
        return self._fingerprint


# ---- The records of all owners.


MAX_OWNERS = 4096
MAX_UNKNOWN_KINDS = 8
MAX_OWNER_BYTES = 8192
MAX_TOTAL_BYTES = 8 << 20
RECORD_BYTES = 256
"""The size of a record besides its payload, about."""


class RecordStore:
    """The records of all peers that `authorizer` admits, and of this peer (`own_id`), which is never evicted."""

    def __init__(self, own_id: PeerId, run_id: str, now: float, authorizer: Authorizer, kinds: RecordKinds) -> None:
        self.own = PeerRecords(own_id, own_id, now, kinds)
        self.owners: dict[PeerId, PeerRecords] = {own_id: self.own}
        self._run_id, self._authorizer, self._kinds = run_id, authorizer, kinds
        self._opaque_bytes = 0  # at most: those of new records are added, those of dropped ones are not subtracted
        self._introduced: Counter[PeerId] = Counter()

    def judge(self, record: Record, sender: PeerId, now: float, wall_time_s: float) -> Verdict:
        """What to do with a received record; NEW: `add` it if it is genuine, which the caller checks last of all."""
        verdict = records.check_form(record, self._kinds)
        if verdict is not Verdict.NEW:
            return verdict
        owner_id = record.owner
        owner = self.owners.get(owner_id)
        name = self._kinds.name(record.code)
        if owner is not self.own and record.code != ACCESS.code and not self._authorizer.admits(owner_id, name):
            return Verdict.NOT_ADMITTED
        if owner is not None and owner.is_stale(record):
            return self._judge_stale(owner, record, now)
        dated = records.check_dates(record, wall_time_s * 1000.0)
        if owner is self.own and dated is Verdict.EXPIRED and record.version <= owner.newest:
            return Verdict.STALE  # of this life: it was swept here and is not yet there
        if owner is self.own:  # an earlier life of this peer, whose clock may have been another one
            return Verdict.SUPERSEDING if records.is_genuine(record, self._run_id) else Verdict.FORGED
        if dated is not Verdict.NEW:
            return dated
        if owner is None and self._is_full_for(owner_id, sender):
            return Verdict.FULL
        if owner is not None and not owner.may_write(now):
            return Verdict.TOO_OFTEN
        return Verdict.NEW

    def add(self, owner_id: PeerId, sender: PeerId, now: float) -> tuple[PeerRecords, PeerId | None]:
        """The owner, made if it is new, and the one that had to go to make room, if any."""
        owner = self.owners.get(owner_id)
        if owner is not None:
            return owner, None
        evicted = self._victim() if len(self.owners) >= MAX_OWNERS else None
        if evicted is not None:
            self.remove(evicted)
        owner = self.owners[owner_id] = PeerRecords(owner_id, sender, now, self._kinds)
        if sender != owner_id:
            self._introduced[sender] += 1
        return owner, evicted

    def keep(self, owner: PeerRecords, entry: StoredRecord) -> bool:
        """Keep a record that is genuine and not stale; False if it is of an unknown kind and had to go at once."""
        owner.store(entry)
        if entry.record.code in self._kinds:
            return True
        self._make_room(owner, len(entry.record.payload))
        return owner.entries.get(entry.record.code) is entry

    def remove(self, owner_id: PeerId) -> None:
        """Drop an owner with all traces."""
        introducer = self.owners.pop(owner_id).introducer
        if introducer != owner_id:
            self._introduced[introducer] -= 1
            if not self._introduced[introducer]:
                del self._introduced[introducer]

    def sweep(
        self, wall_time_s: float, is_long_dead: Callable[[PeerId], bool]
    ) -> tuple[list[PeerId], list[tuple[PeerId, int]]]:
        """Drop expired records; from a store more than half full the owners that `is_long_dead` are to go, too.

        Returns the owners that have no record left, which the caller removes, and the expired records of others, by
        owner and code.
        """
        before_ms = (wall_time_s - CLOCK_SKEW_S) * 1000.0
        crowded = len(self.owners) > MAX_OWNERS // 2
        gone, expired = list[PeerId](), list[tuple[PeerId, int]]()
        for owner_id, owner in self.owners.items():
            if not crowded and owner.entries and owner.is_fresh(before_ms):
                continue
            dispensable = (crowded and is_long_dead(owner_id)) or owner.expires_completely(before_ms)
            if dispensable and owner is not self.own:
                gone.append(owner_id)
            else:
                expired += [(owner_id, code) for code in owner.expire(before_ms, is_own=owner is self.own)]
        return gone, expired

    def _make_room(self, owner: PeerRecords, added_bytes: int) -> None:
        """Drop records of unknown kinds beyond their bounds, after a new one of `owner`.

        Those of all owners are counted only once for each eighth of the room that came in, so that a flood costs
        little time.
        """
        entries = owner.unknown()
        while len(entries) > MAX_UNKNOWN_KINDS or _size(entries) > MAX_OWNER_BYTES:
            owner.evict(entries.pop(0))
        self._opaque_bytes += added_bytes + RECORD_BYTES
        if self._opaque_bytes > MAX_TOTAL_BYTES:
            self._opaque_bytes = _shrink(self.owners.values())

    def _judge_stale(self, owner: PeerRecords, record: Record, now: float) -> Verdict:
        """Remember what there is no room for, so that it is not sent again."""
        if owner.lacks_room_for(record) and owner.may_write(now):
            if not records.is_genuine(record, self._run_id):
                return Verdict.FORGED
            owner.turn_away(record)
        return Verdict.STALE

    def _is_full_for(self, owner_id: PeerId, sender: PeerId) -> bool:
        if len(self.owners) < MAX_OWNERS:
            return False
        largest = max(self._introduced.values(), default=0)
        return not largest or (owner_id != sender and self._introduced[sender] + 1 >= largest)

    def _victim(self) -> PeerId | None:
        """The last introduction of the neighbour that introduced most."""
        if not self._introduced:
            return None
        largest = min(self._introduced, key=lambda peer: (-self._introduced[peer], peer))
        introductions = (p for p in reversed(self.owners) if self.owners[p].introducer == largest != p)
        return next(introductions, None)


def _shrink(owners: Iterable[PeerRecords]) -> int:
    """Drop the oldest of whichever owner has most, until an eighth is free. Returns the bytes that remain."""
    held = [(owner, entries) for owner in owners if (entries := owner.unknown())]
    largest = [(-_size(entries), number) for number, (_, entries) in enumerate(held)]
    total = -sum(size for size, _ in largest)
    heapq.heapify(largest)
    while total > MAX_TOTAL_BYTES * 7 // 8:
        size, number = largest[0]
        owner, entries = held[number]
        entry = entries.pop(0)
        owner.evict(entry)
        freed = _size([entry])
        total -= freed
        heapq.heapreplace(largest, (size + freed, number))
    return total


def _size(entries: Iterable[StoredRecord]) -> int:
    return sum(len(entry.record.payload) + RECORD_BYTES for entry in entries)
