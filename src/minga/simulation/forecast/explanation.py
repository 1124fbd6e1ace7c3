"""A plan in words and figures: who does what and why, what a step takes, and what else could be done."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from minga.averaging.planning.contributor_choice import StepWork, combined, resting, step_seconds, with_resting
from minga.averaging.solver.baselines import equal_parts, parameter_server
from minga.averaging.solver.division import Binding, CleanRates, Division, PeerRates, Remark, SwarmRates, usable
from minga.averaging.solver.flat import Prediction, predict
from minga.averaging.solver.planner import divide

DAY_S: Final = 86_400.0
AUXILIARY_RATE: Final = 125e6
"""Bytes per second in both directions (1 Gb/s) of the auxiliary that one more could be."""

BUSY: Final = 0.98
LARGEST_BOUND: Final = 128
"""Groups with more members are not compared with the linear programme: it takes seconds."""


@dataclass(frozen=True)
class PeerTask:
    """What one peer does in a round, and why.

    `reduces` and `relays` are fractions of the vector; bytes are for one round, `busy_s` is how long its own link
    takes for them. A day's traffic assumes that steps follow each other all day.
    """

    peer: int
    reduces: float
    relays: float
    upload_bytes: float
    download_bytes: float
    busy_s: float
    upload_bytes_per_day: float
    download_bytes_per_day: float
    reason: str


@dataclass(frozen=True)
class Explanation:
    """A division as it would be executed. Times are in seconds; `computing_s` is that of the samples of a step.

    Infinite times: nobody computes, or a path is missing.
    """

    division: Division
    round_s: float
    computing_s: float
    step_s: float
    binding: Binding | None
    tasks: tuple[PeerTask, ...]
    remarks: tuple[Remark, ...]


@dataclass(frozen=True)
class Alternatives:
    """What other plans would take, in seconds for a round; None where it was not computed.

    `bound_s` is the shortest that any plan of one level could take. The steps and rounds with one more auxiliary of
    1 Gb/s, and the step if the `resting` did not compute, are those of the divisions that would be executed.
    """

    bound_s: float | None
    equal_parts_s: float
    parameter_server_s: float
    auxiliary_round_s: float
    auxiliary_step_s: float
    resting: tuple[int, ...]
    resting_step_s: float


def explain(rates: SwarmRates, work: StepWork) -> Explanation:
    """Divide and say why it came out like that. Raises as `divide` does."""
    given = usable(rates)
    division = divide(rates, work.vector_bytes)
    foreseen = predict(division, rates, work.vector_bytes)
    speed = float(given.samples_per_second[given.sends].sum())
    computing_s = combined(replace(work, overlapped=True), speed, 0.0)
    step_s = combined(work, speed, foreseen.seconds)
    tasks = _tasks(division, foreseen, given, step_s)
    return Explanation(division, foreseen.seconds, computing_s, step_s, foreseen.binding, tasks, given.remarks)


def alternatives(rates: SwarmRates, work: StepWork) -> Alternatives:
    """What else could be done; takes seconds for large groups. Raises as `divide` does."""
    helped = replace(rates, peers=(*rates.peers, PeerRates(AUXILIARY_RATE, AUXILIARY_RATE, sends=False)))
    rests = resting(rates, work)
    return Alternatives(
        bound_s=_bound(rates, work.vector_bytes),
        equal_parts_s=predict(equal_parts(rates), rates, work.vector_bytes).seconds,
        parameter_server_s=predict(parameter_server(rates, work.vector_bytes), rates, work.vector_bytes).seconds,
        auxiliary_round_s=predict(divide(helped, work.vector_bytes), helped, work.vector_bytes).seconds,
        auxiliary_step_s=step_seconds(helped, work),
        resting=rests,
        resting_step_s=step_seconds(with_resting(rates, rests), work),
    )


def _bound(rates: SwarmRates, vector_bytes: float) -> float | None:
    if len(rates.peers) > LARGEST_BOUND:
        return None
    from minga.averaging.solver.lower_bound import shortest_round

    return shortest_round(usable(rates), vector_bytes)


def _tasks(division: Division, foreseen: Prediction, rates: CleanRates, step_s: float) -> tuple[PeerTask, ...]:
    reduces, relays = np.zeros(rates.count), np.zeros(rates.count)
    for part in division.parts:
        reduces[part.root] += part.share
        for relay in part.relays:
            relays[relay] += part.share if relay != part.root else 0.0
    sent, received = np.array(foreseen.upload_bytes), np.array(foreseen.download_bytes)
    busy = np.maximum(sent / rates.upload, received / rates.download)
    per_day = DAY_S / step_s if 0.0 < step_s < math.inf else 0.0
    return tuple(
        PeerTask(
            peer=peer,
            reduces=float(reduces[peer]),
            relays=float(relays[peer]),
            upload_bytes=float(sent[peer]),
            download_bytes=float(received[peer]),
            busy_s=float(busy[peer]),
            upload_bytes_per_day=float(sent[peer]) * per_day,
            download_bytes_per_day=float(received[peer]) * per_day,
            reason=_reason(peer, float(reduces[peer] + relays[peer]), float(busy[peer]), rates, foreseen),
        )
        for peer in range(rates.count)
    )


def _reason(peer: int, tasks: float, busy_s: float, rates: CleanRates, foreseen: Prediction) -> str:
    full = busy_s >= BUSY * foreseen.seconds > 0.0
    binding = foreseen.binding
    if tasks > 0.0:
        if binding is not None and binding.kind == "path" and peer in (binding.peer, binding.other) and not full:
            return "a path of its own sets the time"
        return "as much as its link carries" if full else "it has room; others set the time"
    if not rates.aggregates[peer]:
        return "not all can reach it" + ("; sending its own gradient sets the time" if full else "")
    if full:
        return "sending its own gradient takes all the time"
    return "its link has no room for more" if busy_s > 0.5 * foreseen.seconds else "others have more room"
