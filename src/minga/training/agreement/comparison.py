"""Whether peers have the same state, and how often those that drift apart average their parameters.

Theory of operation. With an optimizer of `minga.optim` equal means give equal states, and a digest that differs is a
fault. Any other optimizer may round differently on another kind of device. Then peers publish a sketch of their
parameters beside the digest, and tolerate what rounding explains: a small share of the length of the last step, which a
peer that missed a step exceeds, and in any case a few last bits of the parameters. The numbers that the optimizer keeps
are not compared: where they are wrong, the parameters follow soon. How far peers drift decides how often they average
their parameters (`AveragingInterval`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final, NamedTuple

from minga.core.thread_guard import loop_bound
from minga.network.gossip.board import Board
from minga.network.gossip.record_kinds import LARGEST
from minga.network.interface import PeerId
from minga.training.record_kinds import StateInfo
from minga.training.replica.interface import ReplicaInterface
from minga.training.state.sketch import Sketch, distance, length

# ---- Comparing states: does the majority have what this peer has?
#
# Two states are the same if their digests are equal. In a run whose optimizers may round differently they are also the
# same if their parameters are no farther apart than both owners tolerate, by their sketches.


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


# ---- How often peers that round differently average their parameters.
#
# Theory of operation. The leader of a round writes the interval k, in steps, into its signed plan, so that all members
# know it at once: they average after a step whose number k divides. k is 0 until a leader sees two peers whose states
# differ by rounding. It begins as short as states are compared, and doubles at each averaging as long as the peers
# were far closer than the tolerance before it; it halves where they were not. So k follows from the drift that was
# measured, and no estimate has to hold. A leader that was in no round yet begins anew.


LONGEST: Final = 128
"""Comparisons of states between two averagings, at most."""
CLOSE, FAR = 1 / 16, 1 / 4
"""Shares of the tolerance: below the first the interval doubles, above the second it halves."""


@loop_bound
class AveragingInterval:
    """The interval of one run, as one peer knows it.

    `fixed` is what the run spec says, 0 for as needed. States are compared every `compared_every` steps. It never
    happens while it is not `is_useful` (optimizers that round alike, a strategy that shares parameters anyway).
    """

    def __init__(self, fixed: int, compared_every: int, *, is_useful: Callable[[], bool]) -> None:
        self.every = 0
        """That of the last plan."""
        self._fixed, self._shortest, self._is_useful = fixed, compared_every, is_useful

    @property
    def is_fixed(self) -> bool:
        """Whether the run spec says how often."""
        return self._fixed > 0

    def choose(self, step: int, drift: Drift | None) -> int:
        """What a leader writes into the plan of the round that leads to `step`."""
        if self._fixed or not self._is_useful():
            return self._fixed
        if drift is None:
            return self.every
        if not self.every:
            return self._shortest
        if step % self.every:
            return self.every
        if drift.distance > FAR * drift.tolerance:
            return max(self._shortest, self.every // 2)
        if drift.distance < CLOSE * drift.tolerance:
            return min(LONGEST * self._shortest, self.every * 2)
        return self.every

    def follow(self, every: int) -> bool:
        """A plan with this interval counts; whether that is news."""
        if self._fixed or not self._is_useful():
            return False
        is_news, self.every = every != self.every, every
        return is_news

    def is_due(self, step: int, every: int) -> bool:
        """Whether parameters are averaged after `step` by a plan with the interval `every`.

        A leader can neither overrule the run spec nor have parameters averaged more often than states are compared.
        """
        if self._fixed:
            return step % self._fixed == 0
        return self._is_useful() and every >= self._shortest and step % every == 0


# ---- One member measures its own states, and compares them with those of the others.


STEP_SHARE: Final = 0.25
"""Share of the last step's length by which parameters may differ."""
LAST_BITS: Final = 2.0**-18
"""Share of the parameters' length by which they may differ in any case: sixty times the rounding of a float32."""


