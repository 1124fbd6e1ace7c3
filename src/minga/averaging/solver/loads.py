"""What each link carries: every load is linear in the shares of the parts, which the planner builds upon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from minga.averaging.solver.division import BoolArray, FloatArray

Indices = npt.NDArray[np.intp]
Sites = Sequence[Sequence[int]]


class AggregationTree(NamedTuple):
    """How one part travels: its root, and for each site of the division the relay there."""

    root: int
    relays: tuple[int, ...] = ()


class Transfers(NamedTuple):
    """Directed transfers, each of the whole part, once: from `senders[k]` to `receivers[k]`."""

    senders: Indices
    receivers: Indices


def transfers(way: AggregationTree, sites: Sites, sends: BoolArray, receives: BoolArray) -> Transfers:
    """Every transfer that a part takes.

    Members send to the relay of their site, or to the root if they are in none or in the root's; a relay sends one
    mean to the root if anybody in its site sends, and gets the result if anybody there receives.
    """
    above = np.full(len(sends), way.root, dtype=np.intp)
    rises, falls = sends.copy(), receives.copy()
    for site, relay in zip(sites, way.relays, strict=True):
        members = np.array(site, dtype=np.intp)
        above[members] = relay
        above[relay] = way.root
        rises[relay], falls[relay] = sends[members].any(), receives[members].any()
    rises[way.root] = falls[way.root] = False
    rising, falling = np.flatnonzero(rises), np.flatnonzero(falls)
    return Transfers(np.concatenate((rising, above[falling])), np.concatenate((above[rising], falling)))


class Loads(NamedTuple):
    """What k ways put on n peers and p paths, in vectors for a share of 1.

    `upload` and `download` are (k, n). The path number `path[m]` (place in the flattened n x n matrix) carries the
    part of way `way[m]` `times[m]` times.
    """

    upload: FloatArray
    download: FloatArray
    way: Indices
    path: Indices
    times: FloatArray


def loads(
    ways: Sequence[AggregationTree], sites: Sites, sends: BoolArray, receives: BoolArray, watched: BoolArray
) -> Loads:
    """The loads of `ways`; of the paths, only those of the matrix `watched` (n, n)."""
    count, flat = len(sends), watched.ravel()
    upload, download = np.zeros((len(ways), count)), np.zeros((len(ways), count))
    numbers, paths, times = [np.zeros(0, np.intp)], [np.zeros(0, np.intp)], [np.zeros(0)]
    for number, way in enumerate(ways):
        from_, to = transfers(way, sites, sends, receives)
        upload[number] = np.bincount(from_, minlength=count)
        download[number] = np.bincount(to, minlength=count)
        path = from_ * count + to
        path = path[flat[path]]
        if not len(path):
            continue
        path, often = np.unique(path, return_counts=True)
        numbers.append(np.full(len(path), number, np.intp))
        paths.append(path)
        times.append(often.astype(np.float64))
    return Loads(upload, download, np.concatenate(numbers), np.concatenate(paths), np.concatenate(times))
