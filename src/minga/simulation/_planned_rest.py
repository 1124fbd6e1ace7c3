"""Who will be asked to rest in a swarm that does not exist yet."""

from __future__ import annotations

from typing import Final

import numpy as np

from minga.averaging._compute_choice import GAIN, Work, resting, step_seconds, with_resting
from minga.averaging._division import SwarmRates
from minga.simulation._peers_text import PeerClass
from minga.simulation._setting import Setting

MOST_SINGLE: Final = 64
"""In larger swarms it is asked of whole classes who should rest: of single peers that takes minutes."""

RESTING_LIMIT_S: Final = 1.0
"""Seconds that the search for those who should rest may take, as in production."""


def planned_rest(setting: Setting, rates: SwarmRates, work: Work) -> tuple[int, ...]:
    """Who will rest, by the rule of `resting`: the best prefix of a ranking, if it makes steps shorter by `GAIN`."""
    if len(rates.peers) <= MOST_SINGLE:
        return resting(rates, work, limit_s=RESTING_LIMIT_S)
    starts = np.cumsum([0, *(each.peers.count for each in setting.volunteers)])
    able = [place for place, each in enumerate(setting.volunteers) if each.computes]
    by_speed = sorted(able, key=lambda place: -setting.volunteers[place].samples_per_s)
    by_link = sorted(able, key=lambda place: -min(_line(setting.volunteers[place].peers)))
    choices = {frozenset(order[length:]) for order in (by_speed, by_link) for length in range(1, len(order))}
    best: tuple[float, tuple[int, ...]] = (step_seconds(rates, work) * (1.0 - GAIN), ())
    for classes in choices:
        rests = tuple(peer for place in sorted(classes) for peer in range(starts[place], starts[place + 1]))
        best = min(best, (step_seconds(with_resting(rates, rests), work), rests))
    return best[1]


def _line(peers: PeerClass) -> tuple[float, float]:
    return peers.upload, peers.download
