"""The records of all owners: which are kept, which are evicted, and when.

Theory of operation. The store holds the newest record of every owner and name. It also holds a version of each owner up
to which no record is accepted any more (its *floor*), so a replay brings back no record that was replaced, retracted or
forgotten. No tombstone is needed beyond a record's own expiry plus the tolerated clock skew: from then on a replay is
refused for its date. A record "left" voids all earlier ones of its owner.

In a run that is not open to every peer (`minga.network.authorizer`) only admitted owners are kept. A record "access"
holds its owner's credential, so it is checked first.

Memory is bounded: `MAX_OWNERS` owners with at most one record of bounded size per known kind, and what
`minga.network.gossip.opaque_records` allows of others. Keys cost nothing, so a full store makes the neighbour pay that
introduced most owners: its last introduction makes room for a new owner. If that neighbour introduces the new owner,
too, the new owner is refused. So a flood crowds out itself first.

An owner that signs two different records of the same version is not detected; whichever came first stays until the
next version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from minga.network.authorizer import Authorizer
from minga.network.gossip import records
from minga.network.gossip.opaque_records import OpaqueRoom
from minga.network.gossip.peer_records import PeerRecords, StoredRecord
from minga.network.gossip.record_kinds import ACCESS, RecordKinds
from minga.network.gossip.records import CLOCK_SKEW_S, Record, Verdict
from minga.network.interface import PeerId

MAX_OWNERS = 4096


class RecordStore:
    """The records of all peers that `authorizer` admits, and of this peer (`own_id`), which is never evicted."""

    def __init__(self, own_id: PeerId, run_id: str, now: float, authorizer: Authorizer, kinds: RecordKinds) -> None:
        self.own = PeerRecords(own_id, own_id, now, kinds)
        self.owners: dict[PeerId, PeerRecords] = {own_id: self.own}
        self._run_id, self._authorizer, self._kinds = run_id, authorizer, kinds
        self._opaque = OpaqueRoom()
        self._introduced: Counter[PeerId] = Counter()

    def judge(self, record: Record, sender: PeerId, now: float, wall_time_s: float) -> Verdict:
        """What to do with a received record; NEW: `add` it. The cheap checks come first, the signature last."""
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
        if owner is self.own:  # an earlier life of this peer, whose clock may have been another one
            return Verdict.SUPERSEDING if records.is_genuine(record, self._run_id) else Verdict.FORGED
        verdict = records.check_dates(record, wall_time_s * 1000.0)
        if verdict is not Verdict.NEW:
            return verdict
        if owner is None and self._is_full_for(owner_id, sender):
            return Verdict.FULL
        if owner is not None and not owner.may_write(now):
            return Verdict.TOO_OFTEN
        return Verdict.NEW if records.is_genuine(record, self._run_id) else Verdict.FORGED

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
        self._opaque.make_room(owner, len(entry.record.payload), self.owners.values())
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
                expired += [(owner_id, code) for code in owner.expire(before_ms)]
        return gone, expired

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
