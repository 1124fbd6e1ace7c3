"""One peer's attempt at one step: what it sees of the others at that step, and what it concludes from that.

An attempt begins when a group is looked for, and is thrown away when the next one begins. What outlives it is the
`Position` that it leads to: every promise, plan and result that this peer comes by makes another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from minga.averaging.clocking.batch_size import BatchSize
from minga.averaging.clocking.standby import Standby
from minga.averaging.election import has_quorum, is_majority, ranking
from minga.averaging.group import Contributor, GroupSettings, SwarmView
from minga.averaging.matchmaking.votes import Position, Vote
from minga.averaging.messages import Join, Plan, Report
from minga.core.aio import Backoff
from minga.core.errors import MinorityError, RejectedError, SilentError
from minga.core.events.averaging import GroupMinority
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node

logger = logging.getLogger("minga.averaging")

JOIN: Final = "group.join"
PROBE: Final = "group.probe"
VIEW: Final = "group.view"
HERE: Final = "group.here"

MOST_ASKED = 5
PATIENT_TRIES = 20
"""A peer that should lead and neither takes us nor refuses us for good, so many times in a step, is no leader."""
MOST_USUAL_S = 600.0
"""A newcomer does not reckon with longer steps, however slow it is itself: its leader may be a liar."""
UNANIMOUS_S = 10.0
"""Seconds for which a group of peers without a common past waits for everybody in sight, before most of them do."""
OVERTAKEN_S = 1.0
"""Seconds for which a member of the last round has to be past a step that finds no quorum, before the step is over."""
QUORUM_LOOK_S = 5.0
"""Who sees twice, so many seconds apart, that the last round's members are too few, says so."""


class OutOfSyncError(RejectedError):
    """The swarm is at a later step than this peer, or in another state: it has to fetch the state first."""


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


# ---- How long a full step waits for newcomers that are fetching its state.
#
# Theory of operation. While the swarm waits its state does not change. So a newcomer that can fetch it in that time
# gets in, however short the steps are; if nobody ever waited, newcomers of such a run would chase its state for ever.
# But what one step waits, everybody waits. So there is one bound for all newcomers of a step together: the time that
# a step takes, its round included, and `LEAST_S` at least, in which most newcomers are done.
#
# Who misses that begins anew, with the state of the next step, and that waits as long as the newcomer has been at it
# until then, up to a bound: so it gets in as soon as that is longer than its download takes. A newcomer that needs
# longer than the bound, or pretends to, is given up when it has been at it for `GIVEN_UP` times as long.
#
# Where it is the lines of the members that are slow, a newcomer has to wait for them, whatever its own is like, and a
# few members lose less by waiting than many do, and gain more. So there the bound is twice what these lines need for
# it, and each newcomer may cost `PRICE_S` seconds of one member's time, however many members there are. The first step
# already waits as long as the lines need for one newcomer, which suffices for many that share what they have; if it
# did not, what they fetched until then would be lost. For one whose own line is slow nobody waits longer: once it is
# in, every round takes as long as it needs.


LEAST_S, MOST_S = 2.0, 10.0
"""Bounds of what one step waits for all newcomers together; one of steps that take longer waits as long as they do."""

PRICE_S = 600.0
"""Of a volunteer that stays for an hour, this is a sixth of what it gives; few need as much."""

GIVEN_UP = 3.0


STATE_BYTES = 16
"""What a state takes for each value of the vector, at most as a rule: it, two moments and an average, in float32."""


