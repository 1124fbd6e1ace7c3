"""Whom this peer does not ask to lead for a while, because it was asked in vain."""

from __future__ import annotations

from collections.abc import Iterable

from minga.core.aio.backoff import Backoff
from minga.network.interface import PeerId

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 32.0


class Suspects:
    """Suspicions that end by themselves: others may hear a peer that this one did not hear for a moment, and follow it.

    Each further suspicion within a step lasts twice as long.
    """

    def __init__(self, peers: Iterable[PeerId] = ()) -> None:
        self._suspicions: dict[PeerId, Backoff] = {}
        for peer in peers:
            self.add(peer)

    def add(self, peer: PeerId) -> None:
        """Suspect a peer, for longer if it was suspected before."""
        self._suspicions.setdefault(peer, Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)).suffer()

    def clear(self) -> None:
        """Trust all peers again."""
        self._suspicions.clear()

    def now(self) -> set[PeerId]:
        """The peers that are suspected at present."""
        return {peer for peer, suspicion in self._suspicions.items() if suspicion.is_on}
