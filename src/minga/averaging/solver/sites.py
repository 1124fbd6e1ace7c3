"""Sites: peers that are near to each other and far from the rest, seen from the rates between pairs.

Two peers are near if the slower direction between them reaches a threshold; a site is a connected set of such pairs.
Nobody knows the right threshold, so several are tried, the widest gaps in the sorted rates, and the planner takes
what it predicts to be fastest.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from minga.averaging.solver.clean_rates import BoolArray, CleanRates, FloatArray

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
