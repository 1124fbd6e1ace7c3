"""Which batches the clients of a cut model got answered, and which the server applied: each exactly once?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any


class BatchTally:
    """Takes in the entries `batch.applied` (at the server: `peer`, the client `other`, `batch`, `samples`) and
    `batch.answered`, `batch.given_up` (at a client: `peer`, `batch`).
    """

    def __init__(self) -> None:
        self.applied: Counter[tuple[str, int]] = Counter()
        """How often the batch of a client, by its name and number, changed the server's part."""
        self.answered: Counter[tuple[str, int]] = Counter()
        """How often a client trained its own parts by the answer to a batch."""
        self.given_up: set[tuple[str, int]] = set()
        self.samples = 0
        self._first_s: float | None = None
        self._last_s = 0.0

    def __bool__(self) -> bool:
        """Whether there was any batch."""
        return bool(self.applied or self.answered or self.given_up)

    def take_applied(self, entry: Mapping[str, Any]) -> None:
        """The server applied a batch."""
        self.applied[entry["other"], entry["batch"]] += 1
        self.samples += entry["samples"]
        self._last_s = entry["t"]
        if self._first_s is None:
            self._first_s = self._last_s

    def take_answered(self, entry: Mapping[str, Any]) -> None:
        """A client has the gradients of a batch."""
        self.answered[entry["peer"], entry["batch"]] += 1

    def take_given_up(self, entry: Mapping[str, Any]) -> None:
        """A client goes on without the gradients of a batch."""
        self.given_up.add((entry["peer"], entry["batch"]))

    @property
    def is_exactly_once(self) -> bool:
        """Whether no batch was applied or answered twice, and each that was answered was applied."""
        counts = (*self.applied.values(), *self.answered.values())
        return all(count == 1 for count in counts) and not self._never_applied

    @property
    def batches_per_second(self) -> float | None:
        """Batches that were applied, from the first to the last."""
        if self._first_s is None or self._last_s <= self._first_s:
            return None
        return (self.applied.total() - 1) / (self._last_s - self._first_s)

    def summary(self) -> dict[str, Any]:
        """The figures as JSON values. `unanswered` were applied without the client's own parts taking their step."""
        rate = self.batches_per_second
        return {
            "clients": len({client for client, _ in self.applied}),
            "applied": self.applied.total(),
            "samples": self.samples,
            "batches_per_second": None if rate is None else round(rate, 4),
            "answered": self.answered.total(),
            "unanswered": len(self.applied.keys() - self.answered.keys()),
            "given_up": len(self.given_up),
            "applied_twice": sum(count > 1 for count in self.applied.values()),
            "answered_unapplied": len(self._never_applied),
            "exactly_once": self.is_exactly_once,
        }

    @property
    def _never_applied(self) -> set[tuple[str, int]]:
        return self.answered.keys() - self.applied.keys()
