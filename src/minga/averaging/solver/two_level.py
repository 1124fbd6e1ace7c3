"""The division of two levels: sites reduce among themselves, and one mean of each crosses the slow links.

A part has a root and, in every other site, a relay. Every aggregator is tried as a root, with relays that turn with
it through their sites, so that all paths between two sites are used side by side; which of these ways carries how
much is then a linear programme (`share_lp.py`). The members of a large group are dealt to sites by count.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from minga.averaging.solver.division import BoolArray, CleanRates, Division, FloatArray
from minga.averaging.solver.loads import AggregationTree, loads

# ---- Sites: peers that are near to each other and far from the rest, seen from the rates between pairs.
#
# Two peers are near if the slower direction between them reaches a threshold; a site is a connected set of such pairs.
# Nobody knows the right threshold, so several are tried, the widest gaps in the sorted rates, and the planner takes
# what it predicts to be fastest.


Partition = tuple[tuple[int, ...], ...]

GAP: Final = 2.0
"""Rates inside a site are at least this many times those to its outside."""

MOST_PARTITIONS: Final = 4


def partitions(rates: CleanRates) -> tuple[Partition, ...]:
    """Ways to see the group as sites of two or more, each with an aggregator; none if no path is slower than its ends.

    Deterministic; members of a site in ascending order, sites by their first member.
    """
    if not rates.limited.any():
        return ()
    near = np.minimum(rates.limits, rates.limits.T)
    ends = np.minimum(np.minimum(rates.upload[:, None], rates.download[None, :]), near.T.max())
    unhindered = near * GAP >= np.minimum(ends, ends.T)
    graphs = [near >= threshold for threshold in _thresholds(near)] + [unhindered]
    found = [_components(graph, rates.aggregates) for graph in graphs]
    return tuple(dict.fromkeys(sites for sites in found if sites))[:MOST_PARTITIONS]


def _thresholds(near: FloatArray) -> list[float]:
    """The rates just above the widest gaps, the widest first."""
    between = near[np.triu_indices(len(near), 1)]
    values = np.unique(between[between > 0.0])
    ratios = values[1:] / values[:-1]
    widest = np.argsort(-ratios, kind="stable")[: MOST_PARTITIONS - 1]
    return [float(values[gap + 1]) for gap in widest if ratios[gap] >= GAP]


def _components(near: BoolArray, aggregates: BoolArray) -> Partition:
    unseen, sites = set(range(len(near))), []
    while unseen:
        edge = [min(unseen)]
        site = set(edge)
        while edge:
            reached = unseen.intersection(np.flatnonzero(near[edge.pop()]).tolist()) - site
            site |= reached
            edge += sorted(reached)
        unseen -= site
        if 2 <= len(site) < len(near) and aggregates[list(site)].any():
            sites.append(tuple(sorted(site)))
    return tuple(sites)


# ---- The ways through given sites, and their shares.


LEAST_WAYS: Final = 64
WAYS_PER_PEER: Final = 4
"""At most 64 ways, or 4 for each peer if that is more: each is one more pair of streams for everybody."""


def most_ways(peers: int) -> int:
    """How many parts a division of two levels has at most, for so many peers."""
    return max(LEAST_WAYS, WAYS_PER_PEER * peers)


def two_level_shares(rates: CleanRates, sites: Partition) -> tuple[list[AggregationTree], FloatArray] | None:
    """The ways worth using through `sites`, and their shares; None if there is no way that reaches everybody."""
    from minga.averaging.solver.share_lp import best_shares

    limited = rates.limited
    tried = _ways(rates, sites)
    load = loads(tried, sites, rates.sends, rates.receives, limited)
    cut = load.way[rates.limits.ravel()[load.path] <= 0.0]
    usable = np.setdiff1d(np.arange(len(tried)), cut)
    if not len(usable):
        return None
    ways = [tried[number] for number in usable]
    limited &= rates.limits > 0.0
    found = best_shares(loads(ways, sites, rates.sends, rates.receives, limited), rates, limited)
    return None if found is None else (ways, found)


def _ways(rates: CleanRates, sites: Partition) -> list[AggregationTree]:
    able = [[peer for peer in site if rates.aggregates[peer]] for site in sites]
    outside = set(range(rates.count)).difference(*sites)
    places = [(peer, place) for members in able for place, peer in enumerate(members)]
    alone = sorted(peer for peer in outside if rates.aggregates[peer])
    places += [(peer, place) for place, peer in enumerate(alone)]
    most = most_ways(rates.count)
    turns = min(max(len(members) for members in able), max(1, most // len(places)))
    ways = [
        AggregationTree(
            root, tuple(root if root in members else members[(place + turn) % len(members)] for members in able)
        )
        for root, place in places
        for turn in range(turns)
    ]
    if len(sites) == 2 and not outside:
        # Both ends of a part do the same then: of two ways between the same two, one is enough.
        by_relays = {way.relays: way for way in ways}
        by_relays |= {way.relays: way for way in ways if way.root == way.relays[sum(way.relays) % 2]}
        return list(by_relays.values())
    return list(dict.fromkeys(ways))


# ---- The division of a large group: sites by count, so that nobody needs a stream to everybody.
#
# In a flat division of N members each exchanges streams with every aggregator, up to N: N² streams in all, and chunks
# so small that they cost more than what they carry. Here the members are dealt to about sqrt(N) *sites* of sqrt(N)
# members each, whatever lies between them, and the vector goes in A parts, A being a share of a site's members. Each
# part has a relay in every site, and one of the relays is its root. A member then has A streams, a relay sqrt(N) more,
# a root as many again. The result is the same exact mean.
#
# What that costs: with m members in a site and R sites, relays of a part that is the fraction x of the vector carry
#
#     up:  1 - x + x m        down:  1 - x + x m
#
# vectors, its root x (R - 2) more. As relays those with the fastest lines are taken, as roots the fastest of all, and
# the shares are the optimum of the linear programme of `share_lp.py` for these ways: slow members send their own
# vector and nothing else, which takes them as long in a flat division too.
#
# Paths that are slower than both their ends are not looked at, but for those that do not exist (two clients).


LARGE: Final = 64
"""Groups with more members are divided so."""

CHUNKS_IF_LARGE: Final = 6
"""In so many chunks each part of them goes, at least."""

LINKS_IF_LARGE: Final = 4
"""To a relay, to the root, to another relay, and to its site: when the busiest line of a large group has carried its
last chunk, which is a sixth of a part, that chunk still has as long a way over three more of them. Rounds of 70 to 150
home peers take 1.4 to 1.8 times as long as that line (`minga sim home-150 --json`: `round_s` beside `predicted_s`); a
flat one is hardly longer than its busiest line."""

RELAYS: Final = (0.33, 0.5, 1.0)
"""Which shares of a site's members to try as relays: more of them cost more streams."""


