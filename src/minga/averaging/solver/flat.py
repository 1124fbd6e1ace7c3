"""The flat division, and how long a round of any division takes.

In a flat division everybody sends to the root of each part, and the roots send the results to everybody. With N members
that send and R that receive, member i with the fraction x_i of the vector has to carry

    up:   s_i (1 - x_i) + x_i (R - r_i)          down:   r_i (1 - x_i) + x_i (N - s_i)

vectors (s_i, r_i: 1 if it sends, receives), and the path from i to j s_i x_j + r_j x_i. So in a time of L vectors per
rate, member i can root at most cap_i(L) = min( (L u_i - s_i) / (R - r_i - s_i), (L d_i - r_i) / (N - s_i - r_i) ).
Without slow paths the shortest round follows in closed form, by water filling: the level L with sum_i cap_i(L) = 1
(caps cut to 0..1), or the time that the slowest member needs for its own vector, if that is longer; the others then
still finish at L. With b_i = u_i = d_i, n members that all send and receive, n_s of which can be roots, T is
max( (n - 2 + n_s) / sum b_i, 1 / min b_i ), the sum and the minimum over those that can be roots.
Slow paths need the linear programme of `share_lp.py`, in which every way is a root alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from minga.averaging.solver.division import (
    Binding,
    BoolArray,
    CleanRates,
    Division,
    FloatArray,
    PartShare,
    SwarmRates,
    usable,
)
from minga.averaging.solver.loads import AggregationTree, Indices, loads
from minga.averaging.solver.two_level import CHUNKS_IF_LARGE, LARGE, LINKS_IF_LARGE

LARGEST_PROGRAMME: Final = 128
"""Groups with more members do not pay for a linear programme: slow paths limit both their ends instead."""

TURNS: Final = 200


def flat_shares(rates: CleanRates) -> FloatArray:
    """The share of each peer; one of them at least must aggregate."""
    roots = possible_roots(rates)
    limited = rates.limited & (rates.limits > 0.0)
    shares = _water_filled(rates, roots, None)
    if not limited.any() or not _paths_bind(shares, rates, limited):
        return shares
    if rates.count <= LARGEST_PROGRAMME:
        from minga.averaging.solver.share_lp import best_shares

        ways = [AggregationTree(int(root)) for root in np.flatnonzero(roots)]
        found = best_shares(loads(ways, (), rates.sends, rates.receives, limited), rates, limited)
        if found is not None:
            shares = np.zeros(rates.count)
            shares[roots] = found
            return shares
    return _water_filled(rates, roots, limited)


def possible_roots(rates: CleanRates) -> BoolArray:
    """Who can be a root: an aggregator with a way from all that send and to all that receive.

    If nobody is, the members that can do with the fewest of the others: a round goes on without those it cannot reach.
    """
    apart = (rates.limits <= 0.0) & ~np.eye(rates.count, dtype=np.bool_)
    missing = (apart & rates.sends[:, None]).sum(axis=0) + (apart & rates.receives[None, :]).sum(axis=1)
    fewest = missing[rates.aggregates].min()
    return np.asarray(rates.aggregates & (missing == fewest))


def _paths_bind(shares: FloatArray, rates: CleanRates, limited: BoolArray) -> bool:
    sending, receiving = rates.sends.astype(np.float64), rates.receives.astype(np.float64)
    up = sending * (1.0 - shares) + shares * (receiving.sum() - receiving)
    down = receiving * (1.0 - shares) + shares * (sending.sum() - sending)
    # The slowest sender may take much longer than the roots; a slow path should not make the others wait as long.
    seconds = np.maximum(up / rates.upload, down / rates.download)[shares > 0.0].max()
    carried = sending[:, None] * shares[None, :] + shares[:, None] * receiving[None, :]
    return bool((carried[limited] > rates.limits[limited] * seconds * (1.0 + 1e-9)).any())


def _water_filled(rates: CleanRates, roots: BoolArray, limited: BoolArray | None) -> FloatArray:
    """Closed form; of `limited` paths, each is taken to carry twice the larger share of its ends (never less)."""
    sending, receiving = rates.sends.astype(np.float64), rates.receives.astype(np.float64)
    per_up, per_down = receiving.sum() - receiving - sending, sending.sum() - sending - receiving
    slopes = np.stack((_per(rates.upload, per_up), _per(rates.download, per_down)))
    starts = np.stack((_per(sending, per_up), _per(receiving, per_down)))
    if limited is not None:
        slow = np.where(limited, rates.limits, np.inf)
        slopes = np.concatenate((slopes, np.minimum(slow.min(axis=0), slow.min(axis=1))[None, :] / 2.0))
        starts = np.concatenate((starts, np.zeros((1, rates.count))))
    bounded = np.isfinite(slopes)
    free = roots & ~bounded.any(axis=0)
    if free.any():  # rooting costs these nothing
        return np.where(free, 1.0 / free.sum(), 0.0)
    alone = np.where(bounded, (1.0 + starts) / np.where(bounded, slopes, 1.0), 0.0).max(axis=0)
    slopes, starts = np.where(bounded, slopes, 0.0), np.where(bounded, starts, -np.inf)
    starts[:, ~roots] = np.inf

    def caps(level: float) -> FloatArray:
        return np.asarray(np.minimum(np.maximum((level * slopes - starts).min(axis=0), 0.0), 1.0))

    low, high = 0.0, float(alone[roots].min()) * (1.0 + 1e-12)
    for _ in range(TURNS):
        middle = (low + high) / 2.0
        if not low < middle < high:
            break
        if caps(middle).sum() >= 1.0:
            high = middle
        else:
            low = middle
    filled = caps(high)
    return np.asarray(filled / filled.sum())


def _per(amount: FloatArray, each: FloatArray) -> FloatArray:
    """`amount / each`, infinite where nothing is asked for each share."""
    result = np.full(len(each), np.inf)
    np.divide(amount, each, out=result, where=each > 0.0)
    return result


# ---- How long a round takes by given rates, and which link it waits for.
#
# Sending, reducing and receiving overlap, so a round takes as long as its busiest link: with the bytes that each peer
# sends and receives and that each path carries,
#
#     busy_s = max( sent_i / upload_i,  received_i / download_i,  carried_ij / limit_ij ).
#
# In a large group the way of the last chunk comes on top (`LINKS_IF_LARGE`). Round trips and arithmetic are left out: a
# vector that is worth planning for takes longer than either.


@dataclass(frozen=True)
class Prediction:
    """A round as predicted: bytes of each peer, and seconds for which its busiest link, `binding`, is busy (infinite if
    it needs a path that does not exist). `binding` is None where nothing is sent.
    """

    busy_s: float
    upload_bytes: tuple[float, ...]
    download_bytes: tuple[float, ...]
    binding: Binding | None

    @property
    def seconds(self) -> float:
        """How long the round takes."""
        is_large = len(self.upload_bytes) > LARGE
        return self.busy_s * (1.0 + (LINKS_IF_LARGE - 1) / CHUNKS_IF_LARGE if is_large else 1.0)


def predict(division: Division, rates: SwarmRates, vector_bytes: float) -> Prediction:
    """What `division` costs the peers of `rates`, for a vector of `vector_bytes` as encoded.

    Rates that are unknown or absurd are treated as `usable` does.
    """
    return predict_usable(division, usable(rates), vector_bytes)


def predict_usable(division: Division, rates: CleanRates, vector_bytes: float) -> Prediction:
    """The same for rates that were cleaned before."""
    ways = [AggregationTree(part.root, part.relays) for part in division.parts]
    shares = np.array([part.share for part in division.parts], dtype=np.float64)
    limited = rates.limited
    load = loads(ways, division.sites, rates.sends, rates.receives, limited)
    sent, received = shares @ load.upload * vector_bytes, shares @ load.download * vector_bytes
    carried = np.zeros(rates.count**2)
    np.add.at(carried, load.path, shares[load.way] * load.times * vector_bytes)
    paths = np.flatnonzero(carried)
    seconds = np.concatenate((sent / rates.upload, received / rates.download, _over(carried, rates.limits, paths)))
    busiest = int(np.argmax(seconds)) if len(seconds) else 0
    return Prediction(
        busy_s=float(seconds.max(initial=0.0)),
        upload_bytes=tuple(sent.tolist()),
        download_bytes=tuple(received.tolist()),
        binding=_binding(busiest, rates.count, paths.tolist()) if seconds.max(initial=0.0) > 0.0 else None,
    )


def _over(carried: FloatArray, limits: FloatArray, paths: Indices) -> FloatArray:
    limit, seconds = limits.ravel()[paths], np.full(len(paths), math.inf)
    np.divide(carried[paths], limit, out=seconds, where=limit > 0.0)
    return seconds


def _binding(busiest: int, count: int, paths: list[int]) -> Binding:
    if busiest < 2 * count:
        return Binding("upload" if busiest < count else "download", busiest % count)
    peer, other = divmod(paths[busiest - 2 * count], count)
    return Binding("path", peer, other)


# ---- Equal parts for all, which need no planner.


def equal_parts(rates: SwarmRates) -> Division:
    """Every peer that aggregates reduces as much as the others, as in an ordinary all-reduce.

    Auxiliaries, which have no gradients, are left out unless nobody else can be reached.
    """
    able = [index for index, peer in enumerate(rates.peers) if peer.aggregates]
    roots = [index for index in able if rates.peers[index].sends] or able
    return Division(tuple(PartShare(1.0 / len(roots), root) for root in roots))


def divide_equally(rates: SwarmRates, vector_bytes: float, _former: Division | None) -> Division:
    """Equal parts, with the time that they are expected to take, in place of the planner's `divide`."""
    division = equal_parts(rates)
    return replace(division, predicted_s=predict(division, rates, vector_bytes).seconds)
