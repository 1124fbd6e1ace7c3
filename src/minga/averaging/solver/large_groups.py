"""The division of a large group: sites by count, so that nobody needs a stream to everybody.

In a flat division of N members each exchanges streams with every aggregator, up to N: N² streams in all, and chunks
so small that they cost more than what they carry. Here the members are dealt to about sqrt(N) *sites* of sqrt(N)
members each, whatever lies between them, and the vector goes in A parts, A being a share of a site's members. Each part
has a relay in every site, and one of the relays is its root. A member then has A streams, a relay sqrt(N) more, a root
as many again. The result is the same exact mean.

What that costs: with m members in a site and R sites, relays of a part that is the fraction x of the vector carry

    up:  1 - x + x m        down:  1 - x + x m

vectors, its root x (R - 2) more. As relays those with the fastest lines are taken, as roots the fastest of all, and
the shares are the optimum of the linear programme of `share_lp.py` for these ways: slow members send their own
vector and nothing else, which takes them as long in a flat division too.

Paths that are slower than both their ends are not looked at, but for those that do not exist (two clients).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from minga.averaging.solver.clean_rates import CleanRates, FloatArray
from minga.averaging.solver.loads import AggregationTree, loads
from minga.averaging.solver.sites import Partition

LARGE: Final = 64
"""Groups with more members are divided so."""

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
        ways = _ways(sites, set(able), most)
        if not ways or (found and len(ways) == len(found[-1][1])):
            continue
        shares = best_shares(loads(ways, sites, rates.sends, rates.receives, nothing), rates, nothing)
        if shares is not None:
            found.append((sites, ways, shares))
    return found


def _dealt(peers: list[int], count: int) -> Partition:
    """Deal peers to `count` sites, there and back, so that each gets as many fast ones as the others."""
    sites: list[list[int]] = [[] for _ in range(count)]
    for place, peer in enumerate(peers):
        turn, seat = divmod(place, count)
        sites[seat if turn % 2 == 0 else count - 1 - seat].append(peer)
    return tuple(tuple(site) for site in sites)


def _ways(sites: Partition, able: set[int], most: int) -> list[AggregationTree]:
    """One way for each part: roots are the fastest of all, and in each site no member stands in two ways."""
    relays = [[peer for peer in site if peer in able][:most] for site in sites]
    parts = range(min(len(members) for members in relays))
    chosen = []
    for place, members in enumerate(relays):
        own = list(parts[place :: len(sites)])  # the parts whose roots are here, the first of the site's members
        others = [part for part in parts if part not in own]
        chosen.append(dict(zip([*own, *others], members, strict=False)))
    return [AggregationTree(chosen[part % len(sites)][part], tuple(site[part] for site in chosen)) for part in parts]
