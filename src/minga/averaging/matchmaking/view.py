"""Whom a peer goes with from step to step, and whom it would ask to lead the next one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable, Sequence

from minga.averaging.allreduce.round import IDLE_S, LATE
from minga.averaging.election import has_quorum, ranking
from minga.averaging.group import GroupSettings, SwarmView
from minga.averaging.messages import Plan
from minga.core.aio import Backoff
from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node

# ---- Whom this peer does not ask to lead for a while, because it was asked in vain.


FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 32.0


class Suspects:
    """Suspicions that end by themselves: others may hear a peer that this one did not hear for a moment, and follow it.

    Each further suspicion within a step lasts twice as long.
    """

    def __init__(self, peers: Iterable[PeerId] = ()) -> None:
        self._suspicions: dict[PeerId, Backoff] = {}
        for peer in peers:
            self.add(peer)

    def add(self, peer: PeerId) -> None:
        """Suspect a peer, for longer if it was suspected before."""
        self._suspicions.setdefault(peer, Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)).suffer()

    def clear(self) -> None:
        """Trust all peers again."""
        self._suspicions.clear()

    def now(self) -> set[PeerId]:
        """The peers that are suspected at present."""
        return {peer for peer, suspicion in self._suspicions.items() if suspicion.is_on}


# ---- The members of the last round, and who of them would lead.


RECENT_S = 60.0
"""Seconds after a round for which its members count for a peer that had to fetch the state."""

MOST_ASKED = 5
UNFORESEEN_S = 60.0
"""How long members that are still at work are waited for in a round of which nothing was foreseen."""


@loop_bound
class MembershipView:
    """The members of the last round, the suspected peers, and what both mean for the step that is formed now."""

    def __init__(self, node: Node, settings: GroupSettings, swarm_view: SwarmView) -> None:
        self.view: tuple[PeerId, ...] = ()
        """Members of the last round that this peer took part in, its leader first; empty before the first."""
        self._node, self._settings, self._swarm_view = node, settings, swarm_view
        self._step = -1
        self._clients: set[PeerId] = set()
        self._origin: tuple[PeerId, ...] = ()  # who was there when this peer took over the state
        self._entered: tuple[PeerId, ...] = ()  # members of the last round that this peer began
        self._viewed_s, self._foreseen_s = -math.inf, 0.0
        self._tardy: set[PeerId] = set()
        self.suspects = Suspects()

    @property
    def everyone(self) -> tuple[PeerId, ...]:
        """The view, or before the first round those that this peer got its state from."""
        return self.view or self._origin

    # ---- what happens to this peer

    def begin_step(self, step: int, avoid: Collection[PeerId]) -> None:
        """A group is to be formed for `step`; `avoid` are suspected from the start, nobody else is."""
        self._step, self.suspects = step, Suspects(avoid)

    def take_part(self, plan: Plan) -> None:
        """This peer has a plan. Whether its members are the next view is open until the round is committed."""
        self._entered = plan.ids
        if not plan.electorate and not self.view:  # a first group: its members decide whether it ever gets to a result
            self.view = self._entered
        self._viewed_s = _now()
        self._foreseen_s = UNFORESEEN_S if plan.predicted_s is None else LATE * min(plan.predicted_s, IDLE_S)
        self._clients = {member.peer_id for member in plan.members if not member.aggregates}

    def commit(self, plan: Plan) -> None:
        """The round of this plan is committed: its members are the next view."""
        self.view = plan.succession

    def regroup(self, members: Sequence[PeerId], *, is_one: bool) -> None:
        """The organisers named the `members` that go on: the view, if this peer is one of them with their state; else
        those to come back to.
        """
        self._entered = ()
        self.view, self._origin = (tuple(members), ()) if is_one else ((), tuple(members))
        if not is_one:
            self._viewed_s = -math.inf

    def learn(self, view: Sequence[str]) -> None:
        """A member of the last round, at the same step, tells who else was in that."""
        self.view = self.view or tuple(map(PeerId, view))

    def come_back(self, others: Collection[PeerId]) -> None:
        """The state was taken over from `others`: what this peer knew of the group is out of date.

        Until it takes part in a round it goes with them, and with those whom it saw in the last minute: else the
        smaller side of a split could forget that there is a larger one.
        """
        recent = (*self.everyone, *self._entered) if _now() - self._viewed_s < RECENT_S else ()
        self._origin = tuple(sorted({*others, *recent, self._node.peer_id}))
        self.view = ()

    def gave_up_waiting(self, came: Collection[PeerId]) -> None:
        """Who was waited for in vain (it may not reach us) is not waited for again before it joined once."""
        self._tardy = (self._tardy | self.expected()) - set(came)

    # ---- what it concludes

    def is_behind(self) -> bool:
        """Whether most of the swarm, or most of the others whom this peer goes with, are past the step."""
        return self._swarm_view.is_behind(self._step) or self.are_past(self._step)

    def are_past(self, step: int) -> bool:
        """Whether most of the others whom this peer goes with are past `step`."""
        if not (ahead := set(self._swarm_view.ahead(step))):
            return False
        me = self._node.peer_id
        known = [peer for peer in self.everyone if peer != me]
        return bool(known) and has_quorum(ahead, known)

    def expected(self) -> set[PeerId]:
        """Who should come to a group that this peer leads; nobody whose process has ended."""
        known = (set(self.view) & set(self._swarm_view.alive())) | set(self._swarm_view.at(self._step))
        ended = {peer for peer in known if self._node.has_just_ended(peer)}
        return known - ended - self.suspects.now() - self._tardy - {self._node.peer_id}

    def at_work(self) -> set[PeerId]:
        """Those of them whose last round still runs, as it may for long after it ended for who reduces; but not longer
        than was foreseen, whatever its leader foresaw.
        """
        if _now() > self._viewed_s + self._foreseen_s:
            return set()
        return self.expected() & set(self.view) & set(self._swarm_view.averaging(self._step - 1))

    def strangers(self, present: Collection[PeerId]) -> list[PeerId]:
        """Others at this step, not suspected, who could lead a group without the peers `present` here."""
        return sorted(set(self._swarm_view.current(self._step)) - set(present) - self.suspects.now())

    def guides(self) -> list[PeerId]:
        """Whom a newcomer asks where to go: others at its step, or if it has heard of none, those from whom it has its
        state. They are at this step or soon will be, and it went on without them if it did not ask.
        """
        here = self._swarm_view.current(self._step)
        return sorted(here or set(self._origin) & set(self._swarm_view.alive()) - {self._node.peer_id})[:MOST_ASKED]

    def choose_leader(self) -> Address | None:
        """The address of the best leader that is not suspected, or None if that is this peer.

        Raises `RejectedError` if a client finds nobody.
        """
        me = self._node.peer_id
        candidates = set(self.view) - self._clients or set(self._swarm_view.eligible(self._step))
        candidates = candidates & set(self._swarm_view.alive()) or candidates
        if self._settings.aggregates:
            candidates.add(me)
        for peer in ranking(self._node.run_id, self._step, candidates - self.suspects.now()):
            if peer == me:
                if self._settings.aggregates:
                    return None
                continue
            address = self._swarm_view.address(peer)
            if (address is not None and address.dialable) or self._node.is_connected(peer):
                return address or Address(peer)
        if self._settings.aggregates:
            return None
        self.suspects.clear()  # a client cannot lead: ask everybody again
        others = [peer for peer in self._swarm_view.current(self._step) if peer != me]
        if others:
            return self._swarm_view.address(others[0]) or Address(others[0])
        raise RejectedError("nobody can be reached who could lead", code=RefusalCode.STAND_BY)


def _now() -> float:
    return asyncio.get_running_loop().time()
