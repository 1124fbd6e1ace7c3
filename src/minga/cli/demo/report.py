"""What came out of a demo: figures, bounds, plain words, and pictures."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shutil
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from minga.cli.demo.stage import Child
from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.core.files import store
from minga.core.units import counted, format_number, format_size
from minga.recipes.interface import Exhibit, Recipe, Showing

BEFORE_AFTER: Final = "before-after.png"
TERMINAL_WIDTH: Final = 110
_WIDTH: Final = 104

CLEARLY: Final = 0.05
"""By how much a share has to be better than chance to be told of."""

RECOVERY_S, RECOVERY_STEPS = 3.0, 3.0
"""What a death costs at most: so many seconds, or where steps take long so many usual steps."""

LATE_JOIN_S, LATE_JOIN_STEPS, LATE_JOIN_STARTS = 15.0, 30.0, 3.0
"""What a newcomer takes at most: likewise, or so many times what the first trainers took on this machine."""

BUSY_SHARE = 0.5
"""Share of the time that steps take at least, if each of them takes as long as is usual."""

BUSY_LOAD: Final = 0.5
"""The load before a demo, per processor, from which on its speed says little."""

OTHER_BYTES: Final = 1_000_000
"""What a newcomer fetches at most beside the state: the data of the run."""

RUN_FOLDER = "run"


@dataclass(frozen=True)
class DemoOutcome:
    """What came of a demo: figures, with `ok`, and the same for people."""

    summary: dict[str, Any]
    words: Sequence[str]


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
    has_base: bool = False
    """Whether the run tunes a base, which its peers have."""
    load_before: float = 0.0
    """The machine's load per processor when the demo began."""


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
    starts = [(each, each.first("ready")) for each in facts.survivors if each is not facts.newcomer]
    first_join_s = max((event["t"] - each.begun for each, event in starts if event), default=0.0)
    finals = [(c.summary.get("step"), c.summary.get("digest")) for c in [facts.organiser, *facts.survivors]]
    on_base = (facts.newcomer.first("costs") or {}).get("parameters") if facts.has_base else None
    figures: dict[str, Any] = {
        "steps": result.get("step", 0),
        "headline": headline.name,
        "headline_first": first,
        "headline_last": last,
        "improvement": improvement,
        "figures_last": result.get("last", {}),
        "killed": 1 if facts.killed.process.poll() not in (None, 0) else 0,
        "recovery_s": recovery_s(facts),
        "first_join_s": round(first_join_s, 3),
        "late_join_s": late_join_s,
        "late_join_bytes": _fetched_bytes(facts.newcomer),
        "trained_bytes": None if on_base is None else 4 * on_base,
        "late_join_contributed": any(samples > 0 for _, _, samples in facts.newcomer.steps()),
        "digests_equal": len(set(finals)) == 1 and finals[0] == (facts.last_step, finals[0][1]),
        "leftover_processes": facts.left_over,
        "normal_step_s": round(facts.normal_step_s, 3),
        "usual_step_s": round(usual_step_s(facts), 3),
        "trainers": peers,
        "minutes": minutes,
        "seconds": round(facts.seconds, 1),
        "samples": sum(c.summary.get("samples", 0) for c in facts.survivors),
    }
    most = _most_seconds(figures)
    bounds = {
        "steps": figures["steps"] >= least_steps(figures),
        "headline_first": first is not None,
        "headline_last": improvement is not None and improvement > 0 and _reaches(facts.recipe, last, figures["steps"]),
        "killed": figures["killed"] == 1,
        **{name: figures[name] is not None and figures[name] <= bound for name, bound in most.items()},
        "late_join_contributed": figures["late_join_contributed"],
        **({} if on_base is None else {"late_join_bytes": _is_small(figures)}),
        "digests_equal": figures["digests_equal"],
        "leftover_processes": facts.left_over == 0,
    }
    failed = [name for name, holds in bounds.items() if not holds]
    return {"ok": not failed, **figures, "failed": failed}


def _fetched_bytes(newcomer: Child) -> int | None:
    """What a newcomer fetched to come in: the files of the run that were not on its disk, and the state."""
    costs, states = newcomer.first("costs"), newcomer.of("state.downloaded", "received_bytes")
    return costs["files_bytes"] + sum(states) if costs and states else None


def _is_small(figures: Mapping[str, Any]) -> bool:
    """Whether a newcomer that has the base fetched what is trained, its optimizer's state, and little else."""
    received: int | None = figures["late_join_bytes"]
    return received is not None and received <= 3 * figures["trained_bytes"] + OTHER_BYTES


