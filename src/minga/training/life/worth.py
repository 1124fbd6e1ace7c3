"""Telling a peer in words that what it computes is worth nothing to the run: it comes too late, there is no room for
it, or another peer computes the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from minga.averaging.messages import Plan, Report
from minga.core.events.training import TrainingNotNeeded, TrainingTooSlow, TrainingTwin
from minga.core.thread_guard import loop_bound
from minga.core.units import counted, format_duration
from minga.network.rpc.node import Node

SHORT_STEPS: Final = 3
"""For how many steps more than not a micro-batch has to be too long before the peer is told: one may be short by
chance, or long for a newcomer's sake."""
STEPS: Final = 20
"""A peer is told that it is not needed after so many steps, of which its samples were wanted in a quarter at most."""

logger = logging.getLogger("minga.training")


@loop_bound
class WorthNotice:
    """What the plans say about what this peer computes.

    Too slow: they leave it nothing, because no micro-batch of it ends within a step. Such a micro-batch could only
    count if all others waited for it, or if its gradient, which belongs to parameters that no longer exist, were taken
    for a new one. So the peer keeps its state current, serves it, and computes again when the steps are long enough. A
    plan may leave it nothing for other reasons: so the micro-batch is compared with the steps.

    Not needed: they leave it nothing, since the others' micro-batches fill the target.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._steps_too_short, self._is_told = 0, False
        self._wanted = deque[bool](maxlen=STEPS)
        self._is_told_unneeded = self._is_told_twin = False
        self._step_began_s: float | None = None

    def note(self, plan: Plan, report: Report, batch: int) -> None:
        """A step of the target `batch` was taken by `plan`, which says how many samples this peer may compute in the
        next one.
        """
        now = asyncio.get_running_loop().time()
        began_s, self._step_began_s = self._step_began_s, now
        me = plan.rank_of(self._node.peer_id)
        self._note_twins(plan, me)
        if not plan.limits or me in plan.resting:
            self._steps_too_short, self._is_told = 0, False
            self._wanted.clear()
            return
        is_too_short = began_s is not None and now - began_s < report.micro_batch_s
        self._note_room(plan, report, batch, wanted=plan.limits[me] > 0 or is_too_short or not report.rate)
        if plan.limits[me]:
            self._steps_too_short, self._is_told = 0, False
            return
        self._steps_too_short = max(0, self._steps_too_short + (1 if is_too_short else -1))
        if began_s is None or self._is_told or self._steps_too_short < SHORT_STEPS:
            return
        self._is_told = True
        why = (
            f"a micro-batch of {report.micro_batch} samples takes {format_duration(report.micro_batch_s)} here, and "
            f"all peers together take a step in {format_duration(now - began_s)}; smaller micro-batches would count"
        )
        logger.warning("this peer's samples do not count for now: %s", why)
        self._node.events.emit(TrainingTooSlow(step=plan.step, why=why))

    def _note_room(self, plan: Plan, report: Report, batch: int, *, wanted: bool) -> None:
        self._wanted.append(wanted)
        if len(self._wanted) < STEPS or 4 * sum(self._wanted) > STEPS or self._is_told_unneeded:
            return
        self._is_told_unneeded = True
        why = (
            f"the others fill the target of {counted(batch, 'sample')} a step, and in the last {STEPS} steps this peer "
            f"was wanted in {sum(self._wanted)}: raise training.target_batch_size, or let each peer take fewer samples "
            f"in a micro-batch (here {report.micro_batch or 'unknown'})"
        )
        logger.warning("this peer finds no work: %s", why)
        self._node.events.emit(TrainingNotNeeded(step=plan.step, why=why))

    def _note_twins(self, plan: Plan, me: int) -> None:
        if me not in plan.twins or self._is_told_twin:
            return
        self._is_told_twin = True
        why = (
            "its first micro-batch gave the gradient of another peer's: with equal seeds all draw the same samples, "
            "and add nothing to each other. Before the data are shuffled, say torch.manual_seed(peer.seed)"
        )
        logger.warning("this peer computes what another one does: %s", why)
        self._node.events.emit(TrainingTwin(step=plan.step, why=why))
