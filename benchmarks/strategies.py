"""How long strategies and codecs take to come to a loss, over the links that people have at home.

    python -m benchmarks.strategies --quick --json       # one seed, four methods; 12 minutes of CPU time
    python -m benchmarks.strategies --results FOLDER --methods int8,local-30-int4-r1-m0-warm5 --seeds 1,2,3 --json
    python -m benchmarks.strategies --results FOLDER --only-report --plots docs --write-gaps
    python -m benchmarks.strategies --against diloco --task gpt --samples 1920 --kappa 10
    python -m benchmarks.strategies --against hivemind --against-python PYTHON --task mini --samples 1920 --peers 4

Small language models learn from the World English Bible, by 8 or 16 peers in turn in one process: gradients,
strategies, codecs, residuals and their bytes are real, and time is virtual. A peer's speed is set; the transfer of a
round is what the planner predicts for its bytes on lines of 20 Mbit/s up and 100 Mbit/s down, with one auxiliary peer
at 1 Gbit/s; to it are added the time of the codecs, measured alone on one thread of this machine, and fixed costs of
0.32 s. Lines are slowed down as much as the model is smaller than the one that it stands for (ALBERT-large, GPT-2
124M), so seconds and bytes are that model's. kappa is the transfer of a float16 round divided by the computing of a
global batch of 32 sequences. All runs begin with equal parameters and have equal samples in equal order. The name of
local steps says their settings (`_strategy_methods.method_of`), so that one of them can be changed at a time.

Each run is kept in the folder of `--results` and not repeated, so a long series can be cut into pieces. `rows` has for
each task, kappa and method, as mean, least and most of the seeds:

    budget             times the samples of the reference that the run had, and for which its learning rate falls
    gap_percent        held-out loss at equal samples, relative to synchronous float16 (a result with budget 1 alone)
    relative_time      seconds a sample, relative to computing alone; hours of the whole run
    too_short          fewer than 30 rounds: no result
    targets            for the losses that the reference has after 60, 80 and 95 % of its samples: hours, that as a
                       share of the reference's, samples, and gigabytes up and down of a home in the mean; null where
                       a target is not reached

`bytes` compares the encoded bytes with what formulas give. `auto` says what strategy = "auto" chooses, and how many
times the best method's time to the middle target that takes. `--against diloco` adds a loop of plain torch, and minga's
with the same settings beside it; `against` says how far their losses are apart. `--against hivemind` runs the same
model on the same batches by hivemind's optimizer, with averaged gradients and with local updates, in processes of an
interpreter that has hivemind 1.1.12 and minga. Its loss at equal samples and its bytes can be compared with minga's in
`against`; its seconds cannot, which are real, of a network on one machine, where minga's are of a clock.

What this cannot show: large models, for which methods that step locally lose less; data centres; real loss of packets.

ok: bytes within 1 % of the formulas and headers; the losses of both loops within 1e-5 after the first round; hivemind's
peers had as many samples as minga's.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from benchmarks._report import emit, finish, note, parser
from benchmarks._strategy_gaps import auto_rows, write_gaps
from benchmarks._strategy_hivemind import METHODS as HIVEMIND
from benchmarks._strategy_hivemind import has_hivemind, hivemind_row, run_hivemind
from benchmarks._strategy_methods import DILOCO, LOCAL, OTHERS, OURS, QUICK, REFERENCE, Method, method_of
from benchmarks._strategy_run import EVALUATIONS, Cell, Record, run_cell
from benchmarks._strategy_table import Row, Timeline, bytes_row, over_seeds, text, write_plots
from benchmarks._strategy_tasks import GLOBAL_BATCH, TASKS
from minga.core.files import write_atomically

FULL_SAMPLES, QUICK_SAMPLES = 130_000, 20_000
SPEEDS: Final = {"equal": (1.0,), "mixed": (1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0)}
APART: Final = 1e-5
"""How far the losses of two loops may be apart that differ by the rounding of float32: 6e-8 for each of about five
operations in each of 30 inner steps. In later rounds it grows to 1e-4, as any change of a parameter does.
"""
VERSION: Final = 2
"""Raised when records of the same cell become others."""


class Results:
    """Records by cell, one file each in `folder`, and the data that the recipes made. What is missing is run by so many
    `processes`; with 0 it stays missing.
    """

    def __init__(self, folder: Path, *, processes: int = 1) -> None:
        self.folder, self.processes = folder, processes

    def get(self, cell: Cell) -> Record | None:
        """What a run of the cell left; None if there was none."""
        path = self._path(cell)
        return json.loads(path.read_text("utf-8")) if path.exists() else None

    def fill(self, cells: Sequence[Cell]) -> None:
        """Run those cells that have no record yet."""
        missing = [cell for cell in dict.fromkeys(cells) if not self._path(cell).exists()] if self.processes else []
        for first in {cell.task: cell for cell in missing}.values():
            first.subject(self.folder)  # the recipe's files, before several processes want them
        if self.processes < 2:
            for cell in missing:
                self.keep(cell, *_timed(cell, self.folder))
            return
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.processes, mp_context=context) as pool:
            running = {pool.submit(_timed, cell, self.folder): cell for cell in missing}
            for done in as_completed(running):
                self.keep(running[done], *done.result())

    def keep(self, cell: Cell, record: Record, seconds: float) -> None:
        """Keep the record of a run that took so many seconds of computing."""
        write_atomically(self._path(cell), json.dumps({**record, "cell": asdict(cell), "took_s": seconds}).encode())
        note(f"{cell.task} {cell.method.name} seed {cell.seed} kappa {cell.kappa}: {seconds:.0f} s of computing")

    def _path(self, cell: Cell) -> Path:
        known = {name: getattr(cell.method, name) for name in ("spec", "batches", "is_plain", "rate", "warm")}
        said = json.dumps([VERSION, {**asdict(cell), "method": known}, asdict(TASKS[cell.task])], sort_keys=True)
        mark = blake3(said.encode()).hexdigest(length=6)
        return self.folder / f"{cell.task}-{cell.method.name}-{cell.samples}-seed{cell.seed}-{mark}.json"


def _timed(cell: Cell, folder: Path) -> tuple[Record, float]:
    begun = time.process_time()
    return run_cell(cell, folder), round(time.process_time() - begun, 1)


@dataclass(frozen=True)
class Series:
    """What is compared: each method with the first, the reference, at each kappa, for each task. `budgets` say how many
    times the reference's samples a method gets, each with a schedule of its own.
    """

    results: Results
    tasks: Sequence[str]
    methods: list[Method]
    seeds: Sequence[int]
    kappas: Sequence[float]
    speeds: tuple[float, ...]
    samples: int
    budgets: Sequence[int] = (1,)

    def run(self) -> Iterator[tuple[Row, Timeline]]:
        """The figures of all runs that are there or can be run, each with the first seed's run."""
        reference = self.methods[0]
        wanted = [
            (task, kappa, method, budget)
            for task, kappa, method in product(self.tasks, self.kappas, self.methods)
            for budget in ((1,) if method is reference else self.budgets)
        ]
        self.results.fill([self._cell(*each, seed) for each in wanted for seed in self.seeds])
        for task, kappa, method, budget in wanted:
            pairs = []
            for seed in self.seeds:
                cells = [
                    self._cell(task, kappa, method, budget, seed),
                    self._cell(task, kappa, reference, 1, seed),
                ]
                runs = [Timeline(cell, r, kappa) for cell in cells if (r := self.results.get(cell)) is not None]
                pairs += [runs] if len(runs) == 2 else []
            if pairs:
                where = {"task": task, "kappa": kappa, "method": method.name, "budget": budget, "seeds": len(pairs)}
                yield {**where, **over_seeds([run.row(base) for run, base in pairs])}, pairs[0][0]

    def _cell(self, task: str, kappa: float, method: Method, budget: int, seed: int) -> Cell:
        """One run. Where mathematics do not depend on kappa it is the same for all of them."""
        return Cell(task, method, seed, self.speeds, budget * self.samples, kappa if method.is_overlapped else None)


