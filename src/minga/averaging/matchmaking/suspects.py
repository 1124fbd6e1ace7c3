"""Whom this peer does not ask to lead for a while, because it was asked in vain."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from minga.network.interface import PeerId

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 32.0


class Suspects:
    """Suspicions that end by themselves: others may hear a peer that this one did not hear for a moment, and follow it.

    Each further suspicion within a step lasts twice as long. `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float], peers: Iterable[PeerId] = ()) -> None:
        self._clock = clock
        self._until: dict[PeerId, tuple[float, float]] = {}
        for peer in peers:
            self.add(peer)

    def add(self, peer: PeerId) -> None:
        """Suspect a peer, for longer if it was suspected before."""
        pause_s = min(2.0 * self._until[peer][1], LONGEST_PAUSE_S) if peer in self._until else FIRST_PAUSE_S
        self._until[peer] = (self._clock() + pause_s, pause_s)

    def clear(self) -> None:
        """Trust everybody again."""
        self._until.clear()

    def now(self) -> set[PeerId]:
        """Who is suspected at present."""
        now = self._clock()
        return {peer for peer, (until, _) in self._until.items() if now < until}
