"""The division of two levels: sites reduce among themselves, and one mean of each crosses the slow links.

A part has a root and, in every other site, a relay. Every aggregator is tried as a root, with relays that turn with
it through their sites, so that all paths between two sites are used side by side; which of these ways carries how
much is then a linear programme (`share_lp.py`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from minga.averaging.solver.clean_rates import CleanRates, FloatArray
from minga.averaging.solver.loads import AggregationTree, loads
from minga.averaging.solver.sites import Partition

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
