"""The plan of a round: who reduces how much, by which way.

The flat division (`flat.py`) is always there; where paths between peers are slower than their ends, divisions of
two levels (`two_level.py`) are tried, and one is taken if it is predicted to be faster by `TWO_LEVEL_GAIN`: it costs
one more hop, and a site's mean is encoded once more. Groups above `LARGE` always go in two levels (`large_groups.py`).

Parts below `min_part_bytes` are not worth their messages: their shares go to the larger ones. A vector too small for
any part of that size has as few parts as its size asks for, but not fewer than `FEWEST_PARTS`: the largest, of as many
roots as can be. While a round of these is predicted to take `FEW_S` longer than one of all parts, it gets twice as
many. So a step of a tiny model takes messages in proportion to its members, not to their pairs. Three, and not one,
because roots are those who see the samples of all: receipts ask more than half of them, nobody confirms what is its
own, and one that is far slower than the other two stands out.

The same rates give the same division, whatever the order of the peers is (ties aside): they are sorted first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from minga.averaging.apportionment import NoAggregatorError
from minga.averaging.solver.clean_rates import CleanRates, FloatArray, usable
from minga.averaging.solver.division import Division, PartShare, SwarmRates, renumbered
from minga.averaging.solver.flat import LARGEST_PROGRAMME, flat_shares
from minga.averaging.solver.large_groups import LARGE, large_group_ways
from minga.averaging.solver.loads import AggregationTree, Indices
from minga.averaging.solver.prediction import predict_usable
from minga.averaging.solver.sites import Partition, partitions

TWO_LEVEL_GAIN: Final = 0.1
"""By which fraction of the flat time two levels have to be faster."""

MIN_PART_BYTES: Final = 16 << 10
LEAST_SHARE: Final = 1e-3
"""A part smaller than these is not worth its streams; its share goes to the others."""

FEWEST_PARTS: Final = 3
FEW_S: Final = 0.1
"""Seconds that a round of a small vector may take longer for fewer messages: about a round trip over an ocean."""

DIGITS: Final = 13


def divide(rates: SwarmRates, vector_bytes: float, *, min_part_bytes: float = MIN_PART_BYTES) -> Division:
    """The division of a vector of `vector_bytes` (as encoded) with the shortest round by `rates`.

    Whatever the rates are, there is an answer (see `usable`); parts are sorted by root and relays. A group of one
    keeps the whole vector. Raises `NoAggregatorError` if all of several peers are clients, and `ValueError` for an
    empty group or a vector of negative size.
    """
    if not rates.peers:
        raise ValueError("a group has at least one peer")
    if not (vector_bytes >= 0.0 and min_part_bytes >= 0.0):
        raise ValueError(f"vector_bytes {vector_bytes} and min_part_bytes {min_part_bytes} must not be negative")
    if len(rates.peers) == 1:
        return Division((PartShare(1.0, 0),), predicted_s=0.0)
    if not any(peer.aggregates for peer in rates.peers):
        raise NoAggregatorError("nobody in the group can be reached by the others: at least one peer must be no client")
    given = usable(rates)
    order = _canonical_order(given)
    ordered = _reordered(given, order)
    least = max(LEAST_SHARE, min_part_bytes / vector_bytes if vector_bytes else 1.0)
    best = _best(ordered, vector_bytes, least)
    named = renumbered(best, order.tolist())
    return named if given.known else replace(named, predicted_s=None, binding=None)


def _best(rates: CleanRates, vector_bytes: float, least: float) -> Division:
    if rates.count > LARGE and (large := _large(rates, vector_bytes, least)) is not None:
        return large
    flat, shares = [AggregationTree(root) for root in range(rates.count)], flat_shares(rates)
    best = _divided(flat, shares, (), rates, vector_bytes, least)
    slow = rates.limited & (rates.limits > 0.0)
    if rates.count > LARGEST_PROGRAMME or not (slow.any() or best.predicted_s == math.inf):
        return best
    saved_s = 0.0 if shares.max() >= least else FEW_S
    allowed_s = (best.predicted_s or 0.0) * (1.0 - TWO_LEVEL_GAIN) - saved_s
    for sites in partitions(rates):
        tried = _two_level(rates, sites, vector_bytes, least)
        if tried is not None and tried.predicted_s is not None and tried.predicted_s <= allowed_s:
            best, allowed_s = tried, tried.predicted_s * (1.0 - 1e-6)
    return best


def _large(rates: CleanRates, vector_bytes: float, least: float) -> Division | None:
    """The division of a large group, with as few relays as will do."""
    best: Division | None = None
    few = _few(least)
    for sites, ways, shares in large_group_ways(rates, few):
        tried = _timed(Division(_parts(ways, shares), sites), rates, vector_bytes)
        before_s = math.inf if best is None else best.predicted_s or 0.0
        saved_s = _slack_s(rates) if len(ways) > few else 0.0
        if best is None or (tried.predicted_s or 0.0) < min(before_s * (1.0 - TWO_LEVEL_GAIN), before_s - saved_s):
            best = tried
    return best


def _two_level(rates: CleanRates, sites: Partition, vector_bytes: float, least: float) -> Division | None:
    from minga.averaging.solver.two_level import two_level_shares

    found = two_level_shares(rates, sites)
    return None if found is None else _divided(*found, sites, rates, vector_bytes, least)


def _divided(
    ways: Sequence[AggregationTree],
    shares: FloatArray,
    sites: Partition,
    rates: CleanRates,
    vector_bytes: float,
    least: float,
) -> Division:
    """The parts that are large enough; if none is, few of them."""
    if shares.max() >= least:
        return _timed(Division(_parts(ways, np.where(shares >= least, shares, 0.0)), sites), rates, vector_bytes)
    best = _timed(Division(_parts(ways, shares), sites), rates, vector_bytes)
    allowed_s = (best.predicted_s or 0.0) + _slack_s(rates)
    count, ranked = _few(least), _ranked(ways, shares)
    while count < len(best.parts):
        kept = np.where(ranked < count, shares, 0.0)
        fewer = _timed(Division(_parts(ways, kept), sites), rates, vector_bytes)
        if (fewer.predicted_s or 0.0) <= allowed_s:
            return fewer
        count *= 2
    return best


def _few(least: float) -> int:
    """How many parts a vector has at least, however small it is, or as many of the fraction `least` as there can be."""
    return max(FEWEST_PARTS, int(1.0 / least))


def _slack_s(rates: CleanRates) -> float:
    return FEW_S if rates.known else math.inf  # seconds by rates that nobody knows say nothing


def _ranked(ways: Sequence[AggregationTree], shares: FloatArray) -> Indices:
    """The rank of each way by its share; of those with one root, the second comes after the first ones of all roots."""
    larger = Counter[int]()
    ranks: list[tuple[int, int]] = []
    for number in np.argsort(-shares, kind="stable").tolist():
        ranks.append((larger[ways[number].root], number))
        larger[ways[number].root] += 1
    ranked = np.empty(len(ways), dtype=np.intp)
    ranked[[number for _, number in sorted(ranks, key=lambda rank: rank[0])]] = np.arange(len(ways))
    return ranked


def _parts(ways: Sequence[AggregationTree], shares: FloatArray) -> tuple[PartShare, ...]:
    """The parts whose shares are not 0, made to sum to 1."""
    kept = np.round(shares / shares.sum(), DIGITS)
    return tuple(PartShare(float(share), *way) for way, share in zip(ways, kept, strict=True) if share > 0.0)


def _timed(division: Division, rates: CleanRates, vector_bytes: float) -> Division:
    foreseen = predict_usable(division, rates, vector_bytes)
    return replace(division, predicted_s=foreseen.seconds, binding=foreseen.binding)


def _canonical_order(rates: CleanRates) -> Indices:
    """An order of the peers (the fastest first) that does not depend on how they are numbered, ties aside."""
    keys = (
        rates.limits.sum(axis=0), rates.limits.sum(axis=1), rates.samples_per_second, rates.receives, rates.sends,
        rates.aggregates, -rates.download, -rates.upload, -np.minimum(rates.upload, rates.download),
    )  # fmt: skip
    return np.lexsort(keys)


def _reordered(rates: CleanRates, order: Indices) -> CleanRates:
    return replace(
        rates,
        upload=rates.upload[order],
        download=rates.download[order],
        samples_per_second=rates.samples_per_second[order],
        sends=rates.sends[order],
        receives=rates.receives[order],
        aggregates=rates.aggregates[order],
        limits=rates.limits[np.ix_(order, order)],
    )
