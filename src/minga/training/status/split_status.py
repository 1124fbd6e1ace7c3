"""A model that is cut, as the board tells of it: who serves, how many clients train, and how fast."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from minga.network.gossip.board import Board
from minga.network.interface import PeerId
from minga.training.record_kinds import Metrics, SplitServing

WINDOW_S: Final = 30.0
MOST_MARKS: Final = 64


@dataclass(frozen=True)
class SplitRunStatus:
    """`servers` have the server's part, `standbys` copies of it, and `clients` train with them; of the server that is
    furthest: its `steps`, the `samples` of all clients so far, batches that wait, and its speed, None until two of its
    records were seen.
    """

    servers: tuple[PeerId, ...]
    standbys: tuple[PeerId, ...]
    clients: tuple[PeerId, ...]
    steps: int
    samples: int
    waiting: int
    batches_per_second: float | None = None
    samples_per_second: float | None = None


@dataclass(frozen=True)
class _SplitMark:
    """A record of a server, and when it was published, in seconds of whoever looks."""

    time_s: float
    steps: int
    samples: int


class SplitMeter:
    """Look again and again: speeds are those between the records of the last half minute."""

    def __init__(self) -> None:
        self._server: PeerId | None = None
        self._marks: deque[_SplitMark] = deque(maxlen=MOST_MARKS)

    def look(self, board: Board, now_s: float) -> SplitRunStatus:
        """The present status; where nobody serves, without servers and at the last step that was seen."""
        records = {item.owner: item for item in board.items(SplitServing)}
        if not records:
            clients = tuple(sorted(item.owner for item in board.items(Metrics)))
            last = self._marks[-1] if self._marks else _SplitMark(now_s, 0, 0)
            return SplitRunStatus((), (), clients, last.steps, last.samples, 0)
        first = max(records, key=lambda peer: (not records[peer].payload.stands_by, records[peer].payload.step, peer))
        item = records[first]
        serving = item.payload
        if first != self._server or (self._marks and serving.step < self._marks[-1].steps):
            self._server = first
            self._marks.clear()
        mark = _SplitMark(now_s - item.age_s, serving.step, serving.samples)
        if not self._marks or mark.steps != self._marks[-1].steps:
            self._marks.append(mark)
        while len(self._marks) > 2 and mark.time_s - self._marks[0].time_s > WINDOW_S:
            self._marks.popleft()
        batches, samples = self._speeds(now_s)
        clients = tuple(sorted(item.owner for item in board.items(Metrics) if item.owner not in records))
        serving_peers = sorted(peer for peer in records if not records[peer].payload.stands_by)
        standbys = sorted(records.keys() - set(serving_peers))
        return SplitRunStatus(
            tuple(serving_peers),
            tuple(standbys),
            clients,
            serving.step,
            serving.samples,
            serving.waiting,
            batches,
            samples,
        )

    def _speeds(self, now_s: float) -> tuple[float | None, float | None]:
        first, last = self._marks[0], self._marks[-1]
        if now_s - last.time_s > WINDOW_S:
            return 0.0, 0.0
        seconds = last.time_s - first.time_s
        if seconds <= 0.0:
            return None, None
        return (last.steps - first.steps) / seconds, (last.samples - first.samples) / seconds
