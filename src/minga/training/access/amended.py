"""The organisers' amendments as one member goes by them: those of the last plan, from the round that had them first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from minga.core.spec.run_spec import RunSpec
from minga.identity.access.amendments import Regroup
from minga.training.access.standing_orders import OPTIMIZER, PAUSED, StandingOrders


class Amendable(Protocol):
    """A replica, as far as amendments go."""

    def amend(self, changes: Mapping[str, Any]) -> None:
        """Go by other settings of the optimizer from now on."""


class Amended:
    """Puts amendments into effect on `replica`, and knows the run spec as it holds now."""

    def __init__(self, orders: StandingOrders, replica: Amendable) -> None:
        self.in_force: tuple[str, ...] = ()
        """Those of the last plan."""
        self.on_change: Callable[[RunSpec], None] = lambda _: None
        """Told the amended run spec when another set comes into force."""
        self._orders, self._replica = orders, replica
        self._has_taken_step = False
        self._due: dict[str, Any] | None = None  # what the training thread still has to tell the replica

    @property
    def can_be(self) -> bool:
        """Whether the run has organisers whose orders this peer follows."""
        return self._orders.can_be

    def regroup(self, epoch: int) -> Regroup | None:
        """The organisers' newest regroup, if it is of a later epoch than this."""
        return self._orders.regroup(epoch)

    def is_paused(self, step: int) -> bool:
        """Whether the organisers want no round of `step`."""
        return self._orders.is_paused(step)

    def last_step(self, step: int) -> int | None:
        """After which step the run ends; `step` is where this peer is."""
        return self._spec(step).training.stop_after_steps

    def at(self, step: int) -> RunSpec:
        """The run spec as it holds in the round of `step`, which this peer has come to, with one strategy."""
        return self._spec(step).at(step)

    def _spec(self, step: int) -> RunSpec:
        """A peer goes by the last plan that it followed; one that followed none, by what is due at its step."""
        return self._orders.spec(self.in_force if self._has_taken_step else self._orders.due(step))

    def stand_at(self, step: int) -> None:
        """This peer has the state of `step`, from its disk or from others: by which plan it came about is not known."""
        self._has_taken_step = False
        self.on_change(self._spec(step))

    def enter(self, plan_orders: Sequence[str]) -> str:
        """The round of a plan with these orders counts. Returns what they change, in words, if they are another set, or
        this peer's first since it came to stand where it does: what was due there its leader may not have known.
        """
        first, self._has_taken_step = not self._has_taken_step, True
        ids = tuple(plan_orders)
        if ids == self.in_force and not first:
            return ""
        self.in_force = ids
        changes, spec = self._orders.changes(ids), self._orders.spec(ids)
        self._due = {key: value for key, value in changes.items() if key.startswith(OPTIMIZER)}
        self.on_change(spec)
        return ", ".join(f"{key} = {value}" for key, value in sorted(changes.items()) if key != PAUSED)

    def apply(self) -> None:
        """Tell the replica, before the round that is first to go by them changes it. On the training thread."""
        due, self._due = self._due, None
        if due:
            self._replica.amend(due)