def large_group_ways(rates: CleanRates, few: int) -> list[tuple[Partition, list[AggregationTree], FloatArray]]:
    """Sites, ways through them and the shares of these, for each number of relays that is worth trying.

    The fewest relays come first, `few` of a site if that is less than usual; none if too few of the members aggregate.
    """
    from minga.averaging.solver.share_lp import best_shares

    speed = np.minimum(rates.upload, rates.download)
    able = [int(peer) for peer in np.argsort(-speed, kind="stable") if rates.aggregates[peer]]
    rest = [int(peer) for peer in np.argsort(-speed, kind="stable") if not rates.aggregates[peer]]
    count = round(math.sqrt(rates.count))
    sites = _dealt([*able, *rest], count)
    found: list[tuple[Partition, list[AggregationTree], FloatArray]] = []
    nothing = np.zeros((rates.count, rates.count), dtype=np.bool_)
    usual = [max(2, round(share * rates.count / count)) for share in RELAYS]
    for most in [few, *usual] if few < usual[0] else usual:
        ways = _ways_of_large_groups(sites, set(able), most)
        if not ways or (found and len(ways) == len(found[-1][1])):
            continue
        shares = best_shares(loads(ways, sites, rates.sends, rates.receives, nothing), rates, nothing)
        if shares is not None:
            found.append((sites, ways, shares))
    return found


def ways_again(rates: CleanRates, former: Division) -> tuple[list[AggregationTree], FloatArray] | None:
    """The ways of a division that a large group had, and the best shares of them by present rates; None if one of its
    aggregators is none any more.
    """
    from minga.averaging.solver.share_lp import best_shares

    ways = [AggregationTree(part.root, part.relays) for part in former.parts]
    if not former.sites or not all(rates.aggregates[[way.root, *way.relays]].all() for way in ways):
        return None
    nothing = np.zeros((rates.count, rates.count), dtype=np.bool_)
    shares = best_shares(loads(ways, former.sites, rates.sends, rates.receives, nothing), rates, nothing)
    return None if shares is None else (ways, shares)


def _dealt(peers: list[int], count: int) -> Partition:
    """Deal peers to `count` sites, there and back, so that each gets as many fast ones as the others."""
    sites: list[list[int]] = [[] for _ in range(count)]
    for place, peer in enumerate(peers):
        turn, seat = divmod(place, count)
        sites[seat if turn % 2 == 0 else count - 1 - seat].append(peer)
    return tuple(tuple(site) for site in sites)


def _ways_of_large_groups(sites: Partition, able: set[int], most: int) -> list[AggregationTree]:
    """One way for each part: roots are the fastest of all, and in each site no member stands in two ways."""
    relays = [[peer for peer in site if peer in able][:most] for site in sites]
    parts = range(min(len(members) for members in relays))
    chosen = []
    for place, members in enumerate(relays):
        own = list(parts[place :: len(sites)])  # the parts whose roots are here, the first of the site's members
        others = [part for part in parts if part not in own]
        chosen.append(dict(zip([*own, *others], members, strict=False)))
    return [AggregationTree(chosen[part % len(sites)][part], tuple(site[part] for site in chosen)) for part in parts]
