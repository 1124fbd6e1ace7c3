"""Telling a peer in words that its micro-batches are too long for the steps of the run."""

from __future__ import annotations

import asyncio

from minga.averaging.messages import Plan, Report
from minga.core.events.training import TrainingTooSlow
from minga.core.thread_guard import loop_bound
from minga.network.rpc.node import Node


@loop_bound
class TooSlowNotice:
    """Whether the plans leave this peer nothing to compute, because no micro-batch of it ends within a step.

    Such a micro-batch could only count if all others waited for it, or if its gradient, which belongs to parameters
    that no longer exist, were taken for a new one. So the peer keeps its state current, serves it, and computes again
    when the steps are long enough.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_too_slow = False
        self._step_began_s: float | None = None

    def note(self, plan: Plan, report: Report) -> None:
        """A step was taken by `plan`, which says how many samples this peer may compute in the next one."""
        now = asyncio.get_running_loop().time()
        me = plan.rank_of(self._node.peer_id)
        is_too_slow = bool(plan.limits) and plan.limits[me] == 0 and report.micro_batch_s > 0 and me not in plan.resting
        if is_too_slow and not self._is_too_slow and self._step_began_s is not None:
            why = (
                f"a micro-batch of {report.micro_batch} samples takes {report.micro_batch_s:.1f} s here, and all peers "
                f"together take a step in {now - self._step_began_s:.1f} s; smaller micro-batches would count"
            )
            self._node.events.emit(TrainingTooSlow(step=plan.step, why=why))
        if self._step_began_s is not None:
            self._is_too_slow = is_too_slow
        self._step_began_s = now
