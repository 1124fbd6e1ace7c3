"""How long strategies and codecs take to come to a loss, over the links that people have at home.

    python -m benchmarks.strategies --quick --json       # one seed, four methods; about five minutes on two cores
    python -m benchmarks.strategies --results FOLDER --methods float16,int8 --seeds 1,2,3 --json
    python -m benchmarks.strategies --results FOLDER --plots docs

Two small language models learn from the World English Bible, by 8 or 16 peers in turn in one process: gradients,
strategies, codecs, residuals and their bytes are real, and time is virtual. A peer's speed is set; the transfer of a
round is what the planner predicts for its bytes on lines of 20 Mbit/s up and 100 Mbit/s down, with one auxiliary peer
at 1 Gbit/s; to it are added the time of the codecs, measured alone on one thread of this machine, and fixed costs of
0.32 s. Lines are slowed down as much as the model is smaller than the one that it stands for (ALBERT-large, GPT-2
124M), so seconds and bytes are that model's. kappa is the transfer of a float16 round divided by the computing of a
global batch of 32 sequences. All runs begin with equal parameters and have equal samples in equal order.

Each run is kept in the folder of `--results` and not repeated, so a long series can be cut into pieces. `rows` has for
each task, speeds, kappa and method (numbers of several seeds as mean, least and most):

    gap_percent        held-out loss at equal samples, relative to synchronous float16
    gap_percent_at_equal_time  the same when the first of both has ended
    targets            for the losses that the reference has after 60, 80 and 95 % of its samples: hours, that as a
                       share of the reference's, samples, and gigabytes up and down of a home (largest and mean) and
                       through the auxiliary peer; null where a target is not reached
    relative_time      seconds a sample, relative to computing alone
    too_short          fewer than 30 rounds: no result
    n_eff              as many equal contributions would make the same weights; largest_share of one peer in a round
    inner_steps        of a peer in a round: least, median, most
    counted_share      of the computed samples; window_growth: samples of a round relative to its batch

`bytes` compares the encoded bytes with what formulas give, `times` the relative times without fixed costs and codecs
with those expected. `remarks` names what looks like a badly tuned reference.

What this cannot show: large models, for which methods that step locally lose less; data centres; real loss of packets.

ok: bytes within 1 % of the formulas and headers, times within 5 %.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._report import emit, finish, parser
from benchmarks._strategy_cells import Results
from benchmarks._strategy_figures import Timeline, figures, over_seeds
from benchmarks._strategy_methods import METHODS, QUICK, REFERENCE, Method
from benchmarks._strategy_run import Cell, is_overlapped
from benchmarks._strategy_tasks import TASKS

KAPPAS = (0.1, 1.0, 10.0)
MIXED = (1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0)
FULL_SAMPLES, QUICK_SAMPLES = 130_000, 20_000
BYTES_LIMIT, TIMES_LIMIT = 0.01, 0.05
HEADER_BYTES = 64
"""What a codec may add to a round beside its elements, for each tensor and chunk."""

Row = dict[str, Any]


def speeds_of(kind: str, peers: int) -> tuple[float, ...]:
    """Relative speeds: all equal, or as 1:1:1:1:2:2:4:4."""
    return (1.0,) * peers if kind == "equal" else tuple(MIXED[i * len(MIXED) // peers] for i in range(peers))


def cells_of(options: Any, task: str, speeds: Sequence[float], method: Method) -> Iterator[tuple[float, int, Cell]]:
    """The runs that the figures of a method need, with their kappas and seeds."""
    for kappa in options.kappa:
        for seed in options.seeds:
            own = kappa if is_overlapped(method) else None
            cell = Cell(task, method, seed, tuple(speeds), options.samples, own, options.churn and own is None)
            yield kappa, seed, cell


def rows_of(options: Any, results: Results) -> Iterator[tuple[Row, list[Timeline]]]:
    """The figures of all runs that are there, and the runs by seeds."""
    for task in options.task:
        for kind in options.speeds:
            speeds = speeds_of(kind, options.peers)
            for kappa in options.kappa:
                for method in options.methods:
                    pairs = list(_pairs(options, results, task, speeds, method, kappa))
                    if pairs:
                        found = over_seeds([figures(run, reference) for run, reference in pairs])
                        row = {"task": task, "speeds": kind, "kappa": kappa, "method": method.name}
                        yield {**row, "seeds": len(pairs), **found}, [run for run, _ in pairs]


def _pairs(
    options: Any, results: Results, task: str, speeds: Sequence[float], method: Method, kappa: float
) -> Iterator[tuple[Timeline, Timeline]]:
    ours = {seed: cell for k, seed, cell in cells_of(options, task, speeds, method) if k == kappa}
    theirs = {seed: cell for k, seed, cell in cells_of(options, task, speeds, METHODS[REFERENCE]) if k == kappa}
    for seed, cell in ours.items():
        record, reference = results.get(cell), results.get(theirs[seed])
        if record is not None and reference is not None:
            yield Timeline(cell, record, kappa), Timeline(theirs[seed], reference, kappa)


def bytes_row(run: Timeline) -> Row | None:
    """Encoded bits an element against the formula, on both ways; None without a formula."""
    method, record = run.cell.method, run.record
    if method.up_bits is None or method.down_bits is None:
        return None
    rounds = record["rounds"]
    sent = [size for each in rounds for size, weight in zip(each["up"], each["weights"], strict=True) if weight]
    up, down = (
        8 * sum(sent) / len(sent) / record["numel"],
        8 * sum(e["down"] for e in rounds) / len(rounds) / record["numel"],
    )
    spare = 8 * HEADER_BYTES / record["numel"]
    near = all(
        abs(measured - formula) <= BYTES_LIMIT * formula + spare
        for measured, formula in ((up, method.up_bits), (down, method.down_bits))
    )
    return {
        "method": method.name,
        "up_bits": [round(up, 4), method.up_bits],
        "down_bits": [round(down, 4), method.down_bits],
        "ok": near,
    }


def times_row(run: Timeline) -> Row | None:
    """The time of a sample relative to computing alone, without fixed costs, against what is expected."""
    expected = dict(zip(KAPPAS, run.cell.method.times, strict=False)).get(run.kappa)
    if expected is None or is_overlapped(run.cell.method):
        return None
    found = Timeline(run.cell, run.record, run.kappa, bare=True).relative_time
    near = abs(found / expected - 1) <= TIMES_LIMIT
    return {
        "method": run.cell.method.name,
        "kappa": run.kappa,
        "relative_time": [round(found, 4), expected],
        "ok": near,
    }


def remarks(rows: Sequence[Row]) -> list[str]:
    """What looks like a badly tuned reference, and rankings that are not as expected."""
    found = []
    for row in rows:
        gap = row["gap_percent"] if not isinstance(row["gap_percent"], list) else row["gap_percent"][0]
        where = f"{row['task']}, {row['speeds']} speeds, kappa {row['kappa']:g}: {row['method']}"
        if row["too_short"]:
            found.append(f"{where}: too short, no result")
        elif METHODS[row["method"]].batches > 1 and gap < 0:
            found.append(f"{where} is {-gap:.2f} % ahead at equal samples: is the reference well tuned?")
        elif row["method"] == "int8" and abs(gap) > 1:
            found.append(f"{where} is {gap:.2f} % off at equal samples: is the reference well tuned?")
    return found


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = ("task", "speeds", "kappa", "method", "gap %", "s/sample", "95 %: s", "up GB", "down GB")
    lines = ["{:7} {:6} {:>5} {:18} {:>7} {:>8} {:>8} {:>9} {:>9}".format(*heads)]
    for row in rows:
        target = row["targets"]["95%"]
        shown = [_mean(row["gap_percent"]), _mean(row["relative_time"]), _mean(target["share_of_reference"])]
        sizes = [_mean(target["up_gb_mean"]), _mean(target["down_gb_mean"])]
        words = [f"{each:.3f}" if each is not None else "never" for each in (*shown, *sizes)]
        lines.append(
            f"{row['task']:7} {row['speeds']:6} {row['kappa']:5g} {row['method']:18} {words[0]:>7} {words[1]:>8} "
            f"{words[2]:>8} {words[3]:>9} {words[4]:>9}"
        )
    return "\n".join(lines)


def _mean(value: Any) -> float | None:
    found: float | None = value[0] if isinstance(value, list) else value
    return found


def _options() -> Any:
    options = parser(__doc__)
    options.add_argument(
        "--quick", action="store_true", help="one task and seed, 20,000 sequences, four methods, kappa 1"
    )
    options.add_argument("--task", default=",".join(TASKS), help="names, separated by commas")
    options.add_argument("--methods", default=",".join(METHODS), help="names, separated by commas")
    options.add_argument("--seeds", default="1,2,3")
    options.add_argument("--kappa", default=",".join(f"{each:g}" for each in KAPPAS))
    options.add_argument("--speeds", default="equal", help="equal, mixed or both, separated by a comma")
    options.add_argument("--peers", type=int, default=8)
    options.add_argument("--samples", type=int, help="sequences of each run")
    options.add_argument(
        "--churn", action="store_true", help="one peer dies and one joins in ten rounds, where peers wait"
    )
    options.add_argument("--results", type=Path, help="folder that keeps runs; what is there is not run again")
    options.add_argument("--only-report", action="store_true", help="run nothing, report what the folder has")
    options.add_argument("--processes", type=int, default=2, help="runs at a time, of one thread each")
    options.add_argument("--plots", type=Path, help="folder for pictures of losses against time and bytes")
    given = options.parse_args()
    if given.quick:
        given.task, given.seeds, given.kappa, given.methods = "albert", "1", "1", ",".join(QUICK)
    given.samples = given.samples or (QUICK_SAMPLES if given.quick else FULL_SAMPLES)
    given.task, given.speeds = given.task.split(","), given.speeds.split(",")
    given.seeds = [int(seed) for seed in given.seeds.split(",")]
    given.kappa = [float(kappa) for kappa in given.kappa.split(",")]
    names = given.methods.split(",")
    for known, asked in ((TASKS, given.task), (METHODS, names), ({"equal", "mixed"}, given.speeds)):
        if unknown := set(asked) - set(known):
            options.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    given.methods = [METHODS[name] for name in names]
    return given


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="minga-strategies-") as temporary:
        results = Results(options.results or Path(temporary))
        methods = dict.fromkeys([METHODS[REFERENCE], *options.methods])
        cells = [
            cell
            for task in options.task
            for kind in options.speeds
            for method in methods
            for _, _, cell in cells_of(options, task, speeds_of(kind, options.peers), method)
        ]
        if not options.only_report:
            results.fill(cells, options.processes)
        found = list(rows_of(options, results))
    rows = [row for row, _ in found]
    for row in rows:
        emit(**row)
    runs = [timelines[0] for _, timelines in found]
    sizes = {run.cell.method.name: made for run in runs if (made := bytes_row(run)) is not None}
    times = [made for run in runs if (made := times_row(run)) is not None]
    if options.plots is not None:
        from benchmarks._strategy_plots import write_plots

        write_plots(runs, options.plots)
    ok = bool(rows) and all(row["ok"] for row in [*sizes.values(), *times])
    shown: dict[str, Any] = {"rows": rows} if options.json else {"rows": "\n" + _table(rows)}
    return finish(
        "strategies",
        ok,
        options.json,
        samples=options.samples,
        peers=options.peers,
        bytes=list(sizes.values()),
        times=times,
        remarks=remarks(rows),
        **shown,
    )


if __name__ == "__main__":
    raise SystemExit(main())
