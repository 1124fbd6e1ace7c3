"""What another server needs to go on: the server's part, and what it has applied of each client."""

from __future__ import annotations

from dataclasses import dataclass

from minga.split.server.batch_server import BatchServer
from minga.split.server.sessions import SessionState
from minga.training.state.snapshot import StateSnapshot


@dataclass(frozen=True)
class TopCheckpoint:
    """A server between two batches: `snapshot` of its part, `samples` so far, and the `sessions` of its clients."""

    snapshot: StateSnapshot
    samples: int
    sessions: dict[str, SessionState]

    @property
    def step(self) -> int:
        """Steps of the server's part."""
        return self.snapshot.step

    @classmethod
    def take(cls, core: BatchServer) -> TopCheckpoint:
        """That of now; while no batch is computed."""
        return cls(core.applying.capture(), core.samples, core.sessions.states())

    def put(self, core: BatchServer) -> None:
        """Go on from here; while no batch is computed. Raises `ConfigurationError` for a part of another kind."""
        core.applying.restore(self.snapshot)
        core.sessions.restore(self.sessions)
        core.samples = self.samples
