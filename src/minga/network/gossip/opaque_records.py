"""Room for records of kinds that are not known here.

Theory of operation. A newer peer, or a package that others do not have, publishes records of kinds that this peer
cannot read. This peer checks signature, owner, version and dates as for any other record, and passes the record on
unread, so that it reaches peers that can read it. This peer cannot judge their value, so they get little room:

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
from collections.abc import Iterable

from minga.network.gossip.peer_records import PeerRecords, StoredRecord

MAX_UNKNOWN_KINDS = 8
MAX_OWNER_BYTES = 8192
MAX_TOTAL_BYTES = 8 << 20
RECORD_BYTES = 256
"""The size of a record besides its payload, about."""


class OpaqueRoom:
    """Keeps the records of unknown kinds on one board within bounds."""

    def __init__(self) -> None:
        self._at_most = 0  # bytes in use: new records since the last count are added, dropped ones are not subtracted

    def make_room(self, owner: PeerRecords, added_bytes: int, owners: Iterable[PeerRecords]) -> None:
        """Make room after a new record of `owner` with so many bytes of payload: drop records of `owner`, and of all
        `owners`, beyond their bounds.

        All are counted only once for each eighth of the room that came in, so that a flood costs little time.
        """
        entries = owner.unknown()
        while len(entries) > MAX_UNKNOWN_KINDS or _size(entries) > MAX_OWNER_BYTES:
            owner.evict(entries.pop(0))
        self._at_most += added_bytes + RECORD_BYTES
        if self._at_most > MAX_TOTAL_BYTES:
            self._at_most = _shrink(owners)


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
