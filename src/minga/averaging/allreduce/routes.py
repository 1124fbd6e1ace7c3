"""Which way an assignment's chunks take: from the members over the relays of their sites to the root, and back.

So it is in repairs, too. Without sites each helper is the root of some of the lost chunks, and all members send to it.
In a plan with sites that would be a stream of each member to each helper, most of them over new connections: hundreds
for each member of a large group. But the plan's parts take several ways, each with its root and a relay on each site,
and members that send to one relay of their site send to the others, too. So lost chunks are spread over these ways.
Where a relay is lost, another one of the site takes its place, or any other member there; members of a site that has
nobody left for that send to the root. A way that lost its root is not used, unless all did: then one of its relays is
the root, and connects to the others.

A lost chunk that a living member has is fetched. One line would be long in giving it to hundreds: so for each chunk one
member of each site that can be dialled fetches it from the holder, and the others from that one. Members without a site
or such a mate ask the holder, and so do those to whom others turn who get nothing, see `repair.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from minga.averaging.allreduce.messages import Assignment
from minga.averaging.messages import Part, Plan


class Routes:
    """The trees of one plan; `sites` as in the plan, members by their numbers there."""

    def __init__(self, sites: Sequence[Sequence[int]]) -> None:
        self._sites = sites
        self._site_of = {member: number for number, site in enumerate(sites) for member in site}

    def parent(self, assignment: Assignment, member: int) -> int | None:
        """Where `member` sends this assignment to and has the result from; None for the root."""
        if member == assignment.aggregator:
            return None
        relay = self._relay(assignment, member)
        return assignment.aggregator if relay is None or relay == member else relay

    def children(self, assignment: Assignment, member: int, members: Iterable[int]) -> set[int]:
        """Those of `members` that send this assignment to `member`."""
        return {other for other in members if self.parent(assignment, other) == member}

    def behind(self, assignment: Assignment, child: int) -> set[int]:
        """Who gets the result through a child of the root: a relay's whole site, or just the child."""
        return set(self._sites[self._site_of[child]]) if self.is_relay(assignment, child) else {child}

    @staticmethod
    def hops(assignment: Assignment) -> frozenset[int]:
        """The members without which the assignment comes to nothing: its root and its relays."""
        return frozenset((assignment.aggregator, *assignment.relays))

    def is_relay(self, assignment: Assignment, member: int) -> bool:
        """Whether `member` stands between the root and its own site."""
        return member != assignment.aggregator and member in assignment.relays

    def _relay(self, assignment: Assignment, member: int) -> int | None:
        site = self._site_of.get(member)
        return assignment.relays[site] if site is not None and assignment.relays else None


def responsible(assignments: Mapping[tuple[int, int], Assignment]) -> dict[int, Assignment]:
    """For each chunk the assignment that is to bring it: later terms overrule earlier ones."""
    return {index: assignments[key] for key in sorted(assignments) for index in assignments[key].chunks}


class RepairWay(NamedTuple):
    """The root of some chunks, and a relay for each of the plan's sites: the root itself where a site has none. A way
    without relays goes from every member to the root.
    """

    root: int
    relays: tuple[int, ...] = ()


def repair_ways(plan: Plan, workers: Collection[int]) -> list[RepairWay]:
    """The ways over which to spread lost chunks, through `workers` alone; none without workers. Deterministic."""
    if not plan.sites:
        return [RepairWay(worker) for worker in workers]
    able = frozenset(workers)
    spares = [_spares(plan, number, able) for number in range(len(plan.sites))]
    parts = [part for part in plan.parts if part.root in able] or plan.parts
    mended = (_mended(part, turn, spares, able) for turn, part in enumerate(parts))
    # Of the sites nobody may be left, only members without one.
    return list(dict.fromkeys(way for way in mended if way)) or [RepairWay(worker) for worker in sorted(able)]


class FetchWays:
    """From whom `member` fetches chunks that others have, if those in `able` live and can be dialled."""

    def __init__(self, plan: Plan, member: int, able: Collection[int]) -> None:
        self._member, self._able = member, able
        self._groups: list[list[int]] = []
        for number, site in enumerate(plan.sites):
            if member in site:
                relays = dict.fromkeys(part.relays[number] for part in plan.parts)
                self._groups = [[relay for relay in relays if relay in site], list(site)]

    def source(self, holder: int, chunk: int) -> int:
        """Whom to ask for a chunk of `holder`'s; the member itself if that is the one.

        It is the first of the able in an order that is fixed for each site and chunk: later repairs, which know fewer
        members that are able, mostly say the same.
        """
        turned = (group[(chunk + turn) % len(group)] for group in self._groups for turn in range(len(group)))
        first = next((member for member in turned if member in self._able), self._member)
        return holder if self._member in (first, holder) else first


def _spares(plan: Plan, number: int, able: frozenset[int]) -> list[int]:
    """Who can be a relay of a site: those that are already, or else any member."""
    relays = dict.fromkeys(part.relays[number] for part in plan.parts if part.relays[number] in able)
    return list(relays) or [member for member in plan.sites[number] if member in able]


def _mended(part: Part, turn: int, spares: list[list[int]], able: frozenset[int]) -> RepairWay | None:
    """The way of a part around those that are not able; None if nobody is left to be its root."""
    relays = [
        relay if relay in able else spare[turn % len(spare)] if spare else None
        for relay, spare in zip(part.relays, spares, strict=True)
    ]
    roots = [part.root] if part.root in able else [relay for relay in relays if relay is not None]
    if not roots:
        return None
    root = roots[turn % len(roots)]
    return RepairWay(root, tuple(root if relay is None else relay for relay in relays))


def is_way(plan: Plan, way: RepairWay) -> bool:
    """Whether members can go this way: it has no relays, or for each site one that can be it there, or the root."""
    if not way.relays:
        return True
    return len(way.relays) == len(plan.sites) and all(
        relay == way.root or plan.may_relay(relay, site, way.root)
        for site, relay in zip(plan.sites, way.relays, strict=True)
    )
