"""When a member fetches the swarm's state: where its own is too old, or has been another than that of most for a while.

A newcomer, a peer that missed a step and one that diverged do the same: they tell the step that they fetch, so that the
next step waits for them, and begin anew when the swarm has gone on before the state was here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from minga.averaging.matchmaking.leader import OutOfSyncError
from minga.core.errors import RemoteError
from minga.core.events.bus import EventBus
from minga.core.events.training import MemberDiverged, SyncFailed, SyncOvertaken
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.training.agreement.comparison import StateComparison
from minga.training.life.board_view import BoardView
from minga.training.life.state_sync import Synchroniser

SYNC_RETRY_S = 1.0
SYNC_PAUSE_S = 0.1
OVERTAKEN_PERIOD_S = 0.5
SHORTEST_FETCH_S = 1.0
"""A download that is over sooner is not given up, even if the swarm has taken a step meanwhile."""

MOST_FETCHES_GIVEN_UP = 8
"""Then downloads go on to their end: steps are too short for this peer's line, and each costs others a copy."""
DIVERGED_S = 5.0

WARNED_AT = 2
"""The divergence at which the program is warned: one may come of a lost link."""

logger = logging.getLogger("minga.training")


@loop_bound
class CatchingUp:
    """Knows whether this peer has to fetch a state, and fetches it; `others` are the peers with which it compares, and
    `is_last` says whether a step is the last one of the run.
    """

    def __init__(
        self,
        synchroniser: Synchroniser,
        swarm_view: BoardView,
        states: StateComparison,
        events: EventBus,
        others: Callable[[], set[PeerId]],
        is_last: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self.needs_state = True
        """Whether this peer takes part in no step before it has looked for a newer state."""
        self.discards_state = False
        """Whether what this peer has is of no use, however new: it waits until it sees a state to fetch."""
        self._at_least = 0
        self._fetches_given_up = 0
        self._diverged_since_s: float | None = None
        self._divergences = 0
        self._synchroniser, self._swarm_view, self._states = synchroniser, swarm_view, states
        self._events, self._others, self._is_last = events, others, is_last

    def require(self, at_least: int = 0) -> None:
        """This peer's state will not do: it needs one of step `at_least` or a later one."""
        self.needs_state, self._at_least = True, at_least

    def is_due(self, step: int) -> bool:
        """Whether the state of `step`, which this peer has, is too old or diverged."""
        return self.needs_state or self._is_diverged(step)

    def step_to_fetch(self, step: int) -> int | None:
        """The step whose state this peer needs, which has that of `step`; None if what it has will do.

        It goes back to an earlier one only if its state has been another than that of most for a while.
        """
        newest = max(self._swarm_view.newest_step() or 0, self._at_least)
        if not self._swarm_view.settled():
            return None
        if self.discards_state:
            return newest
        since_s, now = self._diverged_since_s, asyncio.get_running_loop().time()
        return newest if newest >= step or (since_s is not None and now - since_s > DIVERGED_S) else None

    async def go_without(self) -> None:
        """There is nothing to fetch: alone, or first of all, just go on."""
        if self.discards_state:  # none that has the regrouped run's state is in sight
            await asyncio.sleep(SYNC_RETRY_S)
            return
        if not self.needs_state:  # diverged, from others who have not told their step yet
            await asyncio.sleep(SYNC_PAUSE_S)
        self.needs_state = False

    async def fetch(self, newest: int, *, in_doubt: bool) -> int:
        """Take over the state of step `newest` or a later one; returns its step. Raises as `Synchroniser.fetch`, and
        `OutOfSyncError` when the state is of no use any more.
        """
        return await self._synchroniser.fetch(newest, partial(self._watch_whether_over, newest), in_doubt=in_doubt)

    async def note_failure(self, newest: int, error: RemoteError) -> None:
        """The state of step `newest` did not come: tell why, and wait before the next attempt if that is useful."""
        if isinstance(error, OutOfSyncError):
            self._fetches_given_up += 1
            self._events.emit(SyncOvertaken(step=newest, why=error.message))
            return
        self._at_least = 0
        self._events.emit(SyncFailed(step=newest, why=error.message))
        await asyncio.sleep(SYNC_RETRY_S)

    def finish(self, step: int) -> None:
        """The state of `step` is here.

        If a step ended meanwhile it still has to be seen fetching: the next one is held for it only then.
        """
        self._states.clear()
        self._at_least, self._diverged_since_s, self._fetches_given_up = 0, None, 0
        self.discards_state = False
        self.needs_state = self._swarm_view.is_behind(step)

    def warn_of_end(self, step: int) -> None:
        """The run is over at `step`: tell the program if its end is not that of the others."""
        if self._is_diverged(step):
            logger.warning(
                "the run ended at step %d, and the model here is another than that of the other peers: use theirs, "
                "and see what this program does with parameters, optimizer or learning rate that theirs do not",
                step,
            )

    # ---- inner workings

    async def _watch_whether_over(self, step: int) -> NoReturn:
        """Raise `OutOfSyncError` when the state of `step` is of no use any more.

        A step is held for those that fetch its state. So the next one's is fetched from its very beginning.
        """
        await asyncio.sleep(SHORTEST_FETCH_S)
        while self._fetches_given_up >= MOST_FETCHES_GIVEN_UP or (self._swarm_view.newest_step() or 0) <= step:
            await asyncio.sleep(OVERTAKEN_PERIOD_S)
        raise OutOfSyncError("the swarm went on before the state was here", code=RefusalCode.BEHIND, round=step)

    def _is_diverged(self, step: int) -> bool:
        settled = self._swarm_view.settled() if self._is_last(step) else {}
        finished = [peer for peer, progress in settled.items() if progress.status == "finished"]
        if not self._states.is_diverged(self._others(), finished):
            self._diverged_since_s = None
            return False
        if self._diverged_since_s is None:
            self._diverged_since_s = asyncio.get_running_loop().time()
            self._events.emit(MemberDiverged(step=step))
            self._divergences += 1
            if self._divergences == WARNED_AT:
                logger.warning(
                    "at step %d this peer's state is another than that of the others, not for the first time: it takes "
                    "theirs again; does its program change parameters, optimizer or learning rate as no other does?",
                    step,
                )
        return True
