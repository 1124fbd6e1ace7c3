"""Whether a group may take a step, so that no two groups ever take the same one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from minga.averaging.election import by_tie_breaker, has_quorum, is_majority, may_be_committed
from minga.averaging.group import GroupSettings, SwarmView
from minga.averaging.matchmaking.leader import OutOfSyncError
from minga.core.errors import MinorityError
from minga.core.events.averaging import GroupMinority
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.gossip.changes import Change, Presence
from minga.network.interface import PeerId
from minga.network.rpc.node import Node

UNANIMOUS_S = 10.0
"""Seconds for which a group of peers without a common past waits for everybody in sight, before most of them do."""

OVERTAKEN_S = 1.0
"""Seconds for which a member of the last round has to be past a step that finds no quorum, before the step is over."""


@loop_bound
class QuorumRule:
    """The rules for one step after the other.

    The members of the last round decide: most of them have to be in the group with their votes, those not counted who
    said goodbye. Where all of them are in the group, and most have no vote since they were started anew, the others
    decide. A first group, which succeeds none, waits for everybody that is in sight at its step, `UNANIMOUS_S` long,
    and then needs most of them; peers that fetched the state count the members from which they have it, too.
    """

    def __init__(self, node: Node, swarm_view: SwarmView, settings: GroupSettings) -> None:
        self._node, self._swarm_view = node, swarm_view
        self._wait_in_minority, self._organiser = settings.wait_in_minority, settings.organiser
        self._departed: set[PeerId] = set()
        self._departed_before: set[PeerId] = set()
        """Members that are gone since before this step or said goodbye in it, even if they are back."""
        self._step = -1
        self._in_minority = False
        self._apart_since_s: float | None = None
        self._overtaken_since_s: float | None = None
        swarm_view.observe(self._note_departures)

    def begin_step(self, step: int, view: Collection[PeerId]) -> None:
        """Forget for how long the group of the last step was in doubt, and who left before the members of `view`."""
        self._departed.intersection_update(view)
        if step != self._step:
            self._departed_before = set(self._departed)
        self._step = step
        self._in_minority, self._apart_since_s, self._overtaken_since_s = False, None, None

    def electorate(self, view: Sequence[PeerId], without: Collection[PeerId] = ()) -> tuple[PeerId, ...]:
        """The members of the last round that have not said goodbye, the tie-breaker first; `without` some of them."""
        gone = {*self._departed, *without}
        return by_tie_breaker([peer for peer in view if peer not in gone], self._organiser)

    def forgetful(
        self, view: Sequence[PeerId], voters: Collection[PeerId], voteless: Collection[PeerId], seen: Collection[PeerId]
    ) -> set[PeerId]:
        """The members of the last round whose processes ended since, and without whom the `voters` decide: those that
        are `voteless`, if the voters are no quorum, all members are among the peers `seen` in the group, and all that
        have a vote are voters.

        So none of the members is past the step, and what the processes that ended may have decided is lost with them.
        """
        electorate = set(self.electorate(view))
        rest = electorate.difference(voteless)
        is_whole = electorate.issubset(seen) and bool(rest) and rest.issubset(voters)
        return electorate - rest if is_whole and not has_quorum(voters, self.electorate(view)) else set()

    def may_be_committed(self, view: Sequence[PeerId], lacking: Collection[PeerId]) -> bool:
        """Whether a result of the step after the round of `view` may be committed, although these never held it."""
        return may_be_committed(by_tie_breaker(view, self._organiser), lacking)

    def has_decided(self, view: Sequence[PeerId], makers: Collection[PeerId]) -> bool:
        """Whether the `makers` of a result may have decided the step after the round of `view`: a quorum of that is
        among them. Members that said goodbye in this step do not count, whether they are back or not, unless they are
        among the makers: the leader may have known less than this peer does.
        """
        gone = self._departed_before - set(makers)
        return has_quorum(makers, by_tie_breaker([peer for peer in view if peer not in gone], self._organiser))

    def may_close(
        self,
        step: int,
        view: Sequence[PeerId],
        voters: Collection[PeerId],
        seen: Collection[PeerId],
        voteless: Collection[PeerId] = (),
    ) -> bool:
        """Whether a group with these `voters` may take `step`, `view` being the members of the last round.

        `seen` are all of the group, and `voteless` those of it who have no vote. Raises `OutOfSyncError` if the
        step is over already, and `MinorityError` if the view's majority is out of sight and the run spec says to stop
        then.
        """
        if self._swarm_view.is_behind(step):  # the others took it meanwhile, so none of them is at it any more
            return False
        electorate = self.electorate(view, self.forgetful(view, voters, voteless, seen))
        if has_quorum(voters, electorate):
            return True
        self._look_whether_over(step, electorate)
        if not has_quorum({*seen, *self._swarm_view.alive()}.difference(voteless), electorate):
            self._report_minority(step, len(seen), len(view))
        return False

    def may_found(self, step: int, origin: Sequence[PeerId], group: Collection[PeerId]) -> bool:
        """Whether `group`, none of whom knows of a last round, may be the first one; `origin` are those from whom this
        peer has its state, if it fetched that. Raises `MinorityError` as `may_close` does.
        """
        if origin:
            return self.may_close(step, origin, group, group)
        now = asyncio.get_running_loop().time()
        rivals = sorted({self._node.peer_id, *self._swarm_view.at(step)})
        if not set(group).issuperset(rivals):
            self._apart_since_s = self._apart_since_s or now
            if now - self._apart_since_s < UNANIMOUS_S:
                return False
        return not self._swarm_view.is_behind(step) and is_majority(group, rivals)

    def _look_whether_over(self, step: int, electorate: Collection[PeerId]) -> None:
        """One member of the last round that is past the step is enough: it applied a committed result. Too few others
        may be left to find that out by a new attempt. They get it with its state.
        """
        now = asyncio.get_running_loop().time()
        if set(electorate).isdisjoint(self._swarm_view.ahead(step)):
            self._overtaken_since_s = None
            return
        self._overtaken_since_s = self._overtaken_since_s or now
        if now - self._overtaken_since_s > OVERTAKEN_S:
            raise OutOfSyncError(
                "a member of the last round took this step already", code=RefusalCode.BEHIND, round=step
            )

    def _note_departures(self, peer: PeerId, change: Change) -> None:
        if change is Presence.LEFT:
            self._departed.add(peer)
            self._departed_before.add(peer)
        elif change is Presence.JOINED:
            self._departed.discard(peer)

    def _report_minority(self, step: int, group_size: int, view_size: int) -> None:
        if not self._in_minority:
            self._in_minority = True
            self._node.events.emit(GroupMinority(step=step, view=view_size))
        if not self._wait_in_minority:
            raise MinorityError(
                f"only {group_size} of the {view_size} members of the last round can be seen from here, or too many "
                "were started again; the rest may be training on without us. Check this machine's network and join "
                "again."
            )
