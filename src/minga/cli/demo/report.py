"""What came out of a demo: figures, bounds and plain words."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minga.cli.demo.child import Child
from minga.core.errors import ConfigurationError, StorageError

MAX_RECOVERY_S = 3.0
MAX_LATE_JOIN_S = 15.0
MIN_STEPS_PER_MINUTE = 10.0
FIRST_LOSS, LAST_LOSS = 8.9, 6.4
RUN_FOLDER = "run"
FULL_MINUTES = 3.0
"""From how many minutes on the held-out loss has to come down to `LAST_LOSS`; shorter demos only have to improve."""


@dataclass(frozen=True)
class DemoFacts:
    """What happened. `survivors` are all trainers at the end, the newcomer among them."""

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
    """Seconds from the kill until the last survivor has applied its next step, less one normal step; at least 0."""
    waits = []
    for child in facts.survivors:
        if child is facts.newcomer:
            continue
        after = [time for time, _, _ in child.steps() if time > facts.kill_time]
        if not after:
            return None
        waits.append(after[0] - facts.kill_time)
    return round(max(0.0, max(waits) - facts.normal_step_s), 3)


def check(facts: DemoFacts, minutes: float, peers: int) -> dict[str, Any]:
    """The summary: all figures, `ok`, and in `failed` what did not hold."""
    result, ready = facts.organiser.summary, facts.newcomer.first("ready")
    headline = result.get("headline", "")
    first, last = (result.get(moment, {}).get(headline) for moment in ("first", "last"))
    late_join_s = round(ready["t"] - facts.newcomer.begun, 3) if ready else None
    finals = [(c.summary.get("step"), c.summary.get("digest")) for c in [facts.organiser, *facts.survivors]]
    figures: dict[str, Any] = {
        "steps": result.get("step", 0),
        "heldout_loss_first": first,
        "heldout_loss_last": last,
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
    needed_last = LAST_LOSS if minutes >= FULL_MINUTES else None
    bounds = {
        "steps": figures["steps"] >= MIN_STEPS_PER_MINUTE * min(minutes, 2.0),
        "heldout_loss_first": first is not None and first >= FIRST_LOSS,
        "heldout_loss_last": last is not None and first is not None and last <= (needed_last or first),
        "killed": figures["killed"] == 1,
        "recovery_s": figures["recovery_s"] is not None and figures["recovery_s"] <= MAX_RECOVERY_S,
        "late_join_s": late_join_s is not None and late_join_s <= MAX_LATE_JOIN_S,
        "late_join_contributed": figures["late_join_contributed"],
        "digests_equal": figures["digests_equal"],
        "leftover_processes": facts.left_over == 0,
    }
    failed = [name for name, holds in bounds.items() if not holds]
    return {"ok": not failed, **figures, "failed": failed}


def keep_results(facts: DemoFacts, results: Path) -> None:
    """Draw the plot, and take the organiser's folder of the run (checkpoint, files, history) over into the results.

    Raises `StorageError` if the disk refuses.
    """
    from minga.monitor.history import FILE_NAME, read_history
    from minga.monitor.plot import plot_history

    link = facts.organiser.first("link") or {}
    source = Path(str(link["directory"]))
    with contextlib.suppress(ConfigurationError):  # too short for a single loss
        plot_history(read_history(source / FILE_NAME), results / "loss.png", title="minga demo")
    try:
        shutil.move(source, results / RUN_FOLDER)
    except OSError as error:
        raise StorageError(f"the results cannot be moved to {results}: {error}") from error


def in_words(facts: DemoFacts, summary: dict[str, Any], directory: Path) -> Iterator[str]:
    """The same for people."""
    figures = {name: "unknown" if value is None else value for name, value in summary.items()}
    yield ""
    yield (
        f"{summary['trainers']} peers that knew nothing but a link trained one model for {summary['steps']} steps. "
        f"The loss on text that none of them trained on went from {_rounded(figures['heldout_loss_first'])} "
        f"to {_rounded(figures['heldout_loss_last'])}."
    )
    yield (
        f"{facts.killed.name} was killed in mid-step; the others went on after {figures['recovery_s']} s more than a "
        f"step usually takes ({summary['normal_step_s']} s)."
    )
    contributed = "contributed" if summary["late_join_contributed"] else "did not contribute"
    yield f"The newcomer had the current state {figures['late_join_s']} s after its start, and {contributed}."
    same = "hold bit for bit the same state" if summary["digests_equal"] else "do NOT hold the same state"
    yield f"At the end the survivors {same}; {summary['leftover_processes']} processes were left over."
    yield f"Results: {directory} (loss.png, terminal.svg, summary.json, run/checkpoints, logs)"
    yield f"The model for transformers: minga export --directory {directory / RUN_FOLDER} --out model"
    if summary["failed"]:
        yield f"Not as promised: {', '.join(summary['failed'])}."
        if not {"steps", "recovery_s", "late_join_s"}.isdisjoint(summary["failed"]):
            yield "Times depend on what else this machine does; try again when it is idle."


def _rounded(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
