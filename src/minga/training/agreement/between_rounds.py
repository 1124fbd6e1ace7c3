"""What may happen to a replica between two rounds besides the step itself: what the organisers amended takes effect,
parameters are averaged, and another strategy goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch
from blake3 import blake3

from minga.access.standing_orders import NORM, OPTIMIZER, PAUSED, RATE, StandingOrders
from minga.averaging.allreduce.service import AllReduce, RoundAbortedError
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import RoundVectors
from minga.averaging.messages import Plan
from minga.averaging.strategy_choice import StrategyChoice
from minga.core.events.training import StrategyChanged
from minga.core.spec.run_spec import RunSpec
from minga.core.thread_guard import loop_bound
from minga.training.bridge.gradient_port import GradientPort
from minga.training.replica.interface import ReplicaInterface

# ---- Amendments put into effect at one member: those of the last plan, from the round that had them first.


class Amended:
    """Puts amendments into effect on `replica`, and knows the run spec as it holds now."""

    def __init__(self, orders: StandingOrders, replica: ReplicaInterface) -> None:
        self.in_force: tuple[str, ...] = ()
        """Those of the last plan."""
        self.now = orders.spec((), 0)
        """The run spec as it holds here at present; any thread may read it."""
        self._orders, self._replica = orders, replica
        self._changes: dict[str, Any] = {}
        self._has_taken_step = False
        self._due: dict[str, Any] | None = None  # what the training thread still has to tell the replica

    def last_step(self, step: int) -> int | None:
        """After which step the run ends; `step` is where this peer is."""
        return self._spec(step).training.stop_after_steps

    def at(self, step: int) -> RunSpec:
        """The run spec as it holds in the round of `step`, which this peer has come to, with one strategy."""
        return self._spec(step).at(step)

    def _spec(self, step: int) -> RunSpec:
        """A peer goes by the last plan that it followed; one that followed none, by what is due at its step."""
        return self._orders.spec(self.in_force if self._has_taken_step else self._orders.due(step), step)

    def stand_at(self, step: int) -> None:
        """This peer has the state of `step`, from its disk or from others: by which plan it came about is not known."""
        self._has_taken_step = False
        self.now = self._spec(step)
        # How gradients are clipped stands in no state, and own steps come before the next plan.
        self._due = _of_optimizer(self._read(self._orders.due(step), step))
        if RATE in self._due:
            self._due[RATE] = None  # as the state has it

    def enter(self, plan_orders: Sequence[str], step: int) -> str:
        """The round of `step`, of a plan with these orders, counts. Returns what they change, in words, if that or they
        are not as before, or this peer's first since it came to stand where it does: what was due there its leader may
        not have known.
        """
        first, self._has_taken_step = not self._has_taken_step, True
        ids = tuple(plan_orders)
        changes, before = self._read(ids, step), self._changes
        if ids == self.in_force and changes == before and not first:
            return ""
        self.in_force, self._changes, self.now = ids, changes, self._orders.spec(ids, step)
        self._due = _of_optimizer(changes)
        return ", ".join(f"{key} = {value}" for key, value in sorted(changes.items()) if key != PAUSED)

    def _read(self, orders: Sequence[str], step: int) -> dict[str, Any]:
        """What these change in the round of `step`, by the strategy that takes it: a plan may have another one already,
        which goes on after the round.
        """
        changes = self._orders.changes(orders, step)
        if StrategyChoice.of(self.now, self._replica.strategy).facts.owns_optimizer:
            changes.pop(NORM, None)
        return changes

    def apply(self) -> None:
        """Tell the replica, before the round that is first to go by them changes it. On the training thread."""
        due, self._due = self._due, None
        if due is not None:
            self._replica.amend(due)


def _of_optimizer(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in changes.items() if key.startswith(OPTIMIZER)}


# ---- Averaging the parameters themselves now and then: devices of different kinds drift apart in the last bits.


@loop_bound
class ParameterAverage:
    """Replaces the parameters behind `port` by the mean over the group of a step that was just applied.

    The group and its parts are those of that step, so that nothing has to be agreed on. Parameters are reduced anew
    even where the step adopted an earlier result.
    """

    def __init__(self, all_reduce: AllReduce, replica: ReplicaInterface, port: GradientPort) -> None:
        self._all_reduce, self._replica, self._port = all_reduce, replica, port
        self._mean: torch.Tensor | None = None

    async def take(self, plan: Plan, tolerance: float) -> None:
        """Average with the members of `plan`.

        Raises `RoundAbortedError`, with nothing changed, if that fails, or if the mean is farther than `tolerance` from
        this peer's own parameters: rounding does not explain that, so a member gave something else.
        """
        mean = self._mean = self._replica.vector.new() if self._mean is None else self._mean
        values = await self._port.request("read", self._replica.read_values)
        layout = VectorLayout(self._replica.vector.layout.numels, "float32")
        name = blake3(plan.round_id.encode()).hexdigest()[:32]
        again = msgspec.structs.replace(plan, round_id=name, adopts="", holders=(), view=())
        await self._all_reduce.reduce(again, layout, values, 1, mean, most_weight=1)

        def write() -> float:
            count = self._replica.vector.parameters_numel
            apart = float(torch.dist(mean[:count], values[:count]))
            if apart <= tolerance:
                self._replica.write_values(mean)
            return apart

        apart = await self._port.request("write", write)
        if not apart <= tolerance:
            raise RoundAbortedError(
                f"the mean of the parameters is {apart:.2g} from this peer's own, and rounding explains {tolerance:.2g}"
            )


# ---- Another strategy goes on from a step, at one boundary for all peers.
#
# The training thread changes it when it has absorbed the round that leads to that step, and before the state of that
# step is hashed, served or written. Nothing is in flight then. The state of the step is the new strategy's: it
# consists of the parameters, and of the optimizer's numbers, if both strategies share these. What peers had of their
# own for the old one is dropped: samples that were collected beside the round, and what codecs and sketches had left
# out.


class StrategySwitch:
    """Changes the strategy behind `port`."""

    def __init__(self, replica: ReplicaInterface, port: GradientPort, vectors: RoundVectors) -> None:
        self._replica, self._port, self._vectors = replica, port, vectors
        self._changed: StrategyChanged | None = None
        port.on_strategy = self._note

    def to(self, strategy: StrategyChoice) -> None:
        """Have this one go on, unless it is the present one. For the training thread, between two rounds."""
        if strategy.name != self._port.strategy:
            self._port.change(strategy)

    def said(self) -> StrategyChanged | None:
        """What the last change dropped, once. On the loop, after the training thread was there."""
        changed, self._changed = self._changed, None
        return changed

    def _note(self, samples: int) -> None:
        """On the training thread: another strategy goes on, also where a state was fetched that is of another."""
        residuals = self._vectors.left_out.begin_anew(keeps_uncounted=self._port.facts.keeps_uncounted)
        self._replica.left_out.forget()
        self._changed = StrategyChanged(
            step=self._replica.step,
            strategy=self._port.strategy,
            dropped_samples=samples,
            dropped_residuals=residuals,
        )
