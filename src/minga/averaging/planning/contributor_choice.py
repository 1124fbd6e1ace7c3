"""Who should compute gradients, and who should rest because its link slows everybody more than its samples help.

The senders are ranked, once by speed and once by link, and the best prefix of either is taken. (Of 300 random groups
of 3 to 12 peers an exact choice shortened the step by more than 5 % in 5, all with slow single paths.) A choice counts
only if the division that would really be executed is faster with it by `GAIN`: a peer that rests still wants the
result, and nobody likes to be told to rest for nothing. In a group above `LARGE` nobody rests: to find out takes longer
than a step there, and one more upload matters little.

Leaders, `minga plan` and forecasts all ask `resting`, so that what is foretold is what the leaders do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from minga.averaging.solver.division import SwarmRates, usable
from minga.averaging.solver.planner import divide
from minga.averaging.solver.two_level import LARGE

GAIN: Final = 0.05
"""By which fraction a step has to become shorter."""

ALIKE: Final = 1e-3
"""Steps that differ by a smaller fraction are as good as each other."""

PROBES: Final = 12
"""Lengths of a ranking that are tried at first; then those between the best one's neighbours."""


@dataclass(frozen=True)
class StepWork:
    """What a step has to do: vector bytes as encoded, samples of all peers together, and whether rounds overlap with
    computing or come after it (see `StrategyFacts`). Planners of a whole run also know the `sizes` of a contribution
    and of a mean where they differ (`vector_bytes` is the larger), and whether a round takes one contribution alone.
    """

    vector_bytes: float
    batch: float
    overlapped: bool = False
    sizes: tuple[float, float] | None = None
    takes_best: bool = False


def step_seconds(rates: SwarmRates, work: StepWork) -> float:
    """Seconds of a step by the division that `divide` makes; infinite if nobody computes."""
    speed = sum(usable(rates).samples_per_second[[peer.sends for peer in rates.peers]].tolist())
    round_s = divide(rates, work.vector_bytes).predicted_s or 0.0
    return combined(work, speed, round_s)


def combined(work: StepWork, samples_per_second: float, round_s: float) -> float:
    """Seconds of a step from the speed of all that compute and the seconds of a round."""
    computing_s = work.batch / samples_per_second if samples_per_second > 0.0 else float("inf")
    return max(computing_s, round_s) if work.overlapped else computing_s + round_s


def resting(rates: SwarmRates, work: StepWork) -> tuple[int, ...]:
    """The peers that should not compute gradients for now, in ascending order; none in a group above `LARGE`.

    They go on receiving results, and aggregate. Takes up to seconds: keep it off the critical path.
    """
    if len(rates.peers) > LARGE:
        return ()
    senders = [index for index, peer in enumerate(rates.peers) if peer.sends and peer.samples_per_second > 0.0]
    if len(senders) < 2 or not any(peer.aggregates for peer in rates.peers) or not work.vector_bytes > 0.0:
        return ()
    speed, limit = sum(rates.peers[index].samples_per_second for index in senders), 1.0 - GAIN
    if combined(work, speed, 0.0) >= limit * step_seconds(rates, work):
        return ()  # even rounds that take no time at all would not be worth it
    best: tuple[float, tuple[int, ...]] = (limit * step_seconds(rates, work), ())
    for rests in _ranked(rates, work, senders):
        best = min(best, (step_seconds(with_resting(rates, rests), work), rests))
    return _fewest(rates, work, best[1]) if best[1] else ()


def _fewest(rates: SwarmRates, work: StepWork, rests: tuple[int, ...]) -> tuple[int, ...]:
    """Of `rests`, those that are needed: the others may compute without making a step longer."""
    limit = step_seconds(with_resting(rates, rests), work) * (1.0 + ALIKE)
    for index in sorted(rests, key=lambda index: (-rates.peers[index].samples_per_second, index)):
        fewer = tuple(other for other in rests if other != index)
        if step_seconds(with_resting(rates, fewer), work) <= limit:
            rests = fewer
    return rests


def with_resting(rates: SwarmRates, rests: tuple[int, ...]) -> SwarmRates:
    """The same peers, of whom `rests` contribute nothing."""
    peers = list(rates.peers)
    for index in rests:
        peers[index] = replace(peers[index], sends=False)
    return replace(rates, peers=tuple(peers))


def with_one_sender(rates: SwarmRates) -> SwarmRates:
    """The same peers in a round that takes the contribution of one of them: that with the slowest known upload, since
    nobody can foresee which it is.
    """
    senders = [index for index, peer in enumerate(rates.peers) if peer.sends]
    slowest = min(senders, key=lambda index: (rates.peers[index].upload or math.inf, index), default=None)
    return with_resting(rates, tuple(index for index in senders if index != slowest))


def _ranked(rates: SwarmRates, work: StepWork, senders: list[int]) -> Iterator[tuple[int, ...]]:
    simple = replace(rates, pairs={})  # slow paths are left to the division: with them each probe takes a programme
    given = usable(simple)
    by_speed = sorted(senders, key=lambda index: (-given.samples_per_second[index], index))
    by_link = sorted(senders, key=lambda index: (-min(given.upload[index], given.download[index]), index))
    for ranking in (by_speed, by_link):
        cost = partial(_prefix_seconds, simple, work, ranking)
        yield tuple(sorted(ranking[_best_length(cost, len(ranking)) :]))


def _prefix_seconds(rates: SwarmRates, work: StepWork, ranking: list[int], length: int) -> float:
    return step_seconds(with_resting(rates, tuple(ranking[length:])), work)


def _best_length(cost: Callable[[int], float], longest: int) -> int:
    """The cheapest length from 1 to `longest`: a coarse search, and a fine one around its best."""
    found: dict[int, float] = {}
    low, high = 1, longest
    while True:
        lengths = sorted({round(low + (high - low) * probe / PROBES) for probe in range(PROBES + 1)})
        found |= {length: cost(length) for length in lengths if length not in found}
        least = min(found[length] for length in lengths)
        best = max(length for length in lengths if found[length] <= least * (1.0 + ALIKE))
        if len(lengths) == high - low + 1:
            return best
        place = lengths.index(best)
        low, high = lengths[max(0, place - 1)], lengths[min(len(lengths) - 1, place + 1)]
