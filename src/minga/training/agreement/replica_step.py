"""The end of a round at one member: the training thread brings the replica to the next step by the round's mean.

Where states are compared, the training thread also measures the step. Where parameters are averaged, the trainer waits
for that before it goes on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.allreduce.service import RoundAbortedError
from minga.averaging.messages import Plan
from minga.averaging.strategy_choice import StrategyChoice
from minga.core.events.bus import EventBus
from minga.core.events.training import ParametersDrift, ParametersNotAveraged
from minga.core.thread_guard import loop_bound
from minga.training.access.amended import Amended
from minga.training.agreement.comparison import StateComparison
from minga.training.agreement.parameter_average import ParameterAverage
from minga.training.agreement.strategy_switch import StrategySwitch
from minga.training.bridge.gradient_port import GradientPort
from minga.training.lineage import Lineage
from minga.training.record_kinds import StateInfo
from minga.training.replica.interface import LOOP_RATES, ReplicaInterface
from minga.training.strategy.interface import ContributionFate


@loop_bound
class ReplicaStep:
    """Takes the replica behind `port` from one step to the next."""

    def __init__(
        self,
        replica: ReplicaInterface,
        port: GradientPort,
        states: StateComparison,
        parameter_average: ParameterAverage,
        amended: Amended,
        switch: StrategySwitch,
        events: EventBus,
    ) -> None:
        self.on_absorbed: Callable[[int], None] | None = None
        """Called on the training thread when the replica has come to a step, while no round runs."""
        self._replica, self._port, self._amended, self._events = replica, port, amended, events
        self._states, self._parameter_average, self._switch = states, parameter_average, switch
        self._step = 0
        self._attempts: list[str] = []  # rounds of the step for which this peer was asked what it gives

    def begin(self, plan: Plan) -> None:
        """This peer is about to be asked what it gives to the round of `plan`."""
        if plan.step != self._step:
            self._step, self._attempts = plan.step, []
        self._attempts.append(plan.round_id)

    def follow(self, plan: Plan) -> None:
        """Average parameters as often as the leader of this round says."""
        if self._states.interval.follow(plan.averages_every):
            self._events.emit(ParametersDrift(step=plan.step, every=plan.averages_every))

    async def take(
        self,
        outcome: RoundOutcome,
        mean: torch.Tensor,
        fate: ContributionFate,
        limit: int | None,
        strategy: StrategyChoice,
        lineage: Lineage,
        *,
        compares: bool,
    ) -> StateInfo | None:
        """Apply a round's `mean`, which leads to a state of this `lineage`, and let the trainer go on by `strategy`
        with at most `limit` samples.

        Returns what the step led to, before parameters are averaged, if this peer `compares` states now or averages
        parameters.
        """
        plan, step = outcome.plan, outcome.plan.step + 1
        absorb = self._absorption(outcome, mean, fate, strategy, lineage)
        averages = self._states.interval.is_due(step, plan.averages_every)
        measures = averages or compares
        port, measure = self._port, self._states.measure()

        def run() -> StateInfo | None:
            if measures:
                measure.begin()
            absorb()
            if not averages:
                port.reopen(limit)
            return measure.end() if measures else None

        state: StateInfo | None = await port.request("apply", run)
        if changed := self._switch.said():
            self._events.emit(changed)
        if averages and state is not None:
            await self._average_parameters(plan, state.tolerance)
            await port.request("reopen", lambda: port.reopen(limit))
        return state

    # ---- inner workings

    def _absorption(
        self,
        outcome: RoundOutcome,
        mean: torch.Tensor,
        fate: ContributionFate,
        strategy: StrategyChoice,
        lineage: Lineage,
    ) -> Callable[[], None]:
        """What the training thread has to do to bring the replica to the next step by this round's mean."""
        replica, port, amended, on_absorbed = self._replica, self._port, self._amended, self.on_absorbed
        switch = self._switch
        step = outcome.plan.step + 1
        counted_in = outcome.plan.result_id if fate is ContributionFate.COUNTED else None
        known = counted_in in self._attempts
        earlier = len(self._attempts) - 1 - self._attempts.index(str(counted_in)) if known else 0
        contributors, rates = outcome.contributors, outcome.plan.rates

        def absorb() -> None:
            amended.apply()
            if rates:
                replica.amend({LOOP_RATES: list(rates)})
            if replica.step != step - 1:
                raise RuntimeError(f"the replica is at step {replica.step}, and the round led to step {step}")
            port.absorb(step, replica.expand(mean, step - 1, counted_in=counted_in), fate, contributors, earlier)
            replica.lineage = lineage
            switch.to(strategy)
            if on_absorbed is not None:
                on_absorbed(step)

        return absorb

    async def _average_parameters(self, plan: Plan, tolerance: float) -> None:
        try:
            await self._parameter_average.take(plan, tolerance)
        except RoundAbortedError as error:  # others may have averaged theirs: they differ by no more than before
            self._events.emit(ParametersNotAveraged(step=plan.step, why=error.message))