@dataclass(frozen=True)
class Patience:
    """What one step of so many `members` has for newcomers, where steps take `step_s` seconds and the lines of the
    members take `giving_s` to give one newcomer the state, 0 where theirs are not what is slow.
    """

    step_s: float
    members: int
    giving_s: float = 0.0

    def longest_s(self, newcomers: int) -> float:
        """How many seconds it waits for so many newcomers at the very most."""
        price_s = PRICE_S * min(1.0, newcomers / self.members)
        return max(MOST_S, self.step_s, min(price_s, 2.0 * self.giving_s * newcomers))

    def waited_for(self, syncing: Mapping[PeerId, float]) -> list[PeerId]:
        """Those for whom it waits; `syncing` tells for how many seconds each has been at it."""
        most_s = GIVEN_UP * self.longest_s(len(syncing))
        return [peer for peer, seconds in syncing.items() if seconds < most_s]

    def hold_s(self, syncing: Mapping[PeerId, float], since_full_s: float) -> float:
        """For how many seconds it waits for all of them together, when it has been full for `since_full_s`."""
        waited = self.waited_for(syncing)
        before = [syncing[peer] - since_full_s for peer in waited]
        return min(max(LEAST_S, self.step_s, self.giving_s, *before), self.longest_s(len(waited)))


# ---- The attempt.


