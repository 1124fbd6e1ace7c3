"""Which peers fetch the state, and for how long: as one member sees it on the board."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.training.record_kinds import Progress

FORGIVEN_S = 600.0
"""Seconds after which a peer's earlier attempts count no more, and the swarm waits for it again."""


@dataclass
class _Effort:
    first_s: float
    since_s: float | None
    spent_s: float = 0.0


@loop_bound
class Newcomers:
    """Adds up how long each peer has been fetching state; `clock` tells the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._efforts: dict[PeerId, _Effort] = {}

    def look(self, progress: Mapping[PeerId, Progress]) -> None:
        """Take note of what all living members say."""
        now = self._clock()
        syncing = {peer for peer, each in progress.items() if each.status == "syncing"}
        for peer, effort in list(self._efforts.items()):
            if peer not in syncing and effort.since_s is not None:
                effort.spent_s, effort.since_s = effort.spent_s + now - effort.since_s, None
            if effort.since_s is None and now - effort.first_s > FORGIVEN_S:
                del self._efforts[peer]
        for peer in syncing:
            effort = self._efforts.setdefault(peer, _Effort(now, now))
            effort.since_s = now if effort.since_s is None else effort.since_s

    def syncing(self, progress: Mapping[PeerId, Progress]) -> dict[PeerId, float]:
        """Those of all living members that fetch state at present, and for how many seconds each has done so."""
        now = self._clock()
        return {
            peer: effort.spent_s + now - effort.since_s
            for peer, effort in self._efforts.items()
            if effort.since_s is not None and peer in progress
        }
