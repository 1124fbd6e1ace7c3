"""How long newcomers fetched the state, as far as the board shows it."""

from __future__ import annotations

from minga.dashboard.model.contributions import ACTIVE
from minga.training.status.run_status import RunStatus


class SyncTimes:
    """Compares looks: a peer that was syncing and trains now has the state."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def take(self, time_s: float, status: RunStatus) -> list[tuple[str, float]]:
        """The peers that finished since the look before, and for how many seconds each was seen syncing."""
        finished = []
        present = {peer.peer_id: peer.status for peer in status.peers if peer.status is not None}
        for peer, since_s in list(self._since.items()):
            if present.get(peer) != "syncing":
                del self._since[peer]
                if present.get(peer) in ACTIVE:
                    finished.append((peer, max(0.0, time_s - since_s)))
        for peer, what in present.items():
            if what == "syncing":
                self._since.setdefault(peer, time_s)
        return finished
