"""The table of losses at equal samples that `minga plan` reads: what a way to train costs beside its time.

Held-out loss relative to synchronous float16 at the same samples, in percent, least and most of all seeds of a task,
and whether the method came to the loss that the reference has after 80 % of its samples, with any budget. What was
measured takes the place of what the literature says about the same choice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks._strategy_figures import Timeline
from benchmarks._strategy_methods import METHODS, Method
from minga.core.files import write_atomically

PATH: Final = Path(__file__).resolve().parents[1] / "src/minga/planner/strategy_gaps.json"
PLANNED: Final = (
    *("float32", "int8", "int4", "adaptive", "delayed", "delayed-int8", "topk", "local-20", "local-30-int4"),
    *("local-30-int4-overlap", "local-100", "local-100-int4", "streaming-100-int4", "leader", "elastic"),
)
"""Methods that plans can tell from one another."""

TARGET: Final = "80%"
FIGURES: Final = ("percent", "basis", "task", "seeds", "arrives")

Row = dict[str, Any]


def write_gaps(found: Sequence[tuple[Row, Timeline]], path: Path = PATH) -> int:
    """Put the gaps of these rows into the table, whose other rows stay; how many rows are measured now.

    Peers of equal speed count, and runs that are long enough for a result.
    """
    table = json.loads(path.read_text("utf-8"))
    gaps: dict[tuple[str, str], list[float]] = {}
    seeds, arrived = dict[tuple[str, str], int](), set[tuple[str, str]]()
    for row, _ in found:
        if row["method"] not in PLANNED or row["speeds"] != "equal" or row["too_short"]:
            continue
        of = row["task"], row["method"]
        if row["targets"][TARGET]["samples"] is not None:
            arrived.add(of)
        if row["budget"] == 1:
            gap = row["gap_percent"]
            gaps.setdefault(of, []).extend(gap if isinstance(gap, list) else [gap])
            seeds[of] = max(seeds.get(of, 0), row["seeds"])
    for (task, name), values in gaps.items():
        percent = [min(values), max(values)]
        line = {**choice_of(METHODS[name]), "percent": percent, "basis": "measured", "task": task}
        line |= {"seeds": seeds[task, name], **({} if (task, name) in arrived else {"arrives": False})}
        table["rows"] = [each for each in table["rows"] if not _is_replaced(each, line)] + [line]
    before, after = ({**table, "rows": []}, table["rows"])
    head = json.dumps(before, indent=1, ensure_ascii=False).removesuffix("[]\n}")
    lines = ",\n".join(f"  {json.dumps(line)}" for line in after)
    write_atomically(path, f"{head}[\n{lines}\n ]\n}}\n".encode())
    return sum(line["basis"] == "measured" for line in after)


def choice_of(method: Method) -> Row:
    """What plans know a method by; what is as usual is left out."""
    strategy = method.spec.get("training", {}).get("strategy", "synchronous")
    settings = method.spec.get("strategy", {}).get(strategy, {})
    usual = {"download_codec": None, "batches": 1, "overlap": False, "fragments": 1}
    said = {
        "download_codec": method.download_codec,
        "batches": method.batches,
        "overlap": settings.get("overlap", False),
        "fragments": settings.get("fragments", 1),
    }
    changed = {name: value for name, value in said.items() if value != usual[name]}
    return {"strategy": strategy, "codec": method.codec, **changed}


def _is_replaced(old: Row, new: Row) -> bool:
    return _key(old) == _key(new) and (old["basis"] == "literature" or old.get("task") == new["task"])


def _key(line: Row) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((name, value) for name, value in line.items() if name not in FIGURES))
