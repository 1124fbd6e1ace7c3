"""A plan in words and figures: who does what and why, what a step takes, and what else could be done."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from minga.averaging.planning.contributor_choice import StepWork, combined, resting, with_resting
from minga.averaging.solver.division import Binding, CleanRates, Division, PeerRates, Remark, SwarmRates, usable
from minga.averaging.solver.flat import Prediction
from minga.averaging.solver.planner import divide
from minga.core.units import format_duration, format_size
from minga.planner.forecast import foresee, giving

DAY_S: Final = 86_400.0
AUXILIARY_RATE: Final = 125e6
"""Bytes per second in both directions (1 Gb/s) of the auxiliary that one more could be."""

BUSY: Final = 0.98


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
    """Seconds of rounds and steps with one more auxiliary of 1 Gb/s, and of a step if the `resting` did not compute."""

    auxiliary_round_s: float
    auxiliary_step_s: float
    resting: tuple[int, ...]
    resting_step_s: float


def explain(rates: SwarmRates, work: StepWork) -> Explanation:
    """Divide and say why it came out like that. Raises as `divide` does."""
    in_round = giving(rates, work)
    everybody, given = usable(rates), usable(in_round)
    division = divide(in_round, work.vector_bytes)
    foreseen = foresee(division, in_round, work)
    speed = float(everybody.samples_per_second[everybody.sends].sum())
    computing_s = combined(replace(work, overlapped=True), speed, 0.0)
    step_s = combined(work, speed, foreseen.seconds)
    tasks = _tasks(division, foreseen, given, step_s)
    return Explanation(division, foreseen.seconds, computing_s, step_s, foreseen.binding, tasks, given.remarks)


def alternatives(rates: SwarmRates, work: StepWork) -> Alternatives:
    """What else could be done; takes seconds for large groups. Raises as `divide` does."""
    helped = replace(rates, peers=(*rates.peers, PeerRates(AUXILIARY_RATE, AUXILIARY_RATE, sends=False)))
    rests = () if work.takes_best else resting(rates, work)
    with_auxiliary, rested = explain(helped, work), explain(with_resting(rates, rests), work)
    return Alternatives(with_auxiliary.round_s, with_auxiliary.step_s, rests, rested.step_s)


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
    full = busy_s >= BUSY * foreseen.busy_s > 0.0
    binding = foreseen.binding
    if tasks > 0.0:
        if binding is not None and binding.kind == "path" and peer in (binding.peer, binding.other) and not full:
            return "a path of its own sets the time"
        return "as much as its link carries" if full else "it has room; others set the time"
    if not rates.aggregates[peer]:
        return "not all can reach it" + ("; sending its own gradient sets the time" if full else "")
    if full:
        return "sending its own gradient takes all the time"
    return "its link has no room for more" if busy_s > 0.5 * foreseen.busy_s else "others have more room"


# ---- An explained plan in sentences for people and as values for programs.


MAX_REMARKS = 20
COUNTS = 0.02
"""By which fraction something has to become shorter to be called a gain."""


def plan_text(explanation: Explanation, others: Alternatives, names: Sequence[str], work: StepWork) -> Iterator[str]:
    """The plan as a whole, in sentences: how long rounds and steps take, what they wait for, what would help."""
    levels = ", in two levels" if explanation.division.sites else ""
    yield (
        f"A round of {format_size(work.vector_bytes)} takes {format_duration(explanation.round_s)}{levels}; "
        f"it waits for {binding_text(explanation.binding, names)}."
    )
    for site in explanation.division.sites:
        yield f"A site: {', '.join(names[peer] for peer in site)}."
    how = "while the round runs" if work.overlapped else "and then waits for the round"
    computing = format_duration(explanation.computing_s)
    if math.isinf(explanation.step_s):
        yield "How long a step takes is not known: no peer tells a speed at which it computes gradients."
    else:
        yield f"A step takes {format_duration(explanation.step_s)}: computing takes {computing} {how}."
    yield _auxiliary_text(explanation, others)
    if others.resting:
        yield (
            f"If {', '.join(names[peer] for peer in others.resting[:10])}"
            f"{' and others' if len(others.resting) > 10 else ''} computed no gradients, a step would take "
            f"{format_duration(others.resting_step_s)}."
        )
    for remark in explanation.remarks[:MAX_REMARKS]:
        to = f" to {names[remark.other]}" if remark.other is not None else ""
        yield f"{names[remark.peer]}{to}: {remark.text}."


def _auxiliary_text(explanation: Explanation, others: Alternatives) -> str:
    times = (
        f"rounds of {format_duration(others.auxiliary_round_s)}, steps of {format_duration(others.auxiliary_step_s)}"
    )
    if others.auxiliary_step_s <= explanation.step_s * (1.0 - COUNTS):
        return f"One more auxiliary of 1 Gbit/s: {times}."
    return f"One more auxiliary of 1 Gbit/s would not make steps shorter ({times})."


def binding_text(binding: Binding | None, names: Sequence[str]) -> str:
    """The link that a round waits for, in words."""
    if binding is None:
        return "nothing that is known"
    if binding.other is None:
        return f"the {binding.kind} of {names[binding.peer]}"
    return f"the path from {names[binding.peer]} to {names[binding.other]}"


def plan_json(explanation: Explanation, others: Alternatives, names: Sequence[str], work: StepWork) -> dict[str, Any]:
    """The plan as JSON values; times that are infinite are null."""
    division, binding = explanation.division, explanation.binding
    return {
        "vector_bytes": round(work.vector_bytes),
        "round_s": seconds_json(explanation.round_s),
        "computing_s": seconds_json(explanation.computing_s),
        "step_s": seconds_json(explanation.step_s),
        "binding": None if binding is None else binding_json(binding, names),
        "two_level": bool(division.sites),
        "sites": [[names[peer] for peer in site] for site in division.sites],
        "parts": [
            {"share": part.share, "root": names[part.root], "relays": [names[peer] for peer in part.relays]}
            for part in division.parts
        ],
        "peers": [_task_json(task, names) for task in explanation.tasks],
        "one_more_auxiliary": {
            "round_s": seconds_json(others.auxiliary_round_s),
            "step_s": seconds_json(others.auxiliary_step_s),
        },
        "resting": [names[peer] for peer in others.resting],
        "resting_step_s": seconds_json(others.resting_step_s),
        "remarks": [
            {
                "peer": names[remark.peer],
                "other": None if remark.other is None else names[remark.other],
                "text": remark.text,
            }
            for remark in explanation.remarks
        ],
    }


def binding_json(binding: Binding, names: Sequence[str]) -> dict[str, str | None]:
    """A link as JSON values."""
    other = None if binding.other is None else names[binding.other]
    return {"kind": binding.kind, "peer": names[binding.peer], "other": other}


def _task_json(task: PeerTask, names: Sequence[str]) -> dict[str, Any]:
    return {
        "name": names[task.peer],
        "reduces": round(task.reduces, 6),
        "relays": round(task.relays, 6),
        "upload_bytes": round(task.upload_bytes),
        "download_bytes": round(task.download_bytes),
        "busy_s": seconds_json(task.busy_s),
        "upload_bytes_per_day": round(task.upload_bytes_per_day),
        "download_bytes_per_day": round(task.download_bytes_per_day),
        "reason": task.reason,
    }


def seconds_json(value: float | None) -> float | None:
    """Seconds as a JSON value: null if they are not known or infinite."""
    return round(value, 4) if value is not None and math.isfinite(value) else None
