"""How long a round takes by given rates, and which link it waits for.

Sending, reducing and receiving overlap, so a round takes as long as its busiest link: with the bytes that each peer
sends and receives and that each path carries,

    seconds = max( sent_i / upload_i,  received_i / download_i,  carried_ij / limit_ij ).

Round trips and arithmetic are left out: a vector that is worth planning for takes longer than either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minga.averaging.solver.clean_rates import CleanRates, FloatArray, usable
from minga.averaging.solver.division import Binding, Division, SwarmRates
from minga.averaging.solver.loads import AggregationTree, Indices, loads


@dataclass(frozen=True)
class Prediction:
    """A round as predicted: seconds (infinite if it needs a path that does not exist) and bytes of each peer.

    `binding` is None where nothing is sent.
    """

    seconds: float
    upload_bytes: tuple[float, ...]
    download_bytes: tuple[float, ...]
    binding: Binding | None


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
        seconds=float(seconds.max(initial=0.0)),
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