@loop_bound
@dataclass(eq=False)
class GroupAttempt:
    """An attempt at the step of its `position`. The `suspects` were asked in vain, in the last round or in this step;
    `merge_into` leads a larger group than this peer; the `viewless` have a vote and cannot tell who took part in the
    last round.
    """

    node: Node
    settings: GroupSettings
    swarm_view: SwarmView
    contributor: Contributor
    batch: BatchSize
    standby: Standby
    position: Position
    suspects: Suspects = field(default_factory=Suspects)
    merge_into: Address | None = None
    viewless: set[PeerId] = field(default_factory=set)
    minority: MinorityError | None = None
    _tries: Counter[PeerId] = field(default_factory=Counter)
    _is_in_minority: bool = False
    _misses: bool = False
    _apart_since_s: float | None = None
    _overtaken_since_s: float | None = None

    def next(self, step: int, avoid: Collection[PeerId] = ()) -> GroupAttempt:
        """The attempt after this one, at `step`; `avoid` are suspected from the start, nobody else is."""
        return GroupAttempt(
            self.node,
            self.settings,
            self.swarm_view,
            self.contributor,
            self.batch,
            self.standby,
            self.position.at(step),
            Suspects(avoid),
        )

    @property
    def step(self) -> int:
        """The step that is tried."""
        return self.position.step

    @property
    def me(self) -> PeerId:
        """This peer."""
        return self.position.me

    @property
    def target_batch(self) -> int:
        """The target batch size of the step, as far as this peer knows it."""
        return self.batch.of(self.step)

    # ---- whom it sees

    def is_behind(self) -> bool:
        """Whether most of the swarm, or most of the others whom this peer goes with, are past the step."""
        return self.swarm_view.is_behind(self.step) or self.position.are_past(self.swarm_view.ahead(self.step))

    def expected(self) -> set[PeerId]:
        """Who should come to a group that this peer leads; nobody whose process has ended."""
        view, tardy = self.position.view, self.position.tardy
        known = (set(view) & set(self.swarm_view.alive())) | set(self.swarm_view.at(self.step))
        ended = {peer for peer in known if self.node.has_just_ended(peer)}
        return known - ended - self.suspects.now() - tardy - {self.me}

    def at_work(self) -> set[PeerId]:
        """Those of them whose last round still runs, as it may for long after it ended for who reduces; but not longer
        than was foreseen, whatever its leader foresaw.
        """
        if _now() > self.position.late_s:
            return set()
        return self.expected() & set(self.position.view) & set(self.swarm_view.averaging(self.step - 1))

    def give_up_waiting(self, came: Collection[PeerId]) -> None:
        """Who was waited for in vain (it may not reach us) is not waited for again before it joined once."""
        self.position = replace(self.position, tardy=(self.position.tardy | self.expected()).difference(came))

    def strangers(self, present: Collection[PeerId]) -> list[PeerId]:
        """Others at this step, not suspected, who could lead a group without the peers `present` here."""
        return sorted(set(self.swarm_view.current(self.step)) - set(present) - self.suspects.now())

    def guides(self) -> list[PeerId]:
        """Whom a newcomer asks where to go: others at its step, or if it has heard of none, those from whom it has its
        state. They are at this step or soon will be, and it went on without them if it did not ask.
        """
        here = self.swarm_view.current(self.step)
        return sorted(here or set(self.position.origin) & set(self.swarm_view.alive()) - {self.me})[:MOST_ASKED]

    # ---- who leads

    def choose_leader(self) -> Address | None:
        """The address of the best leader that is not suspected, or None if that is this peer.

        Raises `RejectedError` if a client finds nobody.
        """
        candidates = set(self.position.view) - self.position.clients or set(self.swarm_view.eligible(self.step))
        candidates = candidates & set(self.swarm_view.alive()) or candidates
        if self.settings.aggregates:
            candidates.add(self.me)
        apart, cut_off = self.swarm_view.broken_paths()
        ranked = ranking(self.node.run_id, self.step, candidates - self.suspects.now())
        for peer in sorted(
            ranked, key=lambda peer: (peer in cut_off, len(apart.get(peer, ())))
        ):  # all have to reach it
            if peer == self.me:
                if self.settings.aggregates:
                    return None
                continue
            if not self.may_join(peer):
                continue
            address = self.swarm_view.address(peer)
            if (address is not None and address.dialable) or self.node.is_connected(peer):
                return address or Address(peer)
        if self.settings.aggregates:
            return None
        self.suspects.clear()  # a client cannot lead: ask everybody again
        others = [peer for peer in self.swarm_view.current(self.step) if peer != self.me and self.may_join(peer)]
        if others:
            return self.swarm_view.address(others[0]) or Address(others[0])
        raise RejectedError("nobody can be reached who could lead", code=RefusalCode.STAND_BY)

    def count_try(self, leader: PeerId) -> None:
        """This leader is asked; raises `SilentError` if that was in vain too often."""
        self._tries[leader] += 1
        if self._tries[leader] > PATIENT_TRIES:
            self._tries[leader] = 0
            raise SilentError("it neither leads nor says who does", peer=leader)

    def may_lead_us(self, peer: PeerId) -> bool:
        """Whether this peer's group may go to that leader: after a common round only its members lead, or a stranger
        that says to have a large group could call all others away.
        """
        return self.may_join(peer) and (not self.position.view or peer in self.position.view)

    def may_join(self, peer: PeerId) -> bool:
        """Whether this peer itself may go to that leader, as far as it is a newcomer."""
        position = self._position_at_present()
        return bool(position.view) or position.may_begin_with(peer, set(self.swarm_view.alive()))

    def successor(self) -> Address | None:
        """Who leads instead of this peer, if anybody. Raises `OutOfSyncError` if most of the swarm is ahead."""
        if self.is_behind():
            raise OutOfSyncError("the swarm went on without us", code=RefusalCode.BEHIND, round=self.step)
        if self.merge_into is not None and self.merge_into.peer_id not in self.suspects.now():
            return self.merge_into
        # Newcomers have no view, so two of them may both lead for a moment: the worse in rank steps down.
        return None if self.position.view else self.choose_leader()

    def join(self, leader: PeerId | None = None, seats: int = 0) -> Join:
        """A join of `leader`, which is a promise to it, or only a question."""
        rates, position, settings = self.swarm_view.rates(), self.position, self.settings
        if leader is not None:
            position = self.position = position.promising(leader)
        return Join(
            step=self.step,
            layout=settings.vectors(self.step).layout,
            address=self.node.address,
            aggregates=settings.aggregates,
            computes=settings.computes,
            upload=rates.upload,
            download=rates.download,
            report=self.contributor.report(),
            upload_shown=rates.upload_shown,
            download_shown=rates.download_shown,
            suspects=tuple(sorted(self.suspects.now()))[:64],
            seats=seats,
            previous=position.previous,
            batch=self.batch.told,
            ballot=position.promised_to(leader) if leader is not None else 0,
            accepted=position.accepted,
            epoch=position.epoch,
            history=position.history,
            note=settings.notes.for_leader(self.step) if leader is not None else b"",
        )

    def enter(self, plan: Plan) -> None:
        """This peer takes part in the round of a plan. Raises `ProtocolError` as `Position.entering` does."""
        self.position = self.position.entering(plan, _now())

    def promise(self, leader: PeerId, ballot: int) -> int:
        """Promise `leader`, which was joined, a higher number; returns what is promised to it now."""
        self.position = self.position.raised(leader, ballot)
        return self.position.promised_to(leader)

    # ---- how long it waits for a plan

    def is_due(self, report: Report) -> bool:
        """Whether a leader should have closed its group: by one's own samples alone, or because one waits parked.

        Who has to wait with nothing, because its micro-batches are too long for the step, is not in a hurry.
        """
        if report.samples > 2 * self.target_batch + report.micro_batch:
            return True
        waits = report.parked and (report.samples > 0 or self.standby.is_far_longer)
        return waits and has_quorum(set(self.swarm_view.alive()), self._deciding_at_present())

    def longest_hold_s(self) -> float:
        """How many seconds a leader may hold the full step for those that fetch its state at present, at most."""
        newcomers = len(self.swarm_view.syncing(self.step))
        members = self.position.view or self.swarm_view.alive()
        return self.patience(self.batch.last_round_s, members).longest_s(newcomers) if newcomers else 0.0

    def patience(self, step_s: float, members: Collection[PeerId]) -> Patience:
        """What a step of these members has for newcomers, where steps take `step_s` seconds."""
        known = self.swarm_view.links()
        lines = [known[peer] for peer in members if peer in known]
        upload = sum(line.upload for line in lines if line.upload_shown)
        is_slow = len(lines) == len(members) and all(line.upload and line.upload_shown for line in lines)
        state_bytes = STATE_BYTES * self.settings.vectors(self.step).numel
        return Patience(step_s, max(1, len(members)), state_bytes / upload if is_slow and upload else 0.0)

    def usual_s(self, report: Report) -> float:
        """How many seconds the step takes if all others that are in it compute like this peer; 0 if it cannot tell, or
        need not, since it is one of those that saw the step begin.
        """
        if self.position.view or not report.rate:
            return 0.0
        members = 1 + len(self.swarm_view.at(self.step))
        return min(self.target_batch / (members * report.rate), MOST_USUAL_S)

    # ---- whether a group may take the step, so that no two groups ever take the same one

    def may_close(self, votes: Mapping[PeerId, Vote], voters: Collection[PeerId]) -> bool:
        """Whether a group with these `votes`, of which those of the `voters` count, may take the step.

        Raises `OutOfSyncError` if the step is over already, and `MinorityError` if the view's majority is out of sight
        and the run spec says to stop then.
        """
        position = self._position_at_present()
        if position.view:
            return self._may_go_on(position, votes, voters)
        if set(voters) - self.viewless - {self.me}:
            return False  # they know who decides, and are being asked
        if position.origin:  # nobody saw the last round: most of those have to be here who decide what follows it
            present = dict.fromkeys(votes, Vote(1))
            decide = (replace(position, view=peers) for peers in (position.origin, position.seen))
            return all(self._may_go_on(each, present, present.keys()) for each in decide)
        return self._may_found(votes.keys())

    def _position_at_present(self) -> Position:
        """Where this peer stands; to a newcomer, who is through with the run is like one that said goodbye.

        Its position does not keep that: who is through may be started again at any time. And members of the last round
        do not go by it: they have to agree about who decides, and do not all see the same.
        """
        if self.position.view:
            return self.position
        return replace(self.position, departed=self.position.departed.union(self.swarm_view.through(self.step)))

    def _deciding_at_present(self) -> tuple[PeerId, ...]:
        """Those whose votes the step takes, of the last round or of those that this peer got its state from."""
        position = self._position_at_present()
        return replace(position, view=position.everyone).electorate()

    def _may_go_on(self, position: Position, votes: Mapping[PeerId, Vote], voters: Collection[PeerId]) -> bool:
        if self.swarm_view.is_behind(self.step):  # the others took it meanwhile, so none of them is at it any more
            return False
        electorate = position.deciding(votes, voters)
        if has_quorum(voters, electorate):
            return True
        self._look_whether_over(electorate)
        voteless = {peer for peer, vote in votes.items() if not vote.ballot}
        present = {*votes, *self.swarm_view.alive()} - voteless
        if not has_quorum(present, electorate):
            self._report_minority(present)
        return False

    def _may_found(self, group: Collection[PeerId]) -> bool:
        """A first group, which succeeds none, waits for everybody that is in sight at its step, `UNANIMOUS_S` long, and
        then needs most of them.
        """
        rivals = sorted({self.me, *self.swarm_view.at(self.step)})
        if not set(group).issuperset(rivals):
            self._apart_since_s = self._apart_since_s or _now()
            if _now() - self._apart_since_s < UNANIMOUS_S:
                return False
        return not self.swarm_view.is_behind(self.step) and is_majority(group, rivals)

    def _look_whether_over(self, electorate: Collection[PeerId]) -> None:
        """One member of the last round that is past the step is enough: it applied a committed result. Too few others
        may be left to find that out by a new attempt. They get it with its state.
        """
        if set(electorate).isdisjoint(self.swarm_view.ahead(self.step)):
            self._overtaken_since_s = None
            return
        self._overtaken_since_s = self._overtaken_since_s or _now()
        if _now() - self._overtaken_since_s > OVERTAKEN_S:
            raise OutOfSyncError(
                "a member of the last round took this step already", code=RefusalCode.BEHIND, round=self.step
            )

    def look_for_quorum(self, finding: asyncio.Timeout) -> bool:
        """Every `QUORUM_LOOK_S` while a group is being found, whoever leads: who follows, or finds nobody to follow,
        closes no group and would never hear that none can be closed.

        Ends the `finding` by the error `minority`, and returns True, if the run spec says to stop then.
        """
        was_missing, self._misses = self._misses, self._misses_quorum()
        try:
            if was_missing and self._misses:
                self._report_minority(self.swarm_view.alive())
        except MinorityError as error:
            self.minority = error
            finding.reschedule(_now())
        return self.minority is not None

    def _misses_quorum(self) -> bool:
        """Whether those in sight can take no step, as a client alone never can."""
        if not self.position.everyone:
            return False
        alive = set(self.swarm_view.alive())
        is_quorum = has_quorum(alive, self._deciding_at_present()) and (self.settings.aggregates or alive != {self.me})
        return not is_quorum and not self.is_behind()

    def _report_minority(self, present: Collection[PeerId]) -> None:
        view = self.position.everyone
        seen = set(view).intersection(present)
        why = (
            f"only {len(seen)} of the {len(view)} members of the last round can be seen from here, or too many were "
            "started again; the rest may be training on without us"
        )
        remedy = (
            "It goes on by itself when all are back. If they are gone for good, the organiser types: minga amend LINK "
            "resume --with-present"
        )
        if is_new := not self._is_in_minority:
            self._is_in_minority = True
            self.node.events.emit(GroupMinority(step=self.step, view=len(view), why=f"{why}. {remedy}"))
        if not self.settings.wait_in_minority:
            raise MinorityError(f"{why}. Check this machine's network and join again.")
        if is_new:
            logger.warning("waiting: %s. %s", why, remedy)


def _now() -> float:
    return asyncio.get_running_loop().time()
