"""A peer's desk for plans: as a leader it makes them, and has them at hand in time; as a member it checks them.

What is known of the peers moves all the time by a little. A division stays good until the group has other members, or
a rate differs by more than `MOVED` from what it was made of; only then a new one is solved, on another thread and as
a rule while the step is still under way. Each leader of a large group goes on from the last plan, whoever made that: as
long as it can it keeps the ways, over which the members are connected, and changes their shares only.

Who should rest takes longer to find out and changes less often: it is asked every `RESTING_PERIOD_S`, about all who
could compute, and counts for the group that it was asked for. A leader that has not asked yet leaves it as the last
plan of the same group had it, so that nobody rests and works by turns.

A member refuses a plan that is unfair to it, see `signed_plan.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, TypeVar

from msgspec.structs import replace as with_fields

from minga.averaging.clocking.sample_quota import Registration
from minga.averaging.election import ranking
from minga.averaging.group import GroupSettings, SwarmView
from minga.averaging.links import Links
from minga.averaging.messages import PeerScore, Plan
from minga.averaging.planning.believed_rates import RateClaim, swarm_rates
from minga.averaging.planning.best_contributor import best_contributor, wrong_choice
from minga.averaging.planning.contributor_choice import StepWork, resting
from minga.averaging.planning.signed_plan import PlanNeeds, division_of, make_plan, member_of, unfair_parts
from minga.averaging.solver.division import Division, SwarmRates, renumbered
from minga.averaging.solver.planner import MIN_PART_BYTES
from minga.averaging.solver.two_level import LARGE
from minga.core.errors import RejectedError
from minga.core.events.averaging import PlanRefused
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.network.rpc.node import Node

MOVED: Final = 0.1
RESTING_PERIOD_S: Final = 120.0
FEW: Final = 16
"""Rates of so many members are put together here: to ask another thread takes longer."""
SAME: Final = 2.0**-12
"""Gradients that differ by this share of their length are of the same samples: devices round differently."""
MOST_COMPARED: Final = 32
"""First micro-batches that are compared: equal seeds show among a few peers."""
REGROUPED_S: Final = 10.0
"""Seconds after which that is asked anew for a group that has other members."""

_NOTHING: Final = Links()
"""What a peer says of its line that has no record on the board."""

Result = TypeVar("Result")
Divide = Callable[[SwarmRates, float, Division | None], Division]
"""From the rates of a group, the bytes of the vector as encoded, and the division of the same peers that was agreed on
last, if there was one, to who reduces what.
"""


@dataclass(frozen=True)
class _Solved:
    """A division of the peers `order`, and the rates and the size that it was made of."""

    order: tuple[PeerId, ...]
    rates: SwarmRates
    vector_bytes: float
    division: Division


@dataclass(frozen=True)
class _Standby:
    """Who rests in the group `order`."""

    order: tuple[PeerId, ...] = ()
    peers: frozenset[PeerId] = frozenset()


@loop_bound
class PlanMaker:
    """Makes and checks the plans of one peer."""

    def __init__(self, node: Node, settings: GroupSettings, swarm_view: SwarmView, divide: Divide) -> None:
        self._node, self._settings, self._swarm_view, self._divide = node, settings, swarm_view, divide
        self._solved: _Solved | None = None
        self._asked = _Standby()
        self._agreed = _Standby()
        self._roots: frozenset[PeerId] = frozenset()
        self._former: tuple[tuple[PeerId, ...], Division] | None = None  # of the last plan: its members, in their order
        self._rested_s = float("-inf")
        self._plans = 0

    # ---- the leader

    async def plan(self, step: int, registrations: Mapping[PeerId, Registration]) -> Plan:
        """The plan of a round of the registered peers: this peer first, then those all can reach, the clients last.

        The first living member mends the round: a client could not reach other clients, and would lose them.
        """
        run_id, me = self._node.run_id, self._node.peer_id
        ranked = sorted(ranking(run_id, step, registrations), key=lambda peer: not registrations[peer].join.aggregates)
        order = [me] + [peer for peer in ranked if peer != me]
        solved = await self._solve(step, registrations)
        division = renumbered(solved.division, [order.index(peer) for peer in solved.order])
        self._plans += 1
        now = self._node.clock.now()  # so that no round has the name of an earlier one, aborted or long ago
        name = f"{run_id}\n{step}\n{self._plans}\n{now}\n" + "\n".join(order)
        vector = self._settings.vectors(step)
        needs = PlanNeeds(step, vector.numel, vector.encoded_bytes, vector.block_elements)
        group = tuple(sorted(solved.order))
        rests = next((r.peers for r in (self._asked, self._agreed) if r.order == group), frozenset())
        members = [member_of(registrations[peer].join) for peer in order]
        plan = make_plan(name, needs, members, division, [i for i, peer in enumerate(order) if peer in rests])
        gives = self._contributors(step, registrations)
        organiser = None if self._settings.organiser is None else registrations.get(self._settings.organiser)
        return with_fields(
            plan,
            contributors=tuple(i for i, peer in enumerate(order) if peer in gives),
            scores=tuple(registrations[peer].score for peer in order) if self._takes_best(step) else (),
            rates=() if organiser is None else organiser.report.rates,
            twins=_twins([registrations[peer].report.first for peer in order]),
        )

    async def prepare(
        self, step: int, batch: int, registrations: Mapping[PeerId, Registration], *, overlapped: bool = False
    ) -> None:
        """Have what `plan` needs at hand for the peers that are registered now; the step has `batch` samples, and is
        `overlapped` if its round goes on beside the next one's computing.
        """
        solved = await self._solve(step, registrations)
        age_s = asyncio.get_running_loop().time() - self._rested_s
        if self._takes_best(step):
            return  # nobody's upload is saved if another one rests
        order = tuple(sorted(solved.order))
        if age_s > RESTING_PERIOD_S or (order != self._asked.order and age_s > REGROUPED_S):
            rates = await self._rates(step, order, registrations, able=True)
            if all(peer.upload is None and peer.download is None for peer in rates.peers):
                return  # an answer that rests on nothing would overrule those of other leaders
            self._rested_s = asyncio.get_running_loop().time()
            work = StepWork(solved.vector_bytes, batch, overlapped)
            self._node.spawn(self._ask_who_rests(order, rates, work))  # it goes on if the group closes meanwhile

    async def _ask_who_rests(self, order: tuple[PeerId, ...], rates: SwarmRates, work: StepWork) -> None:
        rests = await _aside(resting, rates, work)
        self._asked = _Standby(order, frozenset(order[index] for index in rests))

    def remember(self, plan: Plan) -> None:
        """Take note of a plan that was agreed on, as a leader or as a member, and of where its members can be dialled:
        in a young swarm gossip has not told that to all of them yet.
        """
        self._node.introduce(member.address for member in plan.members)
        ids = plan.ids
        self._agreed = _Standby(tuple(sorted(ids)), frozenset(ids[index] for index in plan.resting))
        self._roots = frozenset(ids[part.root] for part in plan.parts)
        if len(ids) > LARGE and not plan.adopts:
            self._former = ids, division_of(plan)
            self._solved = None  # what this peer made as an earlier leader

    async def _solve(self, step: int, registrations: Mapping[PeerId, Registration]) -> _Solved:
        size = self._settings.vectors(step).encoded_bytes
        # A small vector has few roots, and a newcomer takes nobody's place: it has not seen what these can attest.
        stay = self._roots if size < MIN_PART_BYTES * len(registrations) else frozenset()
        order = tuple(sorted(registrations, key=lambda peer: (peer not in stay, peer)))
        rates = await self._rates(step, order, registrations)
        solved = self._solved
        if solved is None or (solved.order, solved.vector_bytes) != (order, size) or _has_moved(solved.rates, rates):
            division = await _aside(self._divide, rates, size, self._former_of(order))
            solved = self._solved = _Solved(order, rates, size, division)
        return solved

    def _former_of(self, order: Sequence[PeerId]) -> Division | None:
        """The division of the last plan by the places of its members in `order`, if these are the same peers."""
        if self._former is None or set(self._former[0]) != set(order):
            return None
        places = {peer: place for place, peer in enumerate(order)}
        return renumbered(self._former[1], [places[peer] for peer in self._former[0]])

    async def _rates(
        self, step: int, order: Sequence[PeerId], registrations: Mapping[PeerId, Registration], *, able: bool = False
    ) -> SwarmRates:
        gives = order if able else self._contributors(step, registrations)
        links = dict(self._swarm_view.links())
        claims = [
            _claim(registrations[peer], links.get(peer, _NOTHING), able=able, gives=peer in gives) for peer in order
        ]
        if len(order) <= FEW:
            return swarm_rates(order, claims, links)
        return await _aside(swarm_rates, order, claims, links)

    def _takes_best(self, step: int) -> bool:
        """Whether the round of the step has one contributor, the member with the best score."""
        return self._settings.contributors(step) == "best"

    def _contributors(self, step: int, registrations: Mapping[PeerId, Registration]) -> Collection[PeerId]:
        """The members that are expected to give something to the mean."""
        if self._takes_best(step):
            scores = {peer: registration.score for peer, registration in registrations.items()}
            best = best_contributor(self._node.run_id, step, scores)
            return () if best is None else (best,)
        return {peer for peer, registration in registrations.items() if registration.gives}

    # ---- the member

    def check(self, plan: Plan, said: Collection[PeerScore | None] = ()) -> None:
        """Raise `RejectedError`, naming the leader, if the plan is unfair by all that this peer knows, which `said`
        these scores of itself.
        """
        links, own = self._swarm_view.links(), self._swarm_view.rates()
        me = plan.rank_of(self._node.peer_id)
        why = unfair_parts(plan, links, own, me, self._settings.vectors(plan.step).encoded_bytes)
        if self._takes_best(plan.step):
            why = why or wrong_choice(self._node.run_id, plan, me, said)
        elif plan.scores:
            why = why or "it names one contributor in a round of all"
        if why is not None:
            leader = plan.members[0].peer_id
            self._node.events.emit(PlanRefused(peer=leader, step=plan.step, why=why))
            raise RejectedError(why, code=RefusalCode.UNFAIR, peer=leader, round=plan.step, phase="group")


async def _aside(work: Callable[..., Result], *arguments: Any) -> Result:
    """Do it on another thread: with many members it takes tens of milliseconds, in which no packet would be read."""
    return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)


def _twins(firsts: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """The places of those whose sketches are equal up to rounding, among the first `MOST_COMPARED` that told one."""
    told = [(place, first) for place, first in enumerate(firsts) if any(first)][:MOST_COMPARED]
    found = set[int]()
    for (i, one), (j, other) in combinations(told, 2):
        if len(one) == len(other) and math.dist(one, other) <= SAME * math.hypot(*one):
            found |= {i, j}
    return tuple(sorted(found))


def _claim(registration: Registration, links: Links, *, able: bool, gives: bool) -> RateClaim:
    """What a member says of itself: of its line when it joined, or by its record `links` if it found out since then. It
    sends what it `gives` to the round, or if only that counts, what it is `able` to.
    """
    join, report = registration.join, registration.report
    upload, upload_shown = _latest(join.upload, join.upload_shown, links.upload, links.upload_shown)
    download, download_shown = _latest(join.download, join.download_shown, links.download, links.download_shown)
    return RateClaim(
        upload=upload,
        download=download,
        samples_per_second=report.rate,
        sends=gives and (registration.gives or (able and join.computes and bool(report.rate))),
        aggregates=join.aggregates,
        upload_shown=upload_shown,
        download_shown=download_shown,
    )


def _latest(joined: float | None, was_shown: bool, published: int, is_shown: bool) -> tuple[float | None, bool]:
    """A rate, and whether it was shown. Members join as their step begins, and in a long one they learn more."""
    if published and (joined is None or (is_shown and not was_shown)):
        return float(published), is_shown
    return joined, was_shown


def _has_moved(before: SwarmRates, after: SwarmRates) -> bool:
    for one, other in zip(before.peers, after.peers, strict=True):
        if (one.sends, one.aggregates) != (other.sends, other.aggregates):
            return True
        if _differ(one.upload, other.upload) or _differ(one.download, other.download):
            return True
    if before.pairs.keys() != after.pairs.keys():
        return True
    return any(_differ(before.pairs[pair], after.pairs[pair]) for pair in before.pairs)


def _differ(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is not other
    return abs(one - other) > MOVED * max(one, other)