def speeds_of(kind: str, peers: int) -> tuple[float, ...]:
    """Relative speeds: all equal, or as 1:1:1:1:2:2:4:4."""
    return tuple(SPEEDS[kind][i * len(SPEEDS[kind]) // peers] for i in range(peers))


def against_rows(runs: Sequence[Timeline]) -> list[Row]:
    """How far the losses of minga's loop and the plain one are apart, where both were run: after the first round, and
    at the end, to which rounding grows.
    """
    curves = {(run.cell.task, run.cell.samples, run.cell.method): run.record["curve"] for run in runs}
    found = []
    for (task, samples, method), plain in curves.items():
        if method is DILOCO and (ours := curves.get((task, samples, OURS))) is not None:
            first, last = (abs(ours[i]["loss"] / plain[i]["loss"] - 1) for i in (1, -1))
            ends = {"ours": ours[-1]["loss"], "diloco": plain[-1]["loss"]}
            found.append(
                {"task": task, "samples": samples, **ends, "apart": last, "at_first": first, "ok": first <= APART}
            )
    return found


def hivemind_rows(series: Series, python: str) -> list[Row]:
    """Each of hivemind's methods beside minga's, for each task and seed; its peers are processes of `python`."""
    found = []
    for task, seed, name in product(series.tasks, series.seeds, HIVEMIND):
        cells = [Cell(task, method_of(each), seed, series.speeds, series.samples) for each in (name, REFERENCE)]
        records = [record for cell in cells if (record := series.results.get(cell)) is not None]
        if len(records) == len(cells):
            found.append(hivemind_row(cells[0], run_hivemind(cells[0], series.results.folder, python), *records))
    return found


def _options() -> Any:
    options = parser(__doc__)
    options.add_argument(
        "--quick", action="store_true", help="one task and seed, 20,000 sequences, four methods, kappa 1"
    )
    options.add_argument("--task", default=",".join(TASKS), help="names, separated by commas")
    options.add_argument("--methods", help="names, separated by commas")
    options.add_argument("--against", choices=["diloco", "hivemind"], help="the same by others, beside minga's")
    options.add_argument("--against-python", default=sys.executable, help="an interpreter that has hivemind and minga")
    options.add_argument("--seeds", default="1,2,3")
    options.add_argument("--kappa", default="0.1,1,10")
    options.add_argument("--speeds", default="equal", choices=list(SPEEDS))
    options.add_argument("--peers", type=int, default=8)
    options.add_argument("--samples", type=int, help="sequences of each run")
    options.add_argument(
        "--budgets", default="1", help="how many times the reference's sequences methods get, with their own schedules"
    )
    options.add_argument("--results", type=Path, help="folder that keeps runs; what is there is not run again")
    options.add_argument("--only-report", action="store_true", help="run nothing, report what the folder has")
    options.add_argument("--processes", type=int, default=2, help="runs at a time, of one thread each")
    options.add_argument("--plots", type=Path, help="folder for a picture of each task: loss over hours")
    options.add_argument("--write-gaps", action="store_true", help="keep the gaps in the table of `minga plan`")
    given = options.parse_args()
    if given.quick:
        given.task, given.seeds, given.kappa = "albert", "1", "1"
    if given.against and given.methods:
        options.error("--against has methods of its own: leave --methods out")
    usual = {"diloco": (REFERENCE,), "hivemind": HIVEMIND}.get(given.against, (*OTHERS, *LOCAL))
    usual = QUICK if given.quick and not given.against else usual
    given.task, given.methods = given.task.split(","), given.methods.split(",") if given.methods else usual
    given.loops = (OURS, DILOCO) if given.against == "diloco" else ()
    given.samples = given.samples or (QUICK_SAMPLES if given.quick or given.against else FULL_SAMPLES)
    given.budgets = [int(budget) for budget in given.budgets.split(",")]
    most = EVALUATIONS * GLOBAL_BATCH * OURS.batches
    if given.loops and given.samples * max(given.budgets) > most:
        options.error(f"both loops are compared after their first round, before rounding grows: at most {most} samples")
    if unknown := set(given.task) - set(TASKS):
        options.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}")
    try:
        given.methods = [method_of(name) for name in dict.fromkeys([REFERENCE, *given.methods])]
    except KeyError as error:
        options.error(f"there is no {error}; there are {', '.join((*OTHERS, *LOCAL))}, and others like the last ones")
    if given.write_gaps and given.speeds != "equal":
        options.error("the table of `minga plan` is of peers of equal speed: leave --speeds out")
    if given.against == "hivemind" and not given.only_report and not has_hivemind(given.against_python):
        options.error("--against-python has to name an interpreter that has hivemind, and what minga needs")
    if given.against == "hivemind" and (given.speeds != "equal" or GLOBAL_BATCH % given.peers):
        options.error(f"--against hivemind is for peers of equal speed, which divide a batch of {GLOBAL_BATCH}")
    return given


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="minga-strategies-") as temporary:
        series = Series(
            Results(options.results or Path(temporary), processes=0 if options.only_report else options.processes),
            options.task,
            [*options.methods, *options.loops],
            [int(seed) for seed in options.seeds.split(",")],
            [float(kappa) for kappa in options.kappa.split(",")],
            speeds_of(options.speeds, options.peers),
            options.samples,
            options.budgets,
        )
        found = list(series.run())
        against = (
            hivemind_rows(series, options.against_python)
            if options.against == "hivemind" and not options.only_report
            else []
        )
    rows, runs = [row for row, _ in found], [run for _, run in found]
    for row in rows:
        emit(**row)
    if options.write_gaps:
        write_gaps(rows)
    if options.plots is not None:
        write_plots(runs, options.plots)
    sizes = {(each["task"], each["method"]): each for run in runs if (each := bytes_row(run)) is not None}
    against += against_rows(runs)
    return finish(
        "strategies",
        bool(rows) and all(row["ok"] for row in [*sizes.values(), *against]),
        options.json,
        samples=series.samples,
        peers=options.peers,
        bytes=list(sizes.values()),
        auto=auto_rows(rows, options.peers) if options.speeds == "equal" else [],
        against=against,
        rows=rows if options.json else "\n" + text(rows),
    )


if __name__ == "__main__":
    raise SystemExit(main())
