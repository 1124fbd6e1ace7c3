"""What `minga plan` and "auto" learn from `benchmarks.strategies`: the table of gaps, and how good the choices are.

Held-out loss relative to synchronous float16 at the same samples, in percent, least and most of all seeds of a task,
and whether the method came to the loss that the reference has after 80 % of its samples, with any budget. What was
measured takes the place of what the literature says about the same choice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks._strategy_clock import AUXILIARY, HOME_DOWN, HOME_UP, LATENCY_S, MBIT, Clock
from benchmarks._strategy_methods import DILOCO, REFERENCE, known_as, method_of
from benchmarks._strategy_tasks import GLOBAL_BATCH, TASKS, Task
from minga.core.files import write_atomically
from minga.core.spec.sections import OptimizerSection
from minga.planner.auto_choice import choose
from minga.planner.model_facts import ModelFacts
from minga.planner.peer_text import parse_peers
from minga.planner.planned_run import PlannedRun, resolve
from minga.planner.ways import SYNCHRONOUS

PATH: Final = Path(__file__).resolve().parents[1] / "src/minga/planner/strategy_gaps.json"
TARGET: Final = "80%"
MICRO_BATCH: Final = 4
FIGURES: Final = ("percent", "basis", "task", "seeds", "arrives")

Row = dict[str, Any]


def write_gaps(rows: Sequence[Row], path: Path = PATH) -> int:
    """Put the gaps of these rows, of peers of equal speed, into the table, whose other rows stay; how many rows are
    measured now. Runs count that are long enough for a result, with the settings that plans mean.
    """
    table = json.loads(path.read_text("utf-8"))
    good = [row for row in rows if row["method"] not in (REFERENCE, DILOCO.name) and not row["too_short"]]
    good = [row for row in good if method_of(row["method"]).usual]
    for task, name in dict.fromkeys((row["task"], row["method"]) for row in good if row["budget"] == 1):
        ours = [row for row in good if (row["task"], row["method"]) == (task, name)]
        once = [row for row in ours if row["budget"] == 1]
        values, seeds = [gap for row in once for gap in row["gap_percent"]], max(row["seeds"] for row in once)
        line = {**method_of(name).choice, "percent": [min(values), max(values)], "basis": "measured", "task": task}
        arrives = any(row["targets"][TARGET]["samples"] is not None for row in ours)
        line |= {"seeds": seeds, **({} if arrives else {"arrives": False})}
        table["rows"] = [each for each in table["rows"] if not _is_replaced(each, line)] + [line]
    head = json.dumps({**table, "rows": []}, indent=1, ensure_ascii=False).removesuffix("[]\n}")
    lines = ",\n".join(f"  {json.dumps(line)}" for line in table["rows"])
    write_atomically(path, f"{head}[\n{lines}\n ]\n}}\n".encode())
    return sum(line["basis"] == "measured" for line in table["rows"])


def _is_replaced(old: Row, new: Row) -> bool:
    return _key(old) == _key(new) and (old["basis"] == "literature" or old.get("task") == new["task"])


def _key(line: Row) -> Row:
    return {name: value for name, value in line.items() if name not in FIGURES}


def auto_rows(rows: Sequence[Row], peers: int) -> list[Row]:
    """For each task and kappa, with peers of equal speed: the method that "auto" chooses, its share of the reference's
    time to the target, that of the best method with the same optimizer, and the ratio of both; None where it was not
    run or never comes there.
    """
    found = []
    for task, kappa in dict.fromkeys((row["task"], row["kappa"]) for row in rows):
        shares: dict[str, float] = {}
        for row in rows:
            share = row["targets"][TARGET]["share_of_reference"]
            is_same = (row["task"], row["kappa"]) == (task, kappa) and "muon" not in row["method"]
            if is_same and share is not None:
                shares[row["method"]] = min(share[0], shares.get(row["method"], share[0]))
        way = choose(_planned(TASKS[task], kappa, peers)).compared.way
        run = [row["method"] for row in rows if row["method"] != DILOCO.name]
        alike = [name for name in run if (each := method_of(name)).usual and each.choice == known_as(way)]
        method = alike[0] if alike else None
        mine, best = shares.get(method or ""), min(shares, key=lambda name: shares[name])
        where = {"task": task, "kappa": kappa, "chosen": f"{way.name}, {way.codec}", "method": method}
        figures = {"share_of_reference": mine, "best": best, "best_share": shares[best]}
        found.append({**where, **figures, "ratio": None if mine is None else round(mine / shares[best], 3)})
    return found


def _planned(task: Task, kappa: float, peers: int) -> PlannedRun:
    """The swarm of the benchmark, as an organiser would describe it."""
    clock = Clock((1.0,) * peers, kappa, task.parameters, task.parameters)
    up, down, auxiliary = (f"{rate / MBIT:g}Mbit" for rate in (HOME_UP, HOME_DOWN, AUXILIARY))
    latency = f"latency={1e3 * LATENCY_S:g}ms"
    described = (
        f"{peers}x(samples_per_s={clock.samples_per_s()[0]:.6f}, micro_batch={MICRO_BATCH}, up={up}, down={down}, "
        f"{latency}); (aux, {auxiliary}, {latency})"
    )
    model = ModelFacts(task.stands_for, (task.parameters,), 1e12, 128, None, "as given")
    optimizer = OptimizerSection(name="adamw")
    volunteers = resolve(parse_peers(described), model, optimizer, GLOBAL_BATCH)
    return PlannedRun(volunteers, model, optimizer, GLOBAL_BATCH, SYNCHRONOUS, "float16")
