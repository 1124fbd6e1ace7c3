"""What each peer has given to the run: samples, steps, hours, and bytes that it averaged for others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from minga.core.decoding import decode_json
from minga.receipts.book import PeerTotals
from minga.training.record_kinds import is_another_process
from minga.training.status.run_status import PeerStatus, RunStatus

MOST_PEERS: Final = 4096
LONGEST_GAP_S: Final = 60.0
"""Time between two looks that counts as presence; what lies further apart was not watched."""
MOST_STEPS: Final = 1000
"""Steps between two looks; a larger jump is that of a peer that fetched the state."""


class Contribution(msgspec.Struct):
    """One peer, in the hands of one person. `seconds` are those in which it took part, `reduced_bytes` an estimate from
    the plan: its share of the vector, once for each other member and step. `last_total` is its own count when it was
    last seen, and `last_since` the process that count is of.
    """

    peer: Annotated[str, msgspec.Meta(max_length=64)]
    name: Annotated[str, msgspec.Meta(max_length=64)] = ""
    samples: int = 0
    steps: int = 0
    seconds: float = 0.0
    reduced_bytes: float = 0.0
    last_total: int = 0
    last_since: float = 0.0
    last_seen: float = 0.0


class _Leaderboard(msgspec.Struct):
    version: int
    peers: list[Contribution]


class Contributions:
    """Adds up the differences between looks. Beyond `MOST_PEERS`, peers with the fewest samples are forgotten."""

    def __init__(self) -> None:
        self.peers: dict[str, Contribution] = {}
        self._former: dict[tuple[str, str], Contribution] = {}
        """Of people who logged in at a peer before somebody else did, by peer and name."""
        self._before: dict[str, PeerStatus] = {}
        self._looked_s: float | None = None

    def take(self, time_s: float, status: RunStatus, names: Mapping[str, str]) -> None:
        """Take in one look at the run, at Unix time `time_s`."""
        passed_s = 0.0 if self._looked_s is None else time_s - self._looked_s
        passed_s = passed_s if 0.0 < passed_s <= LONGEST_GAP_S else 0.0
        self._looked_s = time_s
        for peer in status.peers:
            if peer.status is None:
                continue
            found = self.peers.get(peer.peer_id)
            if found is None:
                found = self.peers[peer.peer_id] = Contribution(peer.peer_id)
            found = self._in_hands_of(names.get(peer.peer_id, found.name), found)
            _add(found, self._before.get(peer.peer_id), peer, status, passed_s)
            found.last_seen = time_s
        self._before = {peer.peer_id: peer for peer in status.peers}
        if len(self.peers) + len(self._former) > MOST_PEERS:
            self._forget_some()

    def document(self, attested: Mapping[str, PeerTotals]) -> list[dict[str, Any]]:
        """One row for each person that logged in, and for each peer without a name, by samples, with what the members
        attest of each.
        """
        rows: dict[str, dict[str, Any]] = {}
        shared = {peer for peer, _ in self._former}
        for each in self._all():
            row = rows.setdefault(
                f"@{each.name}" if each.name else each.peer,
                {"name": each.name, "peers": [], "samples": 0, "steps": 0, "hours": 0.0, "reduced_bytes": 0}
                | {"attested_samples": 0, "attested_steps": 0, "attested_reduced_bytes": 0},
            )
            row["peers"].append(each.peer)
            row["samples"] += each.samples
            row["steps"] += each.steps
            row["hours"] += each.seconds / 3600.0
            row["reduced_bytes"] += round(each.reduced_bytes)
            # Receipts name the peer alone: of one that several people had, nobody knows who earned them.
            proven = PeerTotals() if each.peer in shared else attested.get(each.peer, PeerTotals())
            row["attested_samples"] += proven.samples
            row["attested_steps"] += proven.steps
            row["attested_reduced_bytes"] += proven.reduced_bytes
        ordered = sorted(rows.values(), key=_rank)
        for place, row in enumerate(ordered, 1):
            row.update(place=place, hours=round(row["hours"], 3))
        return ordered

    def encode(self) -> bytes:
        """What is kept on disk."""
        return msgspec.json.encode(_Leaderboard(1, self._all()))

    def decode(self, data: bytes) -> bool:
        """Take up what `encode` made; False if the data is of no use."""
        try:
            kept = decode_json(data, _Leaderboard)
        except (msgspec.MsgspecError, ValueError):
            return False
        if kept.version != 1:
            return False
        self.peers, self._former = {}, {}
        for each in sorted(kept.peers[:MOST_PEERS], key=lambda each: each.last_seen):
            if (earlier := self.peers.get(each.peer)) is not None:
                self._former[earlier.peer, earlier.name] = earlier
            self.peers[each.peer] = each
        return True

    def _all(self) -> list[Contribution]:
        return [*self.peers.values(), *self._former.values()]

    def _in_hands_of(self, name: str, found: Contribution) -> Contribution:
        """What the person of this name has given with the peer of `found`. Before the first login nobody had a name."""
        if found.name and name != found.name:
            self._former[found.peer, found.name] = found
            last_total, last_since = found.last_total, found.last_since
            found = self._former.pop((found.peer, name), Contribution(found.peer))
            found.last_total, found.last_since = last_total, last_since
            self.peers[found.peer] = found
        found.name = name
        return found

    def _forget_some(self) -> None:
        ordered = sorted(self._all(), key=lambda each: (each.peer in self._before, each.samples))
        for each in ordered[: len(ordered) - MOST_PEERS]:
            if self.peers.get(each.peer) is each:
                del self.peers[each.peer]
            else:
                del self._former[each.peer, each.name]


def _rank(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return -row["samples"], -row["attested_samples"], -row["reduced_bytes"], row["peers"]


def _add(found: Contribution, before: PeerStatus | None, now: PeerStatus, status: RunStatus, passed_s: float) -> None:
    if now.total_samples is not None:
        restarted = now.total_samples < found.last_total or is_another_process(now.since, found.last_since)
        found.samples += now.total_samples - (0 if restarted else found.last_total)
        found.last_total, found.last_since = now.total_samples, now.since
    if before is None or not now.is_in_step:
        return
    found.seconds += passed_s
    steps = now.step - before.step
    if not before.is_in_step or not 0 < steps <= MOST_STEPS:
        return
    found.steps += steps
    if status.plan is not None:
        share = status.plan.reduces.get(now.peer_id, 0.0)
        found.reduced_bytes += steps * share * status.plan.vector_bytes * max(0, status.members - 1)
