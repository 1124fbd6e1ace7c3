"""What `minga plan` and "auto" learn from `benchmarks.strategies`: the table of gaps, and how good the choices are.

Held-out loss relative to synchronous float16 at the same samples, in percent, least and most of all seeds of a task,
and whether the method came to the loss that the reference has after 80 % of its samples, with any budget. What was
measured takes the place of what the literature says about the same choice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks._strategy_clock import AUXILIARY, HOME_DOWN, HOME_UP, LATENCY_S, MBIT, Clock
from benchmarks._strategy_methods import DILOCO, known_as, method_of
from benchmarks._strategy_tasks import GLOBAL_BATCH, TASKS, Task
from minga.core.files import write_atomically
from minga.core.spec.sections import OptimizerSection
from minga.planner.auto_choice import choose
from minga.planner.model_facts import ModelFacts
from minga.planner.peer_text import parse_peers
from minga.planner.planned_run import PlannedRun, resolve
from minga.planner.ways import SYNCHRONOUS, TrainingWay

PATH: Final = Path(__file__).resolve().parents[1] / "src/minga/planner/strategy_gaps.json"
TARGET: Final = "80%"
MICRO_BATCH: Final = 4
FIGURES: Final = ("percent", "basis", "task", "seeds", "arrives")

Row = dict[str, Any]


def write_gaps(rows: Sequence[Row], path: Path = PATH) -> int:
    """Put the gaps of these rows, of peers of equal speed, into the table, whose other rows stay; how many rows are
    measured now.

    Runs count that are long enough for a result, with the settings that plans mean.
    """
    table = json.loads(path.read_text("utf-8"))
    good = [row for row in rows if row["method"] != DILOCO.name and not row["too_short"]]
    good = [row for row in good if method_of(row["method"]).usual]
    for task in dict.fromkeys(row["task"] for row in good):
        for line in _gaps_of([row for row in good if row["task"] == task], task):
            table["rows"] = [each for each in table["rows"] if not _is_replaced(each, line)] + [line]
    write_atomically(path, _text_of(table).encode())
    return sum(line["basis"] == "measured" for line in table["rows"])


def _gaps_of(rows: Sequence[Row], task: str) -> Iterator[Row]:
    """The lines of the table that one task gives. Gaps with an optimizer of a method's own are relative to synchronous
    float16 with it.
    """
    ways: dict[str, list[Row]] = {}
    for row in rows:
        ways.setdefault(json.dumps(method_of(row["method"]).choice), []).append(row)
    best = {way: found for way, ours in ways.items() if (found := _of_best_rate(ours))}
    for way, ours in best.items():
        choice = json.loads(way)
        base = best.get(json.dumps(known_as(TrainingWay(SYNCHRONOUS, "float16"), choice.get("optimizer", ""))))
        if ours is not base and base is not None:
            yield {**choice, **_figures_of(ours, base, task)}


def _figures_of(rows: Sequence[Row], base: Sequence[Row], task: str) -> Row:
    """What the rows of one way show, beside those of the synchronous one."""
    once = [row for row in rows if row["budget"] == 1]
    scale = 1.0 + min(row["gap_percent"][0] for row in base if row["budget"] == 1) / 100.0
    values = [100.0 * ((1.0 + gap / 100.0) / scale - 1.0) for row in once for gap in row["gap_percent"]]
    percent = [round(min(values), 3), round(max(values), 3)]
    seeds = max(row["seeds"] for row in once)
    arrives = any(row["targets"][TARGET]["samples"] is not None for row in rows)
    figures = {"percent": percent, "basis": "measured", "task": task, "seeds": seeds}
    return figures if arrives else {**figures, "arrives": False}


def _text_of(table: Row) -> str:
    """The table as a file, with a line for each row."""
    head = json.dumps({**table, "rows": []}, indent=1, ensure_ascii=False).removesuffix("[]\n}")
    lines = ",\n".join(f"  {json.dumps(line)}" for line in table["rows"])
    return f"{head}[\n{lines}\n ]\n}}\n"


def _of_best_rate(rows: Sequence[Row]) -> list[Row]:
    """All rows of the method whose mean gap with the samples of the reference is least; none if there is none."""
    gaps: dict[str, list[float]] = {}
    for row in rows:
        if row["budget"] == 1:
            gaps.setdefault(row["method"], []).append(row["gap_percent"][0])
    best = min(gaps, key=lambda name: min(gaps[name]), default=None)
    return [row for row in rows if row["method"] == best]


def _is_replaced(old: Row, new: Row) -> bool:
    return _key(old) == _key(new) and (old["basis"] == "literature" or old.get("task") == new["task"])


def _key(line: Row) -> Row:
    return {name: value for name, value in line.items() if name not in FIGURES}


def auto_rows(rows: Sequence[Row], peers: int) -> list[Row]:
    """For each task, optimizer and kappa, with peers of equal speed: the method that "auto" chooses, its share of the
    reference's time to the target, that of the best method with the same optimizer, and the ratio of both; None where
    it was not run or never comes there. Of a method at several learning rates the best counts.
    """
    found = []
    rows = [row for row in rows if row["method"] != DILOCO.name]
    kinds = dict.fromkeys((row["task"], method_of(row["method"]).optimizer, row["kappa"]) for row in rows)
    for task, optimizer, kappa in kinds:
        shares: dict[str, float] = {}
        for row in rows:
            share = row["targets"][TARGET]["share_of_reference"]
            is_same = (row["task"], method_of(row["method"]).optimizer, row["kappa"]) == (task, optimizer, kappa)
            if is_same and share is not None:
                shares[row["method"]] = min(share[0], shares.get(row["method"], share[0]))
        if not shares:
            continue
        way = choose(_planned(TASKS[task], kappa, peers, optimizer)).compared.way
        chosen = known_as(way, optimizer)
        alike = [name for name in shares if (each := method_of(name)).usual and each.choice == chosen]
        method = min(alike, key=lambda name: shares[name], default=None)
        mine, best = shares.get(method or ""), min(shares, key=lambda name: shares[name])
        where = {"task": task, "kappa": kappa, "optimizer": optimizer or TASKS[task].optimizer["name"]}
        where |= {"chosen": f"{way.name}, {way.codec}", "method": method}
        figures = {"share_of_reference": mine, "best": best, "best_share": shares[best]}
        found.append({**where, **figures, "ratio": None if mine is None else round(mine / shares[best], 3)})
    return found


def _planned(task: Task, kappa: float, peers: int, optimizer: str) -> PlannedRun:
    """The swarm of the benchmark, as an organiser would describe it."""
    clock = Clock((1.0,) * peers, kappa, task.parameters, task.parameters)
    up, down, auxiliary = (f"{rate / MBIT:g}Mbit" for rate in (HOME_UP, HOME_DOWN, AUXILIARY))
    latency = f"latency={1e3 * LATENCY_S:g}ms"
    described = (
        f"{peers}x(samples_per_s={clock.samples_per_s()[0]:.6f}, micro_batch={MICRO_BATCH}, up={up}, down={down}, "
        f"{latency}); (aux, {auxiliary}, {latency})"
    )
    model = ModelFacts(task.stands_for, (task.parameters,), 1e12, 128, None, "as given")
    section = OptimizerSection.model_validate({"name": optimizer or task.optimizer["name"]})
    volunteers = resolve(parse_peers(described), model, section, GLOBAL_BATCH)
    return PlannedRun(volunteers, model, section, GLOBAL_BATCH, SYNCHRONOUS, "float16")
