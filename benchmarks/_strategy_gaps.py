"""The table of losses at equal samples that `minga plan` reads: what a strategy costs beside its time.

Each line is a choice of strategy and codecs with the gap that was measured: held-out loss relative to synchronous
float16 at the same samples, in percent, mean, least and most of the seeds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks._strategy_figures import Timeline
from benchmarks._strategy_methods import Method
from minga.core.files import write_atomically

PATH: Final = Path(__file__).resolve().parents[1] / "src/minga/simulation/forecast/strategy_gaps.json"
KEY: Final = ("method", "task", "peers", "speeds", "kappa")

Row = dict[str, Any]


def write_gaps(found: Sequence[tuple[Row, Timeline]], path: Path = PATH) -> int:
    """Put the gaps of these rows in the place of those of the same methods and circumstances; how many there are now.

    Runs that are too short for a result are left out.
    """
    known = {_key(line): line for line in (json.loads(path.read_text("utf-8")) if path.exists() else [])}
    for row, run in found:
        if not row["too_short"]:
            line = _line(row, run)
            known[_key(line)] = line
    lines = [json.dumps(known[key]) for key in sorted(known)]
    write_atomically(path, ("[\n  " + ",\n  ".join(lines) + "\n]\n").encode())
    return len(lines)


def _line(row: Row, run: Timeline) -> Row:
    gap = row["gap_percent"]
    return {
        "method": row["method"],
        **_choice(run.cell.method),
        "task": row["task"],
        "parameters": run.record["numel"],
        "peers": len(run.cell.speeds),
        "speeds": row["speeds"],
        "kappa": run.cell.kappa,
        "samples": run.cell.samples,
        "global_batch": run.cell.target_batch // run.cell.method.batches,
        "seeds": row["seeds"],
        "gap_percent": gap if isinstance(gap, list) else [gap, gap, gap],
    }


def _choice(method: Method) -> Row:
    averaging = method.spec.get("averaging", {})
    strategy = method.spec.get("training", {}).get("strategy", "synchronous")
    return {
        "strategy": strategy,
        "settings": dict(method.spec.get("strategy", {}).get(strategy, {})),
        "codec": method.codec,
        "download_codec": method.download_codec,
        "sketch": averaging.get("sketch", "identity").partition("(")[0],
        "batches_a_round": method.batches,
    }


def _key(line: Row) -> tuple[str, ...]:
    return tuple(str(line[name]) for name in KEY)
