"""The attempts of a member: the one that is under way, and those that passed in the last steps.

Others may be one attempt ahead of this member, ask it for bytes of any of these attempts, and still vote on phases that
it is done with.
"""

from __future__ import annotations

import asyncio
from collections import deque

from minga.core.aio.signal import Signal
from minga.network.interface import PeerId
from minga.security.messaging.voting import ReliableBroadcast
from minga.security.parts.part_store import PartStore
from minga.security.protocol.attempt_record import AttemptRecord, Terms
from minga.security.protocol.behaviour import KEPT_STEPS
from minga.security.protocol.protocol_state import StepProgress
from minga.security.protocol.statements import Slot, Statement

EXPECT_S = 5.0
"""Seconds that a member that is ahead waits until this member gets to its attempt."""


class AttemptHistory:
    """Of one member; `progress` says at which step it is."""

    def __init__(self, progress: StepProgress) -> None:
        self.passed: dict[int, AttemptRecord] = {}
        """The last attempts of past steps."""
        self._progress = progress
        self._current: AttemptRecord | None = None
        self._broadcasts: deque[ReliableBroadcast] = deque(maxlen=KEPT_STEPS)
        """Of the last attempts: others may still vote on their phases."""
        self._began = Signal()

    def begin(self, record: AttemptRecord, broadcast: ReliableBroadcast) -> None:
        """An attempt is under way."""
        self._current = record
        self._broadcasts.append(broadcast)
        self._began.fire()

    def under_way(self, step: int) -> Terms | None:
        """The last attempt at a step that this member began, if that was its last attempt of all."""
        current = self._current
        return current.terms if current is not None and current.terms.step == step else None

    def forget_before(self, step: int) -> None:
        """Drop those that passed in earlier steps."""
        for old in [old for old in self.passed if old < step]:
            del self.passed[old]

    def answer(self, vote: Statement) -> None:
        """A member voted."""
        for broadcast in self._broadcasts:
            broadcast.answer(vote)

    def is_expected(self, slot: Slot) -> bool:
        """Whether to keep what is said in a slot: nobody is more than one attempt ahead, so nobody can make this peer
        keep more than a few statements.
        """
        step = self._progress.step
        if slot.step in self.passed:
            return slot.attempt <= self.passed[slot.step].terms.attempt
        if slot.step == step:
            reached = self.under_way(step)
            return slot.attempt <= (reached.attempt if reached else 0) + 1
        return slot.step == step + 1 and slot.attempt <= 1

    async def find(self, step: int, attempt: int) -> tuple[PartStore, tuple[PeerId, ...]] | None:
        """The store of an attempt, which this member may be about to begin, and its members by rank."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + EXPECT_S
        while True:
            for record in (*self.passed.values(), *([self._current] if self._current else ())):
                if (record.terms.step, record.terms.attempt) == (step, attempt):
                    return record.store, record.terms.members
            left_s = until_s - loop.time()
            if step < self._progress.step or left_s <= 0:
                return None
            await self._began.wait(left_s)
