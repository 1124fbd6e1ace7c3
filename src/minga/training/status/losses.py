"""The swarm's training loss, from the running totals that peers publish about themselves, and its count of samples.

Each peer's record holds totals since it joined; the difference between two of its records is what happened in between.
A peer's mean loss over that time is weighted by its samples, as its gradients were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minga.network.interface import PeerId
from minga.training.record_kinds import Metrics

MAX_REMEMBERED = 4096
"""How many peers' totals are kept; those of more, if they are gone, melt into one number."""

MEMORY = 0.8
"""Weight of what came before when a new step is added to the smoothed loss; its power when several are."""


@dataclass(frozen=True)
class LossSample:
    """The loss since the sample before: its mean over `samples` samples, up to global step `step`."""

    step: int
    loss: float
    samples: int


class SampleCount:
    """The samples of all steps so far. Each step counts once, with the target batch size at which it was seen: so the
    count does not depend on who watches, and on how often that process began anew.

    A watcher that begins in the middle learns by `know` how many there were before. Until then the count is an
    estimate: the totals of the peers that are here, as far as so many steps can have so many samples.
    """

    def __init__(self) -> None:
        self.total = 0
        self._step: int | None = None

    def know(self, step: int, total: int) -> None:
        """All steps up to `step` had `total` samples. Does nothing if that is known of a later step."""
        if self._step is None or step > self._step:
            self._step, self.total = step, total

    def take(self, step: int, batch: int, *, bounds: tuple[int, int], seen: int) -> None:
        """The run is at `step`; its steps have `batch` samples now, and each within `bounds`. Peers tell of `seen`."""
        if self._step is None:
            least, most = bounds
            self.total = min(max(seen, step * least), step * most)
        elif step > self._step:
            self.total += (step - self._step) * batch
            self._step = step


class LossMeter:
    """Turns successive totals into losses.

    With `from_start` the first totals of a peer count, as is right for who saw the peer begin; otherwise they are only
    what later ones are compared with.
    """

    def __init__(self, *, from_start: bool = False) -> None:
        self.smoothed: float | None = None
        """The loss, smoothed over the last few samples."""
        self._from_start = from_start
        self._last: dict[PeerId, Metrics] = {}
        self._gone_samples = 0
        self._step = 0

    @property
    def total_samples(self) -> int:
        """Samples of all peers that were ever seen, gone ones included, since each joined."""
        return self._gone_samples + sum(metrics.samples for metrics in self._last.values())

    def update(self, records: Mapping[PeerId, Metrics]) -> LossSample | None:
        """Take in the present totals; None if no micro-batch with a loss was added."""
        weighted, samples, step = 0.0, 0, 0
        for peer, now in records.items():
            before = self._last.get(peer, Metrics(0, 0.0, 0, 0) if self._from_start else now)
            if now.samples < before.samples or now.mini_steps < before.mini_steps:
                self._gone_samples += before.samples  # the peer started again
                before = Metrics(0, 0.0, 0, 0)
            self._last[peer] = now
            batches, added = now.mini_steps - before.mini_steps, now.samples - before.samples
            if batches > 0 and added > 0:
                weighted += (now.loss_sum - before.loss_sum) / batches * added
                samples += added
                step = max(step, now.step)
        self._forget_some(set(records))
        if not samples:
            return None
        loss = weighted / samples
        kept = MEMORY ** max(1, step - self._step)  # the same, however rarely one looks
        self._step = step
        self.smoothed = loss if self.smoothed is None else kept * self.smoothed + (1.0 - kept) * loss
        return LossSample(step, loss, samples)

    def _forget_some(self, present: set[PeerId]) -> None:
        if len(self._last) > MAX_REMEMBERED:
            for peer in set(self._last) - present:
                self._gone_samples += self._last.pop(peer).samples
