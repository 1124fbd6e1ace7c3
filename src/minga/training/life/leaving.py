"""How a peer's life in a run ends: after the last step, or by a mistake.

Where there are but two members, each goes on alone when it loses sight of the other. If they find each other again,
they compare their states, and one of them gives way. After the last step no other would follow that shows the
difference. So a peer that lost others shortly before the end waits for these and compares. It need not be in the last
round that it lost them: alone, each takes several steps in the seconds of a broken line. In the same way those of the
last round compare once more, so that a run does not end with several models because their programs differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from minga.averaging.allreduce.round import RoundOutcome
from minga.core.errors import ClosedError, MingaError
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.training.agreement.comparison import StateComparison
from minga.training.life.board_view import BoardView
from minga.training.record_kinds import Progress

FAREWELL_S = 5.0
"""Longest time, in seconds, that a peer which finished the run stays for others that do not have its last state, or for
those that it lost."""
LOST_S = 60.0
"""So many seconds after half of a group parted from this peer it may come back with steps of its own; later none waits
for it."""


@loop_bound
class Companions:
    """Who was in the last round, and who was lost there or shortly before and may have taken the same steps alone."""

    def __init__(self, swarm_view: BoardView, states: StateComparison) -> None:
        self._swarm_view, self._states = swarm_view, states
        self._together = self._just_lost = frozenset[PeerId]()
        self._parted_s: dict[PeerId, float] = {}  # loop time at which each went with half of a group or more

    @property
    def lost(self) -> frozenset[PeerId]:
        """Those that the last round lost, and those that went before and can have gone on: fewer than half of a group
        wait, and who said goodbye does not go on.
        """
        since_s = asyncio.get_running_loop().time() - LOST_S
        parted = {peer for peer, parted_s in self._parted_s.items() if parted_s >= since_s}
        return frozenset(peer for peer in self._just_lost | parted if not self._swarm_view.said_goodbye(peer))

    def note(self, outcome: RoundOutcome) -> None:
        """This peer takes a step by what came of a round."""
        members = frozenset(member.peer_id for member in outcome.plan.members)
        together, before = members.difference(outcome.lost), self._together or members
        self._just_lost = (before | members) - together
        if 2 * len(together & before) <= len(before):  # newcomers do not make up for them: the others may go on as well
            self._parted_s |= dict.fromkeys(self._just_lost, asyncio.get_running_loop().time())
        self._parted_s = {peer: parted_s for peer, parted_s in self._parted_s.items() if peer not in together}
        self._together = together

    def begin_with(self, peers: Collection[PeerId] = ()) -> None:
        """This peer, one of these, has the state of the others now: they may be lost before a round with them."""
        self._together, self._just_lost = frozenset(peers), frozenset()
        self._parted_s.clear()

    def may_differ(self, step: int) -> bool:
        """Whether one that was lost has not told yet that it has the state of `step`, or may still need this peer's; or
        half of those of the last round, as far as they are here, have not told theirs. Who finished the run at an
        earlier step, before the organisers let it go on, never will.
        """
        settled = self._swarm_view.settled()
        through = self._swarm_view.through(step) & settled.keys()  # who died may have been started again elsewhere
        here = [peer for peer in self._together - through if peer in settled]
        if 2 * sum(not self._states.has_told(peer, step) for peer in here) >= max(1, len(here)):
            return True
        return any(
            peer not in settled or not self._states.has_told(peer, step) or self._is_behind(peer, step, settled[peer])
            for peer in self.lost - through
        )

    async def see_off(self, step: int) -> None:
        """Stay for a moment until the others have the state of `step`, too. Also those that were in none of the last
        rounds, since they compute more slowly than the others: they would find nobody, and take these steps alone.
        """
        others = self._swarm_view.with_state() | self._together
        await see_others_off(self._swarm_view, others, lambda peer, it: self._is_behind(peer, step, it))

    def _is_behind(self, peer: PeerId, step: int, progress: Progress) -> bool:
        return progress.status != "finished" and (progress.step < step or self._states.differs(peer, step))


async def see_others_off(
    swarm_view: BoardView, others: Collection[PeerId], is_behind: Callable[[PeerId, Progress], bool]
) -> None:
    """Stay for a moment until no other peer `is_behind` by its progress; they may need this peer's data."""
    deadline = asyncio.get_running_loop().time() + FAREWELL_S
    while asyncio.get_running_loop().time() < deadline:
        settled, syncing = swarm_view.settled(), swarm_view.syncing()
        if not any(is_behind(peer, settled[peer]) for peer in others if peer in settled) and syncing.keys().isdisjoint(
            others
        ):
            return
        await asyncio.sleep(0.05)


def closing(error: Exception) -> MingaError:
    """What the trainer hears when `error` ended its peer: a `ClosedError` if it is no error of minga's own."""
    if isinstance(error, MingaError):
        return error
    closed = ClosedError(f"this peer stopped taking part, by a mistake in the program: {type(error).__name__}: {error}")
    closed.__cause__ = error
    return closed
