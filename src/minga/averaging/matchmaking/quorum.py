"""Whether a group may take a step, so that no two groups ever take the same one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from minga.averaging.election import has_quorum, is_majority
from minga.averaging.group import SwarmView
from minga.core.errors import MinorityError
from minga.core.events.averaging import GroupMinority
from minga.core.thread_guard import loop_bound
from minga.network.gossip.changes import Change, Presence
from minga.network.interface import PeerId
from minga.network.rpc.node import Node

SETTLED_S = 3.0
"""Seconds by which the peers of a swarm may differ in noticing who is gone."""

UNANIMOUS_S = 10.0
"""Seconds for which a group of peers without a common past waits for everybody in sight, before most of them do."""


@loop_bound
class QuorumRule:
    """The rules for one step after the other.

    First, a group has to have the majority of the last round, those not counted who said goodbye, or at least have it
    in sight for `SETTLED_S` (a split is not noticed at once, and this may be its smaller side). Second, most of those
    of its members that live have to be in the group; a first group, which succeeds none, waits for everybody that is in
    sight at its step, `UNANIMOUS_S` long, and then needs most of them, too.
    """

    def __init__(self, node: Node, surveyor: SwarmView, *, wait_in_minority: bool) -> None:
        self._node, self._surveyor, self._wait_in_minority = node, surveyor, wait_in_minority
        self._departed: set[PeerId] = set()
        self._in_minority = False
        self._apart_since_s: float | None = None
        self._in_sight_since_s: float | None = None
        surveyor.observe(self._note_departures)

    def begin_step(self, view: tuple[PeerId, ...]) -> None:
        """Forget for how long the group of the last step was in doubt, and who left before the members of `view`."""
        self._departed.intersection_update(view)
        self._in_minority, self._apart_since_s, self._in_sight_since_s = False, None, None

    def may_close(self, step: int, view: tuple[PeerId, ...], group: Collection[PeerId]) -> bool:
        """Whether `group` may take `step`, `view` being the members of the last round: no other group may as well.

        Raises `MinorityError` if the view's majority is out of sight and the run spec says to stop then.
        """
        present = [peer for peer in view if peer not in self._departed]
        active, me, now = set(self._surveyor.active()), self._node.peer_id, asyncio.get_running_loop().time()
        if self._surveyor.is_behind(step):  # the others took it meanwhile, so none of them is at it any more
            return False
        if not has_quorum({*group, *self._surveyor.alive()}, present):
            self._in_sight_since_s = None
            self._report_minority(step, len(group), len(view))
            return False
        if not has_quorum(set(group), present):
            self._in_sight_since_s = self._in_sight_since_s or now
            if now - self._in_sight_since_s < SETTLED_S:
                return False
        rivals = [p for p in present if p in group or p in active] or sorted({me, *self._surveyor.at(step)})
        if not view and not set(group).issuperset(rivals):
            self._apart_since_s = self._apart_since_s or now
            if now - self._apart_since_s < UNANIMOUS_S:
                return False
        return is_majority(group, rivals)

    def _note_departures(self, peer: PeerId, change: Change) -> None:
        if change is Presence.LEFT:
            self._departed.add(peer)
        elif change is Presence.JOINED:
            self._departed.discard(peer)

    def _report_minority(self, step: int, group_size: int, view_size: int) -> None:
        if not self._in_minority:
            self._in_minority = True
            self._node.events.emit(GroupMinority(step=step, view=view_size))
        if not self._wait_in_minority:
            raise MinorityError(
                f"only {group_size} of the {view_size} members of the last round can be seen from here; "
                "the rest may be training on without us. Check this machine's network and join again."
            )
