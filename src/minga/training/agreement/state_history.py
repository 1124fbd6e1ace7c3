"""Comparing states: does the majority have what this peer has?

Two states are the same if their digests are equal. In a run whose optimizers may round differently they are also the
same if their parameters are no farther apart than both owners tolerate, by their sketches.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.training.record_kinds import StateInfo
from minga.training.state.sketch import distance

HISTORY = 16
"""How many of its own states a peer remembers, to compare with others that publish a little later or earlier."""

Told = tuple[PeerId, StateInfo]


class Drift(NamedTuple):
    """How far the parameters of peers are apart that round differently, and how far they may be."""

    distance: float
    tolerance: float


def is_same(one: StateInfo, other: StateInfo) -> bool:
    """Whether two states of one step count as the same: up to rounding, where the optimizer does not exclude that, and
    of peers that train the same.
    """
    if one.digest == other.digest:
        return True
    if one.trains != other.trains:
        return False
    tolerance = min(one.tolerance, other.tolerance)  # so that nobody widens that of others
    return bool(one.sketch) and distance(one.sketch, other.sketch) <= tolerance


@loop_bound
class StateHistory:
    """This peer's last states by step, as it published them."""

    def __init__(self) -> None:
        self._own: dict[int, StateInfo] = {}

    def add(self, state: StateInfo) -> None:
        """Note a state of this peer."""
        self._own[state.step] = state
        while len(self._own) > HISTORY:
            del self._own[min(self._own)]

    def of(self, step: int) -> StateInfo | None:
        """This peer's state of `step`, if it has one in mind."""
        return self._own.get(step)

    def clear(self) -> None:
        """Forget all: the state was replaced."""
        self._own.clear()

    def is_minority(self, others: Iterable[Told], me: PeerId, *stand_firm: Container[PeerId]) -> bool:
        """Whether, at the newest step that can be compared, another state outvotes this peer's.

        If two states have equally many peers, the one that a peer of the first group of those that `stand_firm` has
        counts as right, then that of the second, and in the end the one of the peer with the lowest id. So exactly one
        of two halves gives way, and in the next step, with other digests, it is the same half.
        """
        own, told = self._newest(others)
        if own is None:
            return False
        by_digest: dict[str, tuple[StateInfo, list[PeerId]]] = {own.digest: (own, [me])}
        for peer, state in told:
            by_digest.setdefault(state.digest, (state, []))[1].append(peer)
        sides: list[tuple[StateInfo, list[PeerId]]] = []
        for state, voters in sorted(by_digest.values(), key=lambda each: (each[0] is not own, min(each[1]))):
            side = next((side for mark, side in sides if is_same(mark, state)), None)
            if side is None:
                sides.append((state, voters))
            else:
                side += voters
        winner = min(
            sides,
            key=lambda side: (
                -len(side[1]),
                *(all(peer not in group for peer in side[1]) for group in stand_firm),
                min(side[1]),
            ),
        )
        return winner[0] is not own

    def drift(self, others: Iterable[Told]) -> Drift | None:
        """How far apart the peers are that count as the same with another digest; None if there is no such peer."""
        own, told = self._newest(others)
        if own is None:
            return None
        apart = [
            distance(own.sketch, state.sketch)
            for _, state in told
            if state.digest != own.digest and is_same(own, state)
        ]
        return Drift(max(apart), own.tolerance) if apart else None

    def _newest(self, others: Iterable[Told]) -> tuple[StateInfo | None, Sequence[Told]]:
        """This peer's state of the newest step that others published, and theirs of that step."""
        by_step: dict[int, list[Told]] = {}
        for peer, state in others:
            if state.step in self._own:
                by_step.setdefault(state.step, []).append((peer, state))
        if not by_step:
            return None, ()
        step = max(by_step)
        return self._own[step], by_step[step]
