"""What came out of a demo: figures, bounds and plain words."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minga.cli.demo.child import Child
from minga.core.units import counted
from minga.recipes.interface import Recipe

MAX_RECOVERY_S = 3.0
MAX_LATE_JOIN_S = 15.0
MIN_STEPS_PER_MINUTE = 10.0
RUN_FOLDER = "run"
FULL_MINUTES = 3.0
"""From how many minutes on the headline has to reach the recipe's `demo_goal`; shorter demos only have to improve."""


@dataclass(frozen=True)
class DemoFacts:
    """What happened. `survivors` are all trainers at the end, the newcomer among them."""

    recipe: type[Recipe[Any]]
    organiser: Child
    survivors: list[Child]
    newcomer: Child
    killed: Child
    kill_time: float
    normal_step_s: float
    last_step: int
    left_over: int
    seconds: float


def normal_step_s(steps: Sequence[tuple[float, int, int]]) -> float:
    """Median seconds between two of the last 20 steps; 0 with fewer than two."""
    times = [time for time, _, _ in steps[-21:]]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return statistics.median(gaps) if gaps else 0.0


def recovery_s(facts: DemoFacts) -> float | None:
    """By how many seconds the step that the killed peer left unfinished took longer than a normal one, at least 0, for
    the survivor that it held up most. What the killed peer had computed in vain is part of that.

    To count from the kill, and take a whole normal step off, would hide up to a step of what a late kill costs.
    """
    survivors = [child.steps() for child in facts.survivors if child is not facts.newcomer]
    finished = [step + 1 for step in facts.killed.of("round.reduced", "step")]
    finished += [step for steps in survivors for time, step, _ in steps if time <= facts.kill_time]
    waits = []
    for steps in survivors:
        before = [time for time, step, _ in steps if step <= max(finished, default=0)]
        after = [time for time, step, _ in steps if step > max(finished, default=0)]
        if not before or not after:
            return None
        waits.append(after[0] - before[-1])
    return round(max(0.0, max(waits, default=0.0) - facts.normal_step_s), 3)


def check(facts: DemoFacts, minutes: float, peers: int) -> dict[str, Any]:
    """The summary: all figures, `ok`, and in `failed` what did not hold."""
    result, ready = facts.organiser.summary, facts.newcomer.first("ready")
    headline = facts.recipe.headline
    first, last = (result.get(moment, {}).get(headline.name) for moment in ("first", "last"))
    improvement = None if first is None or last is None else (first - last) * (1 if headline.better == "lower" else -1)
    late_join_s = round(ready["t"] - facts.newcomer.begun, 3) if ready else None
    finals = [(c.summary.get("step"), c.summary.get("digest")) for c in [facts.organiser, *facts.survivors]]
    figures: dict[str, Any] = {
        "steps": result.get("step", 0),
        "headline": headline.name,
        "headline_first": first,
        "headline_last": last,
        "improvement": improvement,
        "figures_last": result.get("last", {}),
        "killed": 1 if facts.killed.process.poll() not in (None, 0) else 0,
        "recovery_s": recovery_s(facts),
        "late_join_s": late_join_s,
        "late_join_contributed": any(samples > 0 for _, _, samples in facts.newcomer.steps()),
        "digests_equal": len(set(finals)) == 1 and finals[0] == (facts.last_step, finals[0][1]),
        "leftover_processes": facts.left_over,
        "normal_step_s": round(facts.normal_step_s, 3),
        "trainers": peers,
        "minutes": minutes,
        "seconds": round(facts.seconds, 1),
        "samples": sum(c.summary.get("samples", 0) for c in facts.survivors),
    }
    bounds = {
        "steps": figures["steps"] >= least_steps(minutes),
        "headline_first": first is not None,
        "headline_last": improvement is not None and improvement > 0 and _reaches(facts.recipe, last, minutes),
        "killed": figures["killed"] == 1,
        "recovery_s": figures["recovery_s"] is not None and figures["recovery_s"] <= MAX_RECOVERY_S,
        "late_join_s": late_join_s is not None and late_join_s <= MAX_LATE_JOIN_S,
        "late_join_contributed": figures["late_join_contributed"],
        "digests_equal": figures["digests_equal"],
        "leftover_processes": facts.left_over == 0,
    }
    failed = [name for name, holds in bounds.items() if not holds]
    return {"ok": not failed, **figures, "failed": failed}


def least_steps(minutes: float) -> float:
    """The steps that a demo of so many minutes takes at least."""
    return MIN_STEPS_PER_MINUTE * min(minutes, 2.0)


def _reaches(recipe: type[Recipe[Any]], last: float, minutes: float) -> bool:
    """Whether a demo of so many minutes did as well as the recipe promises."""
    goal = recipe.demo_goal
    if goal is None or minutes < FULL_MINUTES:
        return True
    return last <= goal if recipe.headline.better == "lower" else last >= goal


def in_words(facts: DemoFacts, summary: dict[str, Any], directory: Path) -> Iterator[str]:
    """The same for people."""
    figures = {name: "unknown" if value is None else value for name, value in summary.items()}
    yield ""
    yield (
        f"{summary['trainers']} peers that knew nothing but a link trained one model for "
        f"{counted(summary['steps'], 'step')}. On data that none of them trained on, {summary['headline']} went from "
        f"{_rounded(figures['headline_first'])} to {_rounded(figures['headline_last'])}."
    )
    known = ("step", summary["headline"])
    others = {name: value for name, value in summary["figures_last"].items() if name not in known}
    if others:
        yield f"Besides: {', '.join(f'{name} {_rounded(value)}' for name, value in sorted(others.items()))}."
    yield (
        f"{facts.killed.name} was killed in mid-step; the step took the others {figures['recovery_s']} s longer than "
        f"usual ({summary['normal_step_s']} s)."
    )
    contributed = "contributed" if summary["late_join_contributed"] else "did not contribute"
    yield f"The newcomer had the current state {figures['late_join_s']} s after its start, and {contributed}."
    same = "hold bit for bit the same state" if summary["digests_equal"] else "do NOT hold the same state"
    left = counted(summary["leftover_processes"], "process was", "processes were")
    yield f"At the end the survivors {same}; {left} left over."
    shown = ", ".join([*summary.get("results", []), "terminal.svg", "summary.json", "run/checkpoints", "logs"])
    yield f"Results: {directory} ({shown})"
    yield f"The model for other programs: minga export --directory {directory / RUN_FOLDER} --out model"
    if summary["failed"]:
        yield f"Not as promised: {'; '.join(_missed(name, summary) for name in summary['failed'])}."
        if not {"steps", "recovery_s", "late_join_s"}.isdisjoint(summary["failed"]):
            yield "Times depend on what else this machine does; try again when it is idle."


def _missed(name: str, summary: dict[str, Any]) -> str:
    """What did not hold, and, where it is a matter of time, by how much."""
    value = summary[name]
    seconds = "unknown" if value is None else f"{value} s"
    promised = {
        "steps": f"{value}, at least {least_steps(summary['minutes']):.0f} were promised",
        "recovery_s": f"{seconds}, at most {MAX_RECOVERY_S:.0f} s were promised",
        "late_join_s": f"{seconds}, at most {MAX_LATE_JOIN_S:.0f} s were promised",
    }
    return f"{name}: {promised[name]}" if name in promised else name


def _rounded(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
