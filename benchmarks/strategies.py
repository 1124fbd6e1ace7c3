"""How long strategies and codecs take to come to a loss, over the links that people have at home.

    python -m benchmarks.strategies --quick --json       # one seed, four methods; 12 minutes of CPU time
    python -m benchmarks.strategies --results FOLDER --methods float16,int8 --seeds 1,2,3 --json
    python -m benchmarks.strategies --results FOLDER --only-report --plots docs --write-gaps
    python -m benchmarks.strategies --real --json        # the clock against processes on shaped links (Linux, root)

Two small language models learn from the World English Bible, by 8 or 16 peers in turn in one process: gradients,
strategies, codecs, residuals and their bytes are real, and time is virtual. A peer's speed is set; the transfer of a
round is what the planner predicts for its bytes on lines of 20 Mbit/s up and 100 Mbit/s down, with one auxiliary peer
at 1 Gbit/s; to it are added the time of the codecs, measured alone on one thread of this machine, and fixed costs of
0.32 s. Lines are slowed down as much as the model is smaller than the one that it stands for (ALBERT-large, GPT-2
124M), so seconds and bytes are that model's. kappa is the transfer of a float16 round divided by the computing of a
global batch of 32 sequences. All runs begin with equal parameters and have equal samples in equal order.

Each run is kept in the folder of `--results` and not repeated, so a long series can be cut into pieces. `rows` has for
each task, speeds, kappa and method (numbers of several seeds as mean, least and most):

    budget             times the samples of the reference that the run had, and for which its learning rate falls
    gap_percent        held-out loss at equal samples, relative to synchronous float16 (a result with budget 1 alone)
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
with those expected. `rankings` says which methods come to the targets first, and which never do, at the largest kappa;
`auto` says what strategy = "auto" chooses, and how many times the best method's time to the middle target that takes.
`remarks` names what looks like a badly tuned reference.

What this cannot show: large models, for which methods that step locally lose less; data centres; real loss of packets.

ok: bytes within 1 % of the formulas and headers, times within 5 %.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._report import emit, finish, note, parser
from benchmarks._strategy_auto import auto_rows
from benchmarks._strategy_cells import Results
from benchmarks._strategy_gaps import write_gaps
from benchmarks._strategy_methods import METHODS, QUICK
from benchmarks._strategy_series import KAPPAS, Series, bytes_row, named, rankings, remarks, times_row
from benchmarks._strategy_tasks import TASKS

FULL_SAMPLES, QUICK_SAMPLES = 130_000, 20_000
REAL_STEPS = 6


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = ("task", "speeds", "kappa", "method", "gap %", "s/sample", "95 %: s", "up GB", "down GB")
    lines = ["{:7} {:6} {:>5} {:18} {:>7} {:>8} {:>8} {:>9} {:>9}".format(*heads)]
    for row in rows:
        target = row["targets"]["95%"]
        shown = [_mean(row["gap_percent"]), _mean(row["relative_time"]), _mean(target["share_of_reference"])]
        sizes = [_mean(target["up_gb_mean"]), _mean(target["down_gb_mean"])]
        words = [f"{each:.3f}" if each is not None else "never" for each in (*shown, *sizes)]
        lines.append(
            f"{row['task']:7} {row['speeds']:6} {row['kappa']:5g} {named(row):18} {words[0]:>7} {words[1]:>8} "
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
    options.add_argument("--real", action="store_true", help="compare the clock with processes on shaped links (root)")
    options.add_argument("--task", default=",".join(TASKS), help="names, separated by commas")
    options.add_argument("--methods", default=",".join(METHODS), help="names, separated by commas")
    options.add_argument("--seeds", default="1,2,3")
    options.add_argument("--kappa", default=",".join(f"{each:g}" for each in KAPPAS))
    options.add_argument("--speeds", default="equal", help="equal, mixed or both, separated by a comma")
    options.add_argument("--peers", type=int, default=8)
    options.add_argument("--samples", type=int, help="sequences of each run")
    options.add_argument(
        "--budgets", default="1", help="how many times the reference's sequences methods get, with their own schedules"
    )
    options.add_argument(
        "--churn", action="store_true", help="one peer dies and one joins in ten rounds, where peers wait"
    )
    options.add_argument("--results", type=Path, help="folder that keeps runs; what is there is not run again")
    options.add_argument("--only-report", action="store_true", help="run nothing, report what the folder has")
    options.add_argument("--processes", type=int, default=2, help="runs at a time, of one thread each")
    options.add_argument("--plots", type=Path, help="folder for pictures of losses against time and bytes")
    options.add_argument("--write-gaps", action="store_true", help="keep the gaps in the table of `minga plan`")
    options.add_argument(
        "--tune", type=int, default=0, metavar="SAMPLES", help="first try settings of each method on so few sequences"
    )
    given = options.parse_args()
    if given.quick:
        given.task, given.seeds, given.kappa, given.methods = "albert", "1", "1", ",".join(QUICK)
    names = {name: getattr(given, name).split(",") for name in ("task", "methods", "speeds")}
    for known, asked in ((TASKS, names["task"]), (METHODS, names["methods"]), (("equal", "mixed"), names["speeds"])):
        if unknown := set(asked) - set(known):
            options.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    given.series = Series(
        tasks=names["task"],
        methods=[METHODS[name] for name in names["methods"]],
        seeds=[int(seed) for seed in given.seeds.split(",")],
        kappas=[float(kappa) for kappa in given.kappa.split(",")],
        speeds=names["speeds"],
        peers=given.peers,
        samples=given.samples or (QUICK_SAMPLES if given.quick else FULL_SAMPLES),
        churn=given.churn,
        budgets=[int(budget) for budget in given.budgets.split(",")],
    )
    return given


def real(options: Any) -> int:
    """Compare steps on real links with the clock."""
    from benchmarks._processes import WorkerError
    from benchmarks._strategy_real import compare, points
    from tests.netlab import LabError, why_unavailable

    if (reason := why_unavailable()) is not None:
        note(reason)
        return finish("strategies", False, options.json, unavailable=reason, real={})
    found: dict[str, dict[str, Any]] = {}
    for method in points():
        try:
            found[method.name] = compare(method, REAL_STEPS)
        except (WorkerError, LabError) as error:
            found[method.name] = {"error": str(error), "ok": False}
        emit(method=method.name, **found[method.name])
    return finish("strategies", all(each["ok"] for each in found.values()), options.json, real=found)


def main() -> int:
    options = _options()
    if options.real:
        return real(options)
    series: Series = options.series
    with tempfile.TemporaryDirectory(prefix="minga-strategies-") as temporary:
        results = Results(options.results or Path(temporary), processes=0 if options.only_report else options.processes)
        chosen, trials = series.tuned(results, options.tune) if options.tune else (series.as_given(), [])
        results.fill(series.cells(chosen))
        found = list(series.rows(results, chosen))
    rows, runs = [row for row, _ in found], [run for _, run in found]
    for row in rows:
        emit(**row)
    sizes = {(run.cell.task, run.cell.method.name): made for run in runs if (made := bytes_row(run)) is not None}
    times = [made for run in runs if (made := times_row(run)) is not None]
    if options.write_gaps:
        write_gaps(found)
    if options.plots is not None:
        from benchmarks._strategy_plots import write_plots

        write_plots(runs, options.plots)
    shown: dict[str, Any] = {"rows": rows} if options.json else {"rows": "\n" + _table(rows)}
    return finish(
        "strategies",
        bool(rows) and all(row["ok"] for row in [*sizes.values(), *times]),
        options.json,
        samples=series.samples,
        peers=series.peers,
        trials=trials,
        bytes=list(sizes.values()),
        times=times,
        rankings=rankings(rows),
        auto=auto_rows(rows, series.peers),
        remarks=remarks(rows),
        **shown,
    )


if __name__ == "__main__":
    raise SystemExit(main())