def usual_step_s(facts: DemoFacts) -> float:
    """Median seconds between two steps: before the death, or at the end if that is more, as where a machine has become
    busy.
    """
    return max([facts.normal_step_s, *(normal_step_s(child.steps()) for child in facts.survivors)])


def least_steps(figures: Mapping[str, Any]) -> float:
    """The steps that a demo takes at least, of the usual length of its steps."""
    usual_s: float = figures["usual_step_s"]
    return max(1.0, BUSY_SHARE * figures["seconds"] / usual_s) if usual_s else 1.0


def _most_seconds(figures: Mapping[str, Any]) -> dict[str, float]:
    """The longest times that are as promised."""
    usual_s: float = figures["usual_step_s"]
    return {
        "recovery_s": max(RECOVERY_S, RECOVERY_STEPS * usual_s),
        "late_join_s": max(LATE_JOIN_S, LATE_JOIN_STEPS * usual_s, LATE_JOIN_STARTS * figures["first_join_s"]),
    }


def _reaches(recipe: type[Recipe[Any]], last: float, steps: int) -> bool:
    """Whether a demo of so many steps did as well as the recipe promises."""
    goal = recipe.demo_goal
    if goal is None or steps < goal.steps:
        return True
    return last <= goal.headline if recipe.headline.better == "lower" else last >= goal.headline


def in_words(facts: DemoFacts, summary: Mapping[str, Any], shown: Showing | None, directory: Path) -> Iterator[str]:
    """The same for people."""
    figures = {name: "unknown" if value is None else value for name, value in summary.items()}
    result = facts.organiser.summary
    steps = counted(summary["steps"], "step")
    yield f"{summary['trainers']} peers that knew nothing but a link trained one model for {steps}."
    if shown is not None and shown.data:
        yield f"Data: {shown.data}. All that follows is of data that nobody trained on."
    yield from (
        f"  {line}"
        for line in compared(
            result.get("first", {}),
            result.get("last", {}),
            summary["headline"],
            shown or Showing(""),
        )
    )
    if shown is not None and (lines := list(side_by_side(shown))):
        yield "What the model makes of the same things, before training → after:"
        yield from lines
    yield (
        f"{facts.killed.name} was killed in mid-step; the step took the others {figures['recovery_s']} s longer than "
        f"usual ({summary['normal_step_s']} s)."
    )
    contributed = "contributed" if summary["late_join_contributed"] else "did not contribute"
    yield f"The newcomer had the current state {figures['late_join_s']} s after its start, and {contributed}."
    if facts.has_base and summary["late_join_bytes"] is not None:
        yield (
            f"The newcomer fetched {format_size(summary['late_join_bytes'])} to come in; the adapters take "
            f"{format_size(summary['trained_bytes'])}, and the base lay on its disk."
        )
    same = "hold bit for bit the same state" if summary["digests_equal"] else "do NOT hold the same state"
    left = counted(summary["leftover_processes"], "process was", "processes were")
    yield f"At the end the survivors {same}; {left} left over."
    files = ", ".join([*summary.get("results", []), "terminal.svg", "summary.json", "run/checkpoints", "logs"])
    yield f"Results: {directory} ({files})"
    yield f"The model for other programs: minga export {directory / RUN_FOLDER} --out model"
    if summary["failed"]:
        yield f"Not as promised: {'; '.join(_missed(name, summary) for name in summary['failed'])}."
        if facts.load_before >= BUSY_LOAD:
            yield (
                f"Other programs kept this machine busy when the demo began (load {facts.load_before:.1f} per "
                "processor), which makes it slow."
            )


_MISSED: Final = {
    "headline_first": "the model was not measured before training",
    "headline_last": "the model did not become as good as so many steps make it",
    "killed": "the trainer that was to be killed was not",
    "recovery_s": "the step after the death took longer by",
    "late_join_s": "the newcomer had the current state after",
    "late_join_contributed": "the newcomer contributed nothing",
    "late_join_bytes": "the newcomer fetched more than the adapters and the data",
    "digests_equal": "the survivors do not hold the same state",
    "leftover_processes": "processes were left over",
}


def _missed(name: str, summary: Mapping[str, Any]) -> str:
    """What did not hold, and, where it is a matter of time, by how much."""
    if name == "steps":
        return f"{counted(summary['steps'], 'step')}, at least {least_steps(summary):.0f} were promised"
    if (most := _most_seconds(summary).get(name)) is None:
        return _MISSED[name]
    seconds = "an unknown time" if summary[name] is None else f"{summary[name]} s"
    return f"{_MISSED[name]} {seconds}, at most {round(most, 3):g} s were promised"


