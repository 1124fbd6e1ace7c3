"""What a soak must show, judged by what its peers told."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks._recovery_swarm import Told

STALL_LIMIT_S = 5.0
GROWTH_LIMIT = 0.02
SPARE = 5
"""So many more tasks, threads or files are no leak: which there are depends on what a peer does at the moment, and
thread pools fill up slowly. A leak adds one for each peer that goes or comes."""
WINDOW_S = 15.0
QUARTERS = 4
COUNTED = ("tasks", "threads", "files")


@dataclass(frozen=True)
class Course:
    """When what happened: peers came and went from `churn_s` to `quiet_s`, and all was over at `end_s`.

    Memory is compared from `warm_s` on, a while into the coming and going.
    """

    churn_s: float
    warm_s: float
    quiet_s: float
    end_s: float


def stalls(log: Iterable[Told], killed: Mapping[str, float], end_s: float) -> dict[str, float]:
    """The longest time between two steps that each peer applied, from its first one to its end."""
    moments: dict[str, list[float]] = defaultdict(list)
    for told in log:
        if told.event == "step.applied" and told.t < killed.get(told.name, end_s):
            moments[told.name].append(told.t)
    return {
        name: max(b - a for a, b in itertools.pairwise([*times, killed.get(name, end_s)]))
        for name, times in moments.items()
    }


def growth(vitals: list[Told], course: Course) -> float:
    """By which share the resident memory of a peer grew, from `warm_s` to the end; medians of `WINDOW_S`."""

    def level(since_s: float) -> float:
        return statistics.median(v.fields["rss_bytes"] for v in vitals if since_s <= v.t < since_s + WINDOW_S)

    return level(course.end_s - WINDOW_S) / level(course.warm_s) - 1.0


def leaks(vitals: list[Told], course: Course) -> dict[str, int]:
    """How many more tasks, threads and files a peer has at the end than before others came and went.

    The least numbers count, at equal numbers of neighbours, because some are there for a moment only. Raises
    `ValueError` if the swarm never was as large as before.
    """
    before = [v.fields for v in vitals if course.churn_s - WINDOW_S <= v.t < course.churn_s]
    after = [v.fields for v in vitals if v.t >= course.end_s - WINDOW_S]
    equal = max({v["neighbours"] for v in before} & {v["neighbours"] for v in after}, default=None)
    if equal is None:
        raise ValueError("at the end there never were as many neighbours as before")

    def least(samples: list[dict[str, Any]], what: str) -> int:
        return min(int(v[what]) for v in samples if v["neighbours"] == equal)

    return {what: least(after, what) - least(before, what) for what in COUNTED}


def loss_by_quarter(standings: list[Told]) -> list[float]:
    """The mean held-out loss of each quarter of the steps."""
    losses = [told.fields["loss"] for told in standings]
    size = len(losses) // QUARTERS
    return [statistics.fmean(losses[k * size : (k + 1) * size]) for k in range(QUARTERS)] if size else []


def different_digests(log: Iterable[Told]) -> list[int]:
    """Steps after which not all peers had the same state."""
    digests: dict[int, set[str]] = defaultdict(set)
    for told in log:
        if told.event == "standing":
            digests[told.fields["step"]].add(told.fields["digest"])
    return sorted(step for step, different in digests.items() if len(different) > 1)


def judge(
    log: list[Told], stayers: list[str], killed: Mapping[str, float], course: Course
) -> tuple[dict[str, Any], list[str]]:
    """The figures of a soak, and what is wrong with them."""
    by_peer = {name: [t for t in log if t.name == name and t.event == "vitals"] for name in stayers}
    stall_s = stalls(log, killed, course.end_s)
    figures: dict[str, Any] = {
        "steps": max((t.fields["step"] for t in log if t.event == "standing"), default=0),
        "longest_stall_s": max(stall_s.values(), default=course.end_s),
        "memory_growth": {name: round(growth(vitals, course), 4) for name, vitals in by_peer.items()},
        "leaked": {name: leaks(vitals, course) for name, vitals in by_peer.items()},
        "loss_by_quarter": loss_by_quarter([t for t in log if t.event == "standing" and t.name == stayers[0]]),
        "rounds_given_up": len([t for t in log if t.event == "round.aborted"]),
    }
    wrong = [f"{name} took no step for {s:.1f} s" for name, s in stall_s.items() if s > STALL_LIMIT_S]
    wrong += [f"{n} grew by {100 * g:.1f} %" for n, g in figures["memory_growth"].items() if g > GROWTH_LIMIT]
    wrong += [
        f"{name} has {more} more {what} than before"
        for name, counts in figures["leaked"].items()
        for what, more in counts.items()
        if more > SPARE
    ]
    losses = figures["loss_by_quarter"]
    if not losses or any(b >= a for a, b in itertools.pairwise(losses)):
        wrong.append(f"the loss does not keep falling: {losses}")
    wrong += [f"different states after step {step}" for step in different_digests(log)]
    wrong += [
        f"{told.name}: {told.event} {told.fields}" for told in log if told.event in ("member.failed", "peer.offence")
    ]
    return figures, wrong
