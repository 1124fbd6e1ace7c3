"""Keeping a trainer at its boundary until what it moved is in a round.

A trainer that goes on while rounds run comes to a boundary once in a micro-batch. Where rounds take less time than
that, the swarm is past the next step each time that it comes: it would fetch the state a micro-batch later, which is
old again by then, and nothing that it moved would ever count. So such a trainer is *held* where it is: the state is
fetched at once, it takes part in the next round with what it moved, and goes on as soon as that is sealed.

    a result waits for the boundary, and the swarm is past it ─▶ begin ─▶ fetch, form the group ─▶ seal ─▶ end

At the end of a run any trainer is held that comes late to its boundary. Nothing that it computes can count any more,
and the others, who have the last state, stay for it only for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from minga.core.aio import watching
from minga.core.thread_guard import loop_bound
from minga.training.bridge.gradient_port import GradientPort
from minga.training.life.board_view import BoardView

LOOK_S: Final = 0.25
LEAST_S: Final = 5.0
"""A trainer is held for as long as a micro-batch takes it, but not for less, while its group forms."""


@loop_bound
class TrainerHold:
    """Holds the trainer of one port, where its strategy keeps what a peer moved and does not wait for rounds anyway, or
    where others have finished the run.
    """

    def __init__(self, port: GradientPort, swarm_view: BoardView) -> None:
        self._port, self._swarm_view = port, swarm_view
        self._timer: asyncio.TimerHandle | None = None
        self._is_held = False

    def begin(self) -> None:
        """Keep the trainer from computing, from its next boundary on, until `end`."""
        self._stop_timer()
        self._is_held = self._port.facts.counts_late or self._swarm_view.is_over()
        self._port.hold(holding=self._is_held)

    def end(self) -> None:
        """Let it go on, if it was held."""
        self._stop_timer()
        if self._is_held:
            self._is_held = False
            self._port.hold(holding=False)

    def end_soon(self) -> None:
        """Let it go on after the time of a micro-batch, whatever happens: a group may form only with what it computes
        by then. At once, if it has nothing to give.
        """
        if not self._port.report().samples:
            self.end()
        else:
            self._end_later()

    @contextlib.contextmanager
    def beginning_if_behind(self, step: int) -> Iterator[None]:
        """While something waits for the trainer's boundary: `begin` as soon as others are past `step`."""

        def look() -> bool:
            if late := self._swarm_view.is_behind(step):
                self.begin()
            return late and self._is_held

        with watching(LOOK_S, look):
            yield
        if self._is_held:  # the others may be gone before it has their state, or before a round with them
            self._end_later()

    def _end_later(self) -> None:
        self._stop_timer()
        seconds = max(LEAST_S, self._port.micro_batch_s)
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
