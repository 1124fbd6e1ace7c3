"""The speed of the swarm over time, divided among the peers that compute most."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from minga.dashboard.model.series import is_number

SHOWN = 7
"""Peers with a colour of their own; all others share one."""
MOST_LETTERS = 64
"""Of a peer's id."""


class SpeedByPeer:
    """Samples per second by peer at some moments, at most `most_points`; then every second moment is dropped.

    Each moment keeps the `SHOWN` fastest peers and the sum of the others, so that memory does not grow with the swarm.
    """

    def __init__(self, most_points: int = 400) -> None:
        self._moments: list[tuple[float, dict[str, float], float]] = []
        self._most = most_points
        self._every = 1
        self._skipped = 0

    def add(self, time_s: float, rates: Mapping[str, Any], others: float) -> None:
        """Add a moment; `rates` may come from a file, and only what is a speed counts."""
        self._skipped += 1
        if self._skipped < self._every:
            return
        self._skipped = 0
        good = {
            str(peer)[:MOST_LETTERS]: float(rate)
            for peer, rate in list(rates.items())[: 4 * SHOWN]
            if is_number(rate) and rate >= 0
        }
        self._moments.append((time_s, good, others if math.isfinite(others) else 0.0))
        if len(self._moments) > self._most:
            del self._moments[1::2]
            self._every *= 2

    def document(self) -> dict[str, Any]:
        """One list of speeds for each peer shown, one for the others, all as long as `t`."""
        sums: dict[str, float] = defaultdict(float)
        for _, rates, _ in self._moments:
            for peer, rate in rates.items():
                sums[peer] += rate
        shown = sorted(sums, key=lambda peer: (-sums[peer], peer))[:SHOWN]
        rest = [others + sum(r for p, r in rates.items() if p not in shown) for _, rates, others in self._moments]
        return {
            "t": [round(time_s, 1) for time_s, _, _ in self._moments],
            "peers": [
                {"peer": peer, "rates": [round(rates.get(peer, 0.0), 2) for _, rates, _ in self._moments]}
                for peer in shown
            ],
            "others": [round(value, 2) for value in rest],
        }


def fastest(rates: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """The fastest peers of a moment, and the sum of all others."""
    order = sorted((peer for peer in rates if rates[peer] > 0), key=lambda peer: (-rates[peer], peer))
    best = {peer: round(rates[peer], 2) for peer in order[:SHOWN]}
    return best, round(sum(rates[peer] for peer in order[SHOWN:]), 2)
