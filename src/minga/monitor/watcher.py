"""Watches a run through one peer: status on demand, and the history of what changed between two looks."""

from __future__ import annotations

from collections.abc import Callable

from minga.core.events.bus import Event
from minga.core.events.network import MemberLost
from minga.monitor.history import History, samples_in
from minga.training.status.run_status import RunStatus
from minga.training.status.status_reader import Look, StatusReader, Watched

SETTLE_S = 10.0
"""Seconds in which a watcher that begins in the middle of a run hears of the peers that are there."""


class Watcher:
    """Call `look` once or twice a second from any one thread; each look adds to `history` what is new.

    `from_start`: this peer saw the run begin, so that first totals count; see `LossMeter`. Else samples are counted on
    from where the file of `history` ends.
    """

    def __init__(self, peer: Watched, history: History, *, from_start: bool = False) -> None:
        self.history = history
        self.listeners: list[Callable[[Look], None]] = []
        """Told each look on the thread that takes it."""
        self._reader = StatusReader(peer, from_start=from_start)
        if history.path is not None and (known := samples_in(history.path)) is not None:
            self.know_samples(*known)
        self._known_until_s: float | None = 0.0 if from_start else None
        self._members: set[str] = set()
        self._lost: set[str] = set()
        peer.subscribe(self._on_event)

    def know_samples(self, step: int, total: int) -> None:
        """All steps up to `step` had `total` samples, as another history tells. Call it before looks are taken."""
        self._reader.samples.know(step, total)

    def look(self) -> RunStatus:
        """The present status. Raises as `StatusReader.look`."""
        look = self._reader.look()
        self._note_members(look)
        if look.sample is not None:
            counted = self._reader.samples.step or look.status.step
            self.history.add(
                look.time_s,
                "step",
                step=look.sample.step,
                loss=round(look.sample.loss, 5),
                samples=look.sample.samples,
                total_samples=look.status.total_samples,
                **({"total_at": counted} if counted != look.sample.step else {}),  # the last step in the total
                samples_per_second=round(look.status.samples_per_second, 2),
                members=look.status.members,
            )
        for listener in self.listeners:
            listener(look)
        return look.status

    def _on_event(self, event: Event) -> None:
        if isinstance(event.data, MemberLost):
            self._lost.add(event.data.peer)

    def _note_members(self, look: Look) -> None:
        members = {peer.peer_id for peer in look.status.peers if peer.status is not None}
        if self._known_until_s is None:
            self._known_until_s = look.time_s + SETTLE_S
        for peer in sorted(members - self._members):
            if look.time_s >= self._known_until_s:  # else it was there before
                self.history.add(look.time_s, "joined", peer=peer)
            self._lost.discard(peer)
        for peer in sorted(self._members - members):
            self.history.add(look.time_s, "lost" if peer in self._lost else "left", peer=peer)
            self._lost.discard(peer)
        self._members = members
