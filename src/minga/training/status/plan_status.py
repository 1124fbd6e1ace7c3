"""The plan of a live run in short, for displays: which peer reduces how much, and which link rounds wait for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from minga.averaging.apportionment import NoAggregatorError
from minga.averaging.solver.division import Division
from minga.averaging.solver.planner import divide
from minga.training.status.live_rates import LiveRates

PERIOD_S = 5.0


@dataclass(frozen=True)
class PlanStatus:
    """The plan that the next leader would make from the board. `reduces` are fractions of the vector, by peer id.

    `binding` names the link that rounds wait for ("upload", "download" or "path", the peer, the other end of a path);
    `round_s` is how long rounds take by that. Both are None while no rate is known. The encoded vector has
    `vector_bytes`.
    """

    reduces: dict[str, float]
    two_level: bool
    binding: tuple[str, str, str | None] | None
    round_s: float | None
    vector_bytes: int = 0


class PlanWatch:
    """Plans again every few seconds; plans may take a while, so never call it on an event loop's thread."""

    def __init__(self) -> None:
        self._status: PlanStatus | None = None
        self._made_s: float | None = None

    def at(self, now_s: float, live: LiveRates) -> PlanStatus | None:
        """The plan at this moment, at most `PERIOD_S` old; None if fewer than two peers take part, or none of them says
        how large the vector is.
        """
        if self._made_s is None or not 0.0 <= now_s - self._made_s < PERIOD_S:
            self._status, self._made_s = _status(live), now_s
        return self._status


def _status(live: LiveRates) -> PlanStatus | None:
    if len(live.peers) < 2 or not live.vector_bytes:
        return None
    try:
        division = divide(live.rates, live.vector_bytes)
    except NoAggregatorError:
        return None
    reduces = dict.fromkeys(live.peers, 0.0)
    for part in division.parts:
        reduces[live.peers[part.root]] += part.share
    seconds = division.predicted_s
    return PlanStatus(
        reduces={str(peer): round(share, 6) for peer, share in reduces.items()},
        two_level=bool(division.sites),
        binding=_binding(division, live),
        round_s=round(seconds, 4) if seconds is not None and math.isfinite(seconds) else None,
        vector_bytes=live.vector_bytes,
    )


def _binding(division: Division, live: LiveRates) -> tuple[str, str, str | None] | None:
    if division.binding is None:
        return None
    other = None if division.binding.other is None else live.peers[division.binding.other]
    return division.binding.kind, live.peers[division.binding.peer], other
