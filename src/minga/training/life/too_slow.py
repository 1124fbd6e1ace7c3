"""Telling a peer in words that its micro-batches are too long for the steps of the run."""

from __future__ import annotations

import asyncio
from typing import Final

from minga.averaging.messages import Plan, Report
from minga.core.events.training import TrainingTooSlow
from minga.core.thread_guard import loop_bound
from minga.core.units import format_duration
from minga.network.rpc.node import Node

SHORT_STEPS: Final = 3
"""For how many steps more than not a micro-batch has to be too long before the peer is told: one may be short by
chance, or long for a newcomer's sake."""


@loop_bound
class TooSlowNotice:
    """Whether the plans leave this peer nothing to compute, because no micro-batch of it ends within a step.

    Such a micro-batch could only count if all others waited for it, or if its gradient, which belongs to parameters
    that no longer exist, were taken for a new one. So the peer keeps its state current, serves it, and computes again
    when the steps are long enough. A plan may leave it nothing for other reasons, which pass: so the micro-batch is
    compared with the steps.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._steps_too_short, self._is_told = 0, False
        self._step_began_s: float | None = None

    def note(self, plan: Plan, report: Report) -> None:
        """A step was taken by `plan`, which says how many samples this peer may compute in the next one."""
        now = asyncio.get_running_loop().time()
        began_s, self._step_began_s = self._step_began_s, now
        me = plan.rank_of(self._node.peer_id)
        if not plan.limits or plan.limits[me] or me in plan.resting:
            self._steps_too_short, self._is_told = 0, False
            return
        is_too_short = began_s is not None and now - began_s < report.micro_batch_s
        self._steps_too_short = max(0, self._steps_too_short + (1 if is_too_short else -1))
        if began_s is None or self._is_told or self._steps_too_short < SHORT_STEPS:
            return
        self._is_told = True
        why = (
            f"a micro-batch of {report.micro_batch} samples takes {format_duration(report.micro_batch_s)} here, and "
            f"all peers together take a step in {format_duration(now - began_s)}; smaller micro-batches would count"
        )
        self._node.events.emit(TrainingTooSlow(step=plan.step, why=why))
