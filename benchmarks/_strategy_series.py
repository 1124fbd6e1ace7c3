"""A series of `benchmarks.strategies`: which runs it consists of, how methods are tuned, and the rows of its report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks._strategy_cells import Results
from benchmarks._strategy_figures import Timeline, figures, over_seeds
from benchmarks._strategy_methods import METHODS, REFERENCE, Method
from benchmarks._strategy_run import Cell, facts_of_method, is_overlapped
from benchmarks._strategy_tasks import TASKS

KAPPAS: Final = (0.1, 1.0, 10.0)
MIXED: Final = (1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0)
TUNING_SEED: Final = 0
"""No run of the report has it."""
BYTES_LIMIT, TIMES_LIMIT = 0.01, 0.05
HEADER_BYTES: Final = 64

Row = dict[str, Any]
Chosen = Mapping[str, Sequence[Method]]
"""The methods of each task."""


def speeds_of(kind: str, peers: int) -> tuple[float, ...]:
    """Relative speeds: all equal, or as 1:1:1:1:2:2:4:4."""
    return (1.0,) * peers if kind == "equal" else tuple(MIXED[i * len(MIXED) // peers] for i in range(peers))


@dataclass(frozen=True)
class Series:
    """What is compared: each method with the reference, at each kappa, for each task and kind of speeds."""

    tasks: Sequence[str]
    methods: Sequence[Method]
    seeds: Sequence[int]
    kappas: Sequence[float]
    speeds: Sequence[str]
    peers: int
    samples: int
    churn: bool = False

    def cell(self, task: str, kind: str, method: Method, kappa: float, seed: int) -> Cell:
        """One run. Where mathematics do not depend on kappa it is the same for all of them."""
        own = kappa if is_overlapped(method) else None
        speeds = speeds_of(kind, self.peers)
        return Cell(task, method, seed, speeds, self.samples, own, self.churn and own is None)

    def cells(self, chosen: Chosen) -> list[Cell]:
        """All runs."""
        return [
            self.cell(task, kind, method, kappa, seed)
            for task in self.tasks
            for kind in self.speeds
            for method in chosen[task]
            for kappa in self.kappas
            for seed in self.seeds
        ]

    def as_given(self) -> Chosen:
        """The reference, then the methods, as they are."""
        methods = tuple(dict.fromkeys([METHODS[REFERENCE], *self.methods]))
        return dict.fromkeys(self.tasks, methods)

    def tuned(self, results: Results, samples: int) -> tuple[Chosen, list[Row]]:
        """Each method with the best settings of its trials, of so many samples each, and all of these trials."""
        chosen: dict[str, list[Method]] = {}
        told: list[Row] = []
        for task, methods in self.as_given().items():
            rate = float(TASKS[task].optimizer["learning_rate"])
            tried = [[self._trial(task, trial, samples) for trial in method.trials(rate)] for method in methods]
            results.fill([cell for cells in tried for cell in cells])
            chosen[task] = []
            for cells in tried:
                losses = [_final_loss(results, cell) for cell in cells]
                best = cells[losses.index(min(losses))].method
                chosen[task].append(best)
                told += [
                    {"task": task, "method": cell.method.name, "spec": cell.method.spec, "loss": loss}
                    | {"chosen": cell.method is best}
                    for cell, loss in zip(cells, losses, strict=True)
                ]
        return chosen, told

    def _trial(self, task: str, trial: Method, samples: int) -> Cell:
        own = 1.0 if is_overlapped(trial) else None
        return Cell(task, trial, TUNING_SEED, speeds_of("equal", self.peers), samples, own, evaluations=1)

    def rows(self, results: Results, chosen: Chosen) -> Iterator[tuple[Row, Timeline]]:
        """The figures of all runs that are there, each with the first seed's run."""
        for task in self.tasks:
            for kind in self.speeds:
                for kappa in self.kappas:
                    for method in chosen[task]:
                        pairs = list(self._pairs(results, task, kind, kappa, method, chosen[task][0]))
                        if pairs:
                            row = {"task": task, "speeds": kind, "kappa": kappa, "method": method.name}
                            found = over_seeds([figures(run, reference) for run, reference in pairs])
                            yield {**row, "seeds": len(pairs), **found}, pairs[0][0]

    def _pairs(
        self, results: Results, task: str, kind: str, kappa: float, method: Method, reference: Method
    ) -> Iterator[tuple[Timeline, Timeline]]:
        for seed in self.seeds:
            both = [self.cell(task, kind, each, kappa, seed) for each in (method, reference)]
            records = [results.get(cell) for cell in both]
            runs = [Timeline(cell, each, kappa) for cell, each in zip(both, records, strict=True) if each is not None]
            if len(runs) == len(both):
                yield runs[0], runs[1]


def _final_loss(results: Results, cell: Cell) -> float:
    """Infinite for a run that is not there, or came to no number."""
    record = results.get(cell)
    loss = math.nan if record is None else float(record["curve"][-1]["loss"])
    return loss if math.isfinite(loss) else math.inf


# ---- what is judged


def bytes_row(run: Timeline) -> Row | None:
    """Encoded bits an element against the formula, on both ways; None without a formula."""
    method, numel, fragments = run.cell.method, run.record["numel"], facts_of_method(run.cell.method).fragments
    rounds = run.record["rounds"]
    rounds = rounds[: max(1, len(rounds) // fragments) * fragments]  # each fragment as often
    sent = [size for each in rounds for size, w in zip(each["up"], each["weights"], strict=True) if w]
    got = [each["down"] for each in rounds]
    bits = 8 * fragments / numel
    measured = {"up": bits * sum(sent) / len(sent), "down": bits * sum(got) / len(got)}
    expected = {"up": method.up_bits, "down": method.down_bits}
    row: Row = {"method": method.name, "task": run.cell.task, "ok": True}
    for way, formula in expected.items():
        if formula is not None:
            row[f"{way}_bits"] = [round(measured[way], 4), formula]
            row["ok"] &= abs(measured[way] - formula) <= BYTES_LIMIT * formula + 8 * HEADER_BYTES / numel
    return row if len(row) > 3 else None


def times_row(run: Timeline) -> Row | None:
    """The time of a sample relative to computing alone, without fixed costs and codecs, against what is expected."""
    method = run.cell.method
    expected = dict(zip(KAPPAS, method.times, strict=False)).get(run.kappa)
    if expected is None or is_overlapped(method):
        return None
    found = Timeline(run.cell, run.record, run.kappa, bare=True).relative_time
    near = abs(found / expected - 1) <= TIMES_LIMIT
    row = {"method": method.name, "task": run.cell.task, "kappa": run.kappa}
    return {**row, "relative_time": [round(found, 4), expected], "ok": near}


def remarks(rows: Sequence[Row]) -> list[str]:
    """What looks like a badly tuned reference, and runs that are too short."""
    found = []
    for row in rows:
        gap = row["gap_percent"][0] if isinstance(row["gap_percent"], list) else row["gap_percent"]
        where = f"{row['task']}, {row['speeds']} speeds, kappa {row['kappa']:g}: {row['method']}"
        if row["too_short"]:
            found.append(f"{where}: fewer than 30 rounds, no result")
        elif METHODS[row["method"]].batches > 1 and gap < 0:
            found.append(f"{where} is {-gap:.2f} % ahead at equal samples: is the reference well tuned?")
        elif row["method"] == "int8" and abs(gap) > 1:
            found.append(f"{where} is {gap:.2f} % off at equal samples: is the reference well tuned?")
    return found
