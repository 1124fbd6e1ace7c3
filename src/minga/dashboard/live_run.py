"""The run as the dashboard knows it: it takes in looks, events and history, and makes the answers of the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from minga.dashboard.model.contributions import Contributions
from minga.dashboard.model.documents import (
    leaderboard_document,
    live_document,
    peer_document,
    peers_document,
    run_document,
)
from minga.dashboard.model.run_model import RunModel
from minga.monitor.history import Entry
from minga.receipts.book import PeerTotals
from minga.training.status.status_reader import Look

MOST_CACHED: Final = 16


class LiveRun:
    """On one thread. Answers are made at most once for each look, however many viewers ask. `only_watches`: the peer
    behind it takes no part in rounds.
    """

    def __init__(self, *, only_watches: bool = False) -> None:
        self.only_watches = only_watches
        self.model, self.contributions = RunModel(), Contributions()
        self.look: Look | None = None
        self.names: Mapping[str, str] = {}
        """Names of the people who logged in, by peer id."""
        self.attested: Mapping[str, PeerTotals] = {}
        """What the members attest of each peer, by its id."""
        self._cache: dict[str, bytes] = {}

    def take_entry(self, entry: Entry) -> None:
        """Add an entry of a history."""
        self.model.take(entry)
        self._cache.clear()

    def take_look(self, look: Look, names: Mapping[str, str]) -> None:
        """The run as it is now."""
        self.look, self.names = look, names
        self.contributions.take(look.time_s, look.status, names)
        self._cache.clear()

    def take_attested(self, attested: Mapping[str, PeerTotals]) -> None:
        """What the members attest by now."""
        self.attested = attested
        self._cache.clear()

    def run(self) -> bytes | None:
        """The page of the run; None before the first look. The others likewise."""
        return self._answer("run", lambda look: run_document(look, self.model, only_watches=self.only_watches))

    def live(self) -> bytes | None:
        """What changed lately."""
        return self._answer("live", lambda look: live_document(look, self.model))

    def peers(self) -> bytes | None:
        """The table of peers."""
        return self._answer("peers", lambda look: peers_document(look, self.contributions, self.names))

    def leaderboard(self) -> bytes | None:
        """What each peer has given."""
        return self._answer("leaderboard", lambda look: leaderboard_document(look, self.contributions, self.attested))

    def peer(self, peer_id: str) -> bytes | None:
        """One peer; None also if nothing is known of it."""
        return self._answer(
            f"peer {peer_id}", lambda look: peer_document(peer_id, look, self.model, self.contributions, self.names)
        )

    def _answer(self, name: str, make: Callable[[Look], dict[str, Any] | None]) -> bytes | None:
        if self.look is None:
            return None
        if name not in self._cache:
            document = make(self.look)
            if document is None:
                return None
            if len(self._cache) >= MOST_CACHED:
                self._cache.clear()
            self._cache[name] = msgspec.json.encode(document)
        return self._cache[name]
