"""The same all-reduce by other systems, run by scripts from outside of this repository.

The scripts (`hivemind_allreduce.py`, `gloo_allreduce.py`) take `--peers`, `--mib`, `--rounds`, `--warmup` and
`--quiet-wait`, and print one line of JSON for each round. They run with an interpreter that has what they need.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import _machine
from benchmarks._report import note, spread

SCRIPTS = {
    "hivemind": ("hivemind_allreduce.py", ["--part-kib", "1024"]),
    "gloo": ("gloo_allreduce.py", []),
}
CODECS = {"hivemind": {"float32": "none", "float16": "fp16", "int8": "u8"}, "gloo": {"float32": "", "float16": ""}}
"""What comes closest to our codecs; gloo always sends float32, and takes no less for it."""

DEFAULT_FOLDER = Path(__file__).resolve().parents[2] / "shared" / "bench"
RUN_LIMIT_S = 240.0
FIGURES = ("allreduce_s", "cpu_allreduce_s")


class Rival:
    """Another system, and the rounds that it has done so far."""

    def __init__(self, name: str, folder: Path, python: str) -> None:
        script, options = SCRIPTS[name]
        self.name, self.rows = name, list[dict[str, Any]]()
        self._command = [python, str(folder / script), *options]

    def run(self, arguments: Any, rounds: int) -> list[dict[str, Any]]:
        """Do some rounds; returns their rows, warm-up left out."""
        command = [*self._command, "--peers", str(arguments.peers), "--mib", str(arguments.mib)]
        command += ["--rounds", str(rounds), "--warmup", "1", "--quiet-wait", str(arguments.quiet_wait)]
        if codec := CODECS[self.name].get(arguments.codec):
            command += ["--compression", codec]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            output, errors = process.communicate(timeout=RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # its peers go with it
            output, errors = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
        rows = [row for row in map(_parsed, output.splitlines()) if "allreduce_s" in row and row.get("warmup") is False]
        if not rows:
            note(f"{self.name} finished no round: {errors.strip()[-500:]}")
        self.rows += rows
        return rows


def rivals(arguments: Any) -> list[Rival]:
    """Those asked for whose script is there and that know the codec; a note tells of the others."""
    chosen = []
    for name in filter(None, arguments.against.split(",")):
        if name not in SCRIPTS:
            raise SystemExit(f"--against knows {', '.join(SCRIPTS)}, not {name!r}")
        script = Path(arguments.against_scripts) / SCRIPTS[name][0]
        if not script.is_file():
            note(f"{name} is skipped: there is no {script.name} in the folder given by --against-scripts")
        elif arguments.codec not in CODECS[name]:
            note(f"{name} is skipped: it has nothing like {arguments.codec}")
        else:
            chosen.append(Rival(name, Path(arguments.against_scripts), arguments.against_python))
    return chosen


def undisturbed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that nobody disturbed; all of them if all were disturbed."""
    known = list(rows)
    return [row for row in known if row["others_share"] <= _machine.QUIET_SHARE] or known


def compare(rival: Rival, own_rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many times our time and CPU seconds the rival takes (medians), and its figures; None without rounds."""
    theirs, ours = undisturbed(rival.rows), undisturbed(own_rows)
    ratios: list[float | None] = [None, None]
    if theirs:
        ratios = [round(_median(theirs, figure) / max(1e-9, _median(ours, figure)), 3) for figure in FIGURES]
    return {
        "time_ratio": ratios[0],
        "cpu_ratio": ratios[1],
        **{figure: spread(row[figure] for row in theirs) for figure in FIGURES},
        "rounds": len(rival.rows),
        "rounds_quiet": sum(row["others_share"] <= _machine.QUIET_SHARE for row in rival.rows),
    }


def _median(rows: list[dict[str, Any]], figure: str) -> float:
    return statistics.median(float(row[figure]) for row in rows)


def _parsed(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}