class StateMeasure:
    """What the training thread measures of one step: `begin` before the replica takes it, `end` after."""

    def __init__(self, replica: ReplicaInterface, *, has_sketch: bool) -> None:
        self._replica, self._has_sketch = replica, has_sketch
        self._before: Sketch = ()

    def begin(self) -> None:
        """The step is about to be taken."""
        if self._has_sketch:
            self._before = self._replica.sketch()

    def end(self) -> StateInfo:
        """The step was taken. Without a sketch where the parameters are not finite, or too large for one."""
        digest, step = self._replica.digest(), self._replica.step
        if not self._has_sketch:
            return StateInfo(step, digest)
        after = self._replica.sketch()
        tolerance = max(STEP_SHARE * distance(self._before, after), LAST_BITS * length(after))
        return self._told(step, digest, after, tolerance)

    def at_rest(self) -> StateInfo:
        """The same of a state that came by no step: it tolerates a few last bits only."""
        digest, step = self._replica.digest(), self._replica.step
        if not self._has_sketch:
            return StateInfo(step, digest)
        return self._told(step, digest, sketch := self._replica.sketch(), LAST_BITS * length(sketch))

    def _told(self, step: int, digest: str, sketch: Sketch, tolerance: float) -> StateInfo:
        if max(tolerance, *map(abs, sketch)) > LARGEST:
            return StateInfo(step, digest)
        return StateInfo(step, digest, sketch, tolerance, self._replica.trains)


@loop_bound
class StateComparison:
    """Publishes this peer's states and compares them with those of the others, every `every` steps.

    Among peers that began at once, each with parameters of its own, those of the `organiser` are meant.
    """

    def __init__(
        self,
        board: Board,
        replica: ReplicaInterface,
        every: int,
        interval: AveragingInterval,
        organiser: PeerId | None = None,
    ) -> None:
        self.interval, self._meant = interval, () if organiser is None else (organiser,)
        self._board, self._replica, self._every = board, replica, every
        self._has_sketch = interval.is_fixed or not replica.rounds_alike
        self._history = StateHistory()

    def is_due(self, step: int) -> bool:
        """Whether states are compared after `step`: now and then, and after the first one, since peers that came at the
        same time each began with what it had.
        """
        return step % self._every == 0 or step == 1

    def measure(self) -> StateMeasure:
        """For the training thread."""
        return StateMeasure(self._replica, has_sketch=self._has_sketch)

    def publish(self, state: StateInfo) -> None:
        """Tell the others this peer's state."""
        self._history.add(state)
        self._board.put(state)

    def has_own(self, step: int) -> bool:
        """Whether this peer told its state of `step`, and has it still."""
        return self._history.of(step) is not None

    def clear(self) -> None:
        """The state was replaced."""
        self._history.clear()

    def is_diverged(self, others: set[PeerId], finished: Container[PeerId] = ()) -> bool:
        """Whether most of `others`, as far as they published theirs, have another state than this peer; or as many as
        have this one's, and those that `finished` or the organiser, in this order, are among them.
        """
        return self._history.is_minority(self._told(others), self._board.peer_id, finished, self._meant)

    def has_told(self, other: PeerId, step: int) -> bool:
        """Whether one peer published its state of `step` or of a later one."""
        told = self._board.payloads(StateInfo).get(other)
        return told is not None and told.step >= step

    def differs(self, other: PeerId, step: int) -> bool:
        """Whether one peer published another state of `step` than this one."""
        own, told = self._history.of(step), self._board.payloads(StateInfo).get(other)
        return own is not None and told is not None and told.step == step and not is_same(own, told)

    def choose_interval(self, step: int, others: set[PeerId]) -> int:
        """What this peer as a leader writes into the plan of the round that leads to `step`; see `Plan`."""
        regular = [(peer, state) for peer, state in self._told(others) if state.step % self._every == 0]
        return self.interval.choose(step, self._history.drift(regular))

    def _told(self, others: set[PeerId]) -> list[Told]:
        return [(peer, state) for peer, state in self._board.payloads(StateInfo).items() if peer in others]