def compared(first: Mapping[str, float], last: Mapping[str, float], headline: str, showing: Showing) -> Iterator[str]:
    """The held-out figures before and after training, the headline first, and what they are to be compared with.
    Another share that is not clearly better than chance, or than that of the untrained model, is left out.
    """
    for name in sorted(last.keys() & first.keys() - {"step"}, key=lambda each: (each != headline, each)):
        found = showing.beside.get(name)
        chance = found.value if found is not None and found.is_chance else 0.0
        if name != headline and name.endswith("accuracy") and last[name] < max(first[name], chance) + CLEARLY:
            continue
        beside = "" if found is None else f" ({found.words}: {format_number(found.value)})"
        yield f"{name} {format_number(first[name])} → {format_number(last[name])}{beside}"


def side_by_side(shown: Showing) -> Iterator[str]:
    """The rows, made before training and after it, for people: on one line if it is short enough, else on several."""
    for number, row in enumerate(shown.rows, 1):
        before, after = (made.text for made in row.made)
        if not after:
            continue
        right = f"   (right: {row.right.text})" if row.right.text else ""
        given = row.given.text or f"picture {number}"
        short = f"  {given}: {before} → {after}{right}"
        if len(short) <= _WIDTH and len(given) <= _WIDTH // 2:
            yield short
            continue
        yield f"  {given}"
        if len(before) + len(after) + len(right) <= _WIDTH:
            yield f"      before: {before}   after: {after}{right}"
        else:
            yield f"      before: {before}"
            yield f"      after:  {after}{right}"


def keep_results(facts: DemoFacts, directory: Path) -> tuple[Showing | None, list[str]]:
    """Draw the plot, take the organiser's folder of the run (checkpoint, files, history) over into `directory`, and let
    the recipe show its model before training and after. What is shown, None where the demo was too short for a
    checkpoint, and the names of the pictures.

    Raises `StorageError` if the disk refuses.
    """
    from minga.monitor.history import FILE_NAME, read_history
    from minga.monitor.plot import plot_history

    link = facts.organiser.first("link") or {}
    source, plot = Path(str(link["directory"])), directory / "loss.png"
    with contextlib.suppress(ConfigurationError):  # too short for a single loss
        plot_history(read_history(source / FILE_NAME), plot, title="minga demo")
    try:
        shutil.move(source, directory / RUN_FOLDER)
    except OSError as error:
        raise StorageError(f"the results cannot be moved to {directory}: {reason_of(error)}") from error
    shown = _shown(directory / RUN_FOLDER)
    drawn = [] if shown is None else draw_rows(shown, directory)
    return shown, [*drawn, *([plot.name] if plot.is_file() else [])]


def _shown(run: Path) -> Showing | None:
    from minga.recipes.running.run import first_model
    from minga.recipes.running.trained_model import from_run_folder

    try:
        trained = from_run_folder(run)
    except ConfigurationError:  # too short for a checkpoint
        return None
    return trained.recipe.show([first_model(trained.recipe, trained.files), trained.model], trained.files)


def draw_rows(shown: Showing, directory: Path) -> list[str]:
    """Write the pictures among the rows side by side; the name of the file, if there are any.

    Raises `StorageError` if the disk refuses.
    """
    views: dict[str, list[Exhibit]] = {
        "given": [row.given for row in shown.rows],
        "before training": [row.made[0] for row in shown.rows],
        "after": [row.made[-1] for row in shown.rows],
        "real": [row.right for row in shown.rows],
    }
    columns = {
        name: pictures
        for name, column in views.items()
        if (pictures := [each.picture for each in column if each.picture is not None])
    }
    if not columns:
        return []
    draw_columns(columns, [row.given.text for row in shown.rows], directory / BEFORE_AFTER)
    return [BEFORE_AFTER]


def draw_columns(columns: Mapping[str, Sequence[Any]], captions: Sequence[str], path: Path) -> None:
    """Write pictures in named columns, a caption beneath each row. Raises `StorageError` if the disk refuses."""
    from minga.recipes.images.grid import columns_png

    store(path, columns_png(columns, captions))


def draw_terminal(command: str, lines: Iterable[str], path: Path) -> None:
    """Write an SVG of a terminal in which `command` printed `lines`. Raises `StorageError` if the disk refuses."""
    console = Console(record=True, file=io.StringIO(), width=TERMINAL_WIDTH, highlight=False)
    console.print(Text(f"$ {command}", style="bold"))
    for line in lines:
        console.print(Text(line), soft_wrap=False)
    # Without the fonts that rich would have every reader's browser fetch from a server.
    svg = re.sub(
        r"@font-face \{.*?\}\s*", "", console.export_svg(title="minga", unique_id="minga-demo"), flags=re.DOTALL
    )
    store(path, svg.encode())
