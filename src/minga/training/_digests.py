"""Comparing states: does the majority have what this peer has?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from minga.network._records import StateInfo

HISTORY = 16
"""How many of its own digests a peer remembers, to compare with others that publish a little later or earlier."""


class DigestHistory:
    """This peer's last digests by step."""

    def __init__(self) -> None:
        self._own: dict[int, str] = {}

    def add(self, step: int, digest: str) -> None:
        """Note the digest of this peer's state after `step`."""
        self._own[step] = digest
        while len(self._own) > HISTORY:
            del self._own[min(self._own)]

    def clear(self) -> None:
        """Forget all: the state was replaced."""
        self._own.clear()

    def is_minority(self, others: Iterable[StateInfo]) -> bool:
        """Whether, at the newest step that can be compared, another digest outvotes this peer's.

        Between equally many the smaller digest counts as the right one, so that of two peers exactly one gives way.
        """
        votes: Mapping[int, Counter[str]] = {step: Counter({own: 1}) for step, own in self._own.items()}
        for state in others:
            if state.step in votes:
                votes[state.step][state.digest] += 1
        compared = [step for step, counter in votes.items() if sum(counter.values()) > 1]
        if not compared:
            return False
        counter = votes[max(compared)]
        winner = min(counter, key=lambda digest: (-counter[digest], digest))
        return winner != self._own[max(compared)]
