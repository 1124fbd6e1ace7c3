"""The records of one owner."""

from __future__ import annotations

import math
import struct
import zlib

from minga.network.gossip.record_kinds import LEFT as LEFT_KIND
from minga.network.gossip.record_kinds import Payload, RecordKinds
from minga.network.gossip.records import Record
from minga.network.interface import PeerId

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
        self.newest = self.floor = self.opaque_floor = self._dropped_expires = 0
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
        """Whether every record, dropped ones too, expired before `before_ms` (Unix milliseconds)."""
        newest = max((entry.record.expires for entry in self.entries.values()), default=0)
        return max(newest, self._dropped_expires) < before_ms

    def expire(self, before_ms: float) -> list[int]:
        """Drop the records that expired before `before_ms` (Unix milliseconds); returns their codes."""
        kept = {code: entry for code, entry in self.entries.items() if entry.record.expires >= before_ms}
        expired = [code for code in self.entries if code not in kept]
        if expired:
            self.entries, self._fingerprint = kept, None
        if self.dropped and self._dropped_expires < before_ms:
            self.dropped, self._fingerprint = {}, None
        if not self.dropped:
            self._soonest_expiry = min((entry.record.expires for entry in kept.values()), default=math.inf)
        return expired

    def versions(self) -> list[tuple[int, int]]:
        """Code and version of each record, dropped ones too, in order of codes."""
        held = {code: entry.record.version for code, entry in self.entries.items()}
        return sorted((self.dropped | held).items())

    @property
    def fingerprint(self) -> bytes:
        """Four bytes that differ, almost always, when any version differs."""
        if self._fingerprint is None:
            packed = b"".join(_VERSION.pack(code, version) for code, version in self.versions())
            self._fingerprint = zlib.crc32(packed).to_bytes(4, "big")
        return self._fingerprint
