"""A series of `benchmarks.strategies`: which runs it consists of, how methods are tuned, and the rows of its report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from benchmarks._strategy_cells import Results
from benchmarks._strategy_figures import Timeline, figures, over_seeds
from benchmarks._strategy_methods import METHODS, REFERENCE, Method
from benchmarks._strategy_run import Cell, facts_of_method, is_overlapped
from benchmarks._strategy_tasks import TASKS, tensors_of
from minga.averaging.codecs.dense import codec
from minga.averaging.compressors.sparse_codec import BLOCK_ELEMENTS

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
    budgets: Sequence[int] = (1,)
    """How many times the reference's samples a method gets, each with a schedule of its own."""

    def cell(self, task: str, kind: str, method: Method, kappa: float, seed: int, budget: int = 1) -> Cell:
        """One run. Where mathematics do not depend on kappa it is the same for all of them."""
        own = kappa if is_overlapped(method) else None
        speeds = speeds_of(kind, self.peers)
        return Cell(task, method, seed, speeds, budget * self.samples, own, self.churn and own is None)

    def budgets_of(self, method: Method) -> Sequence[int]:
        """The reference has one."""
        return (1,) if method.name == REFERENCE else self.budgets

    def cells(self, chosen: Chosen) -> list[Cell]:
        """All runs."""
        return [
            self.cell(task, kind, method, kappa, seed, budget)
            for task in self.tasks
            for kind in self.speeds
            for method in chosen[task]
            for budget in self.budgets_of(method)
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
        for task, kind, kappa in product(self.tasks, self.speeds, self.kappas):
            for method in chosen[task]:
                for budget in self.budgets_of(method):
                    where = {"task": task, "speeds": kind, "kappa": kappa, "method": method.name, "budget": budget}
                    cells = [
                        (
                            self.cell(task, kind, method, kappa, seed, budget),
                            self.cell(task, kind, chosen[task][0], kappa, seed),
                        )
                        for seed in self.seeds
                    ]
                    pairs = [pair for both in cells if (pair := _timelines(results, both, kappa)) is not None]
                    if pairs:
                        found = over_seeds([figures(run, reference) for run, reference in pairs])
                        yield {**where, "seeds": len(pairs), **found}, pairs[0][0]


def _timelines(results: Results, cells: tuple[Cell, Cell], kappa: float) -> tuple[Timeline, Timeline] | None:
    """A run and its reference, if both are there."""
    records = [results.get(cell) for cell in cells]
    first, second = records
    if first is None or second is None:
        return None
    return Timeline(cells[0], first, kappa), Timeline(cells[1], second, kappa)


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
    for way, bits_alone in expected.items():
        if bits_alone is not None:
            formula = (
                bits_alone if not codec(method.codec).needs_residual else _with_small_ones(run.cell.task, bits_alone)
            )
            row[f"{way}_bits"] = [round(measured[way], 4), formula]
            row["ok"] &= abs(measured[way] - formula) <= BYTES_LIMIT * formula + 8 * HEADER_BYTES / numel
    return row if len(row) > 3 else None


def _with_small_ones(task: str, bits: float) -> float:
    """Bits an element where tensors below one block of a sparse codec travel whole, as float16."""
    tensors = tensors_of(task)
    small = sum(numel for numel in tensors if numel < BLOCK_ELEMENTS) / sum(tensors)
    return round(bits + (16.0 - bits) * small, 4)


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
        elif METHODS[row["method"]].batches > 1 and row["budget"] == 1 and gap < 0:
            found.append(f"{where} is {-gap:.2f} % ahead at equal samples: is the reference well tuned?")
        elif row["method"] == "int8" and row["budget"] == 1 and abs(gap) > 1:
            found.append(f"{where} is {gap:.2f} % off at equal samples: is the reference well tuned?")
    return found


def rankings(rows: Sequence[Row]) -> list[Row]:
    """Which methods come to the targets first where communication weighs most, and which never come there."""
    found = []
    most = max((row["kappa"] for row in rows), default=0.0)
    for task, kind in dict.fromkeys((row["task"], row["speeds"]) for row in rows):
        ours = [row for row in rows if (row["task"], row["speeds"], row["kappa"]) == (task, kind, most)]
        for target in ours[0]["targets"]:
            hours = {named(row): _mean(row["targets"][target]["hours"]) for row in ours}
            order = sorted((h, name) for name, h in hours.items() if h is not None)
            never = [name for name, h in hours.items() if h is None]
            where = {"task": task, "speeds": kind, "kappa": most, "target": target}
            found.append({**where, "order": [name for _, name in order], "never": never})
    return found


def named(row: Mapping[str, Any]) -> str:
    """The method, with its budget if that is not the reference's."""
    return f"{row['method']} x{row['budget']}" if row["budget"] > 1 else str(row["method"])


def _mean(value: Any) -> float | None:
    found: float | None = value[0] if isinstance(value, list) else value
    return found
