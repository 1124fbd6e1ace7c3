"""Comparing states: does the majority have what this peer has?"""

from __future__ import annotations

from collections.abc import Iterable

from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.training.record_kinds import StateInfo

HISTORY = 16
"""How many of its own digests a peer remembers, to compare with others that publish a little later or earlier."""


@loop_bound
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

    def is_minority(self, others: Iterable[tuple[PeerId, StateInfo]], me: PeerId) -> bool:
        """Whether, at the newest step that can be compared, another digest outvotes this peer's.

        If two digests have equally many peers, the digest of the peer with the lowest id counts as right. So exactly
        one of two halves gives way, and in the next step, with other digests, it is the same half.
        """
        votes = {step: {own: [me]} for step, own in self._own.items()}
        for peer, state in others:
            if state.step in votes:
                votes[state.step].setdefault(state.digest, []).append(peer)
        compared = [step for step, voters in votes.items() if len(voters) > 1 or len(voters[self._own[step]]) > 1]
        if not compared:
            return False
        step = max(compared)
        winner = min(votes[step], key=lambda digest: (-len(votes[step][digest]), min(votes[step][digest])))
        return winner != self._own[step]
