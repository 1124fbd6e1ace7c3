"""The target batch size B of each step: what the run spec says, or (auto) what the leaders of the run measure.

Theory of operation. The leader of a step writes the B of the next one into its signed plan, so all members of the group
know it before anybody can need it, and a leader cannot leave the range of the run spec: the plan would be refused. It
takes the smallest B with which communication costs no more than the run spec allows (`batch_choice.py`), from the
speeds that the members report and from how long its own last rounds took from the plan to the update, plus the round
trip in which a group closes. Leaders measure a little differently, so B stays as it is unless the wish differs by
more than `STEADY`; it changes by at most `STRIDE` at a time, because speeds measured with small batches promise too
much or too little for large ones.

Who leads without having had the last plan (a newcomer, a peer that fetched the state) goes by what its members say of
it, and by the smallest B of the run spec, as it is amended by then, if nobody knows, as after a restart of everybody.
Peers need not agree for the model to be right: gradients are weighted by samples whatever B is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from statistics import median
from typing import Final

from minga.averaging.clocking.batch_choice import smallest_batch
from minga.averaging.clocking.registration import Registration
from minga.averaging.group import GroupSettings
from minga.averaging.messages import Plan
from minga.core.errors import ProtocolError
from minga.core.thread_guard import loop_bound

STEADY: Final = 1.25
STRIDE: Final = 4
ROUNDS: Final = 5
FEWEST_ROUNDS: Final = 2
"""How many of the last rounds count, and how many have to be known."""


@loop_bound
class BatchSize:
    """The target batch size, as one peer knows it."""

    def __init__(self, settings: GroupSettings) -> None:
        self.step = 0
        """The step that `present` is about."""
        self._settings = settings
        self._known: int | None = None
        self._followed: Sequence[str] | None = None  # the orders of the last plan
        self._rounds_s: deque[float] = deque(maxlen=ROUNDS)

    def allowed(self, orders: Sequence[str], step: int) -> tuple[int, int]:
        """The smallest and the largest one that the run spec permits in `step`, as amended by `orders`."""
        settings = self._settings
        usual = settings.target_batch_size, settings.largest_batch_size or settings.target_batch_size
        return settings.orders.batch_range(orders, step) or usual

    @property
    def told(self) -> int:
        """What the last plan said of this step; 0 if this peer has not had it."""
        return self._known or 0

    @property
    def present(self) -> int:
        """That of this step."""
        return self._known or self.allowed(self._orders, self.step)[0]

    @property
    def _orders(self) -> Sequence[str]:
        """Those by which this step goes: what the last plan said, or what is due where this peer has not had it."""
        return self._settings.orders.due(self.step) if self._followed is None else self._followed

    # ---- from step to step

    def note(self, plan: Plan, seconds: float) -> None:
        """A step was taken by `plan`; from the plan to the update it took so many seconds."""
        self.step, self._known, self._followed = plan.step + 1, plan.next_batch, plan.orders
        self._rounds_s.append(seconds)

    def forget(self) -> None:
        """This peer missed steps."""
        self._known = self._followed = None

    def check(self, plan: Plan) -> None:
        """Raises `ProtocolError`, naming the leader, if the plan leaves the range of the run spec and its orders."""
        least, most = self.allowed(plan.orders, plan.step + 1)
        if not least <= plan.next_batch <= most:
            why = f"plan refused: its target batch size {plan.next_batch} is not from {least} to {most}"
            raise ProtocolError(why, peer=plan.members[0].peer_id, round=plan.step, phase="group")

    # ---- the leader

    def learn(self, registrations: Collection[Registration]) -> None:
        """Go by what most members say if this peer does not know."""
        if self._known is not None:
            return
        least, most = self.allowed(self._orders, self.step)
        votes = Counter(
            registration.join.batch for registration in registrations if least <= registration.join.batch <= most
        )
        if votes:
            self._known = max(votes, key=lambda batch: (votes[batch], -batch))

    def next(self, registrations: Collection[Registration], orders: Sequence[str] = ()) -> int:
        """The target batch size of the step after this one, whose group this is and which goes by `orders`."""
        least, most = self.allowed(orders, self.step + 1)
        present = min(most, max(least, self.present))
        speed = sum(registration.report.rate for registration in registrations if registration.report.samples)
        if least == most or len(self._rounds_s) < FEWEST_ROUNDS or not speed:
            return present
        seconds = median(self._rounds_s) + max(
            (registration.round_trip_s for registration in registrations), default=0.0
        )
        settings = self._settings
        wish = smallest_batch(
            speed, seconds, settings.most_communication, (least, most), overlapped=settings.overlapped()
        )
        if present / STEADY <= wish <= present * STEADY:
            return present
        return min(most, max(least, min(wish, present * STRIDE), present // STRIDE))
