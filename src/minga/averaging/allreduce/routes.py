"""Which way an assignment's chunks take: from the members over the relays of their sites to the root, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minga.averaging.allreduce.messages import Assignment


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
