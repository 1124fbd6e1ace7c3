"""The target batch size B of each step: what the run spec says, or (auto) what the leaders of the run measure.

Theory of operation. The leader of a step writes the B of the next one into its signed plan, so all members of the group
know it before anybody can need it, and a leader cannot leave the range of the run spec: the plan would be refused. It
takes the smallest B with which communication costs no more than the run spec allows (`smallest_batch`), from the
speeds that the members report and from how long its own last rounds took from the plan to the update, plus the round
trip in which a group closes. Leaders measure a little differently, so B stays as it is unless the wish differs by
more than `STEADY`; it changes by at most `STRIDE` at a time, because speeds measured with small batches promise too
much or too little for large ones.

Who leads without having had the last plan (a newcomer, a peer that fetched the state) goes by what its members say of
it, and by the smallest B of the run spec, as it is amended by then, if nobody knows, as after a restart of everybody.
Peers need not agree for the model to be right: gradients are weighted by samples whatever B is.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Sequence
from statistics import median
from typing import Final

from minga.averaging.clocking.sample_quota import Registration
from minga.averaging.group import GroupSettings
from minga.averaging.messages import Plan
from minga.core.errors import ProtocolError
from minga.core.thread_guard import loop_bound

# ---- The smallest target batch size with which communication takes no more than a given share of the time.
#
# With the synchronous strategy a step is B / s seconds of computing (B samples, s samples per second of all peers
# together) and then c seconds in which nobody computes: group forming, the round, the update. So its share is c / (B /
# s + c), and at most x for B >= s c (1 - x) / x. With the delayed strategy both overlap and a step takes max(B / s,
# c): nobody computes for the share 1 - (B / s) / c of it if c is longer, so B >= s c (1 - x) is enough.


def idle_share(batch: float, samples_per_second: float, communication_s: float, *, overlapped: bool) -> float:
    """The share (0 to 1) of a step of `batch` samples in which nobody computes; 1 if nobody ever computes.

    `communication_s` is the seconds of a step that are not computing; with `overlapped` they run beside it.
    """
    if not (samples_per_second > 0.0 and batch > 0.0):
        return 1.0
    computing_s = batch / samples_per_second
    step_s = max(computing_s, communication_s) if overlapped else computing_s + communication_s
    return 1.0 - computing_s / step_s if math.isfinite(step_s) else 1.0


def smallest_batch(
    samples_per_second: float,
    communication_s: float,
    largest_share: float,
    allowed: tuple[int, int],
    *,
    overlapped: bool,
) -> int:
    """The smallest batch with an `idle_share` of at most `largest_share`, or the bound of `allowed` next to it.

    `allowed` is the smallest and the largest batch that the run permits. Where communication would never end the answer
    is the largest, where nobody computes (so that no batch is better than another) the smallest.

    Raises `ValueError` for a share that is not between 0 and 1 (both excluded), negative or undefined rates and
    seconds, or an empty range.
    """
    least, most = allowed
    if not 0.0 < largest_share < 1.0:
        raise ValueError(f"largest_share {largest_share} must be above 0 and below 1")
    if not (samples_per_second >= 0.0 and communication_s >= 0.0):
        raise ValueError(f"{samples_per_second} samples/s and {communication_s} s must not be negative")
    if not 1 <= least <= most:
        raise ValueError(f"no batch is from {least} to {most}")
    if samples_per_second == 0.0:
        return least
    wanted = samples_per_second * communication_s * (1.0 - largest_share)
    if not overlapped:
        wanted /= largest_share
    # Off by a rounding error, a share that is exactly met would ask for one more sample.
    return most if wanted >= most else max(least, math.ceil(wanted * (1.0 - 1e-12)))


# ---- The target batch size from step to step, as one peer knows it.


STEADY: Final = 1.25
STRIDE: Final = 4
ROUNDS: Final = 5
FEWEST_ROUNDS: Final = 2
"""How many of the last rounds count, and how many have to be known."""


@loop_bound
class BatchSize:
    """The target batch size, as one peer knows it."""

    def __init__(self, settings: GroupSettings) -> None:
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
        """What the last plan said of the next step; 0 if this peer has not had it."""
        return self._known or 0

    def of(self, step: int) -> int:
        """That of `step`, the next one."""
        return self._known or self._allowed_in(step)[0]

    @property
    def round_s(self) -> float:
        """How long the last rounds of this peer took from the plan to the update, in seconds; 0 before the first."""
        return median(self._rounds_s) if self._rounds_s else 0.0

    @property
    def last_round_s(self) -> float:
        """How long the last of them took, beside which the next step may have filled; 0 before the first."""
        return self._rounds_s[-1] if self._rounds_s else 0.0

    def _allowed_in(self, step: int) -> tuple[int, int]:
        """By the orders that the last plan named, or by those that are due where this peer has not had it."""
        return self.allowed(self._settings.orders.due(step) if self._followed is None else self._followed, step)

    # ---- from step to step

    def note(self, plan: Plan, seconds: float) -> None:
        """A step was taken by `plan`; from the plan to the update it took so many seconds."""
        self._known, self._followed = plan.next_batch, plan.orders
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

    def learn(self, step: int, registrations: Collection[Registration]) -> None:
        """Go by what most members of the group of `step` say if this peer does not know."""
        if self._known is not None:
            return
        least, most = self._allowed_in(step)
        votes = Counter(
            registration.join.batch for registration in registrations if least <= registration.join.batch <= most
        )
        if votes:
            self._known = max(votes, key=lambda batch: (votes[batch], -batch))

    def after(
        self,
        step: int,
        registrations: Collection[Registration],
        orders: Sequence[str] = (),
        *,
        overlapped: bool = False,
    ) -> int:
        """The target batch size of the step after `step`, whose group this is and which goes by `orders`; `overlapped`
        if rounds go on beside the next step's computing.
        """
        least, most = self.allowed(orders, step + 1)
        present = min(most, max(least, self.of(step)))
        speed = sum(registration.report.rate for registration in registrations if registration.report.samples)
        if least == most or len(self._rounds_s) < FEWEST_ROUNDS or not speed:
            return present
        seconds = self.round_s + max((registration.round_trip_s for registration in registrations), default=0.0)
        share = self._settings.most_communication
        wish = smallest_batch(speed, seconds, share, (least, most), overlapped=overlapped)
        if present / STEADY <= wish <= present * STEADY:
            return present
        return min(most, max(least, min(wish, present * STRIDE), present // STRIDE))
