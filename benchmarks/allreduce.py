"""Averaging one vector with N peers over iroh on loopback, each peer a process: group forming and all-reduce.

    python -m benchmarks.allreduce --peers 4 --mib 64 --codec float32 --rounds 5 --json

Each round goes through the code that training uses: the board, `GroupFormation` and `AllReduce`; only the trainer is
missing. One line for each round, then the summary; figures in brackets are [median, minimum, maximum] over the rounds
that nobody disturbed (over all if `rounds_quiet` is 0).

    matchmaking_s      from the moment at which all peers, with their samples ready, ask for a group until the last of
                       them holds the signed plan
    allreduce_s        from the start signal (all hold the plan and wait) until the last peer has the whole result
    mib_per_s          the vector's size by that time
    cpu_*_s            user and system seconds of all peers in that phase
    wire_mib           bytes that the loopback device carried in the all-reduce
    max_err, rms_err   difference of any peer's result from the true mean (computed in float64), the largest of all
                       rounds; rms_mean is the root mean square of the mean itself
    others_share       share of the machine's CPU time that went to other processes; above 0.10 a round is disturbed
    rounds_correct     rounds in which all peers took part, have bitwise equal results, and rms_err is within the
                       codec's bound
    memory_mib         resident memory of all peers at the end

    against            with `--against`: for each rival how many times our time and CPU seconds it takes (`time_ratio`,
                       `cpu_ratio`, of the medians), and its own figures. Our rounds and runs of the rivals take turns
                       on the same machine. While they run, our peers idle, so each turn begins with rounds that do not
                       count, ours as theirs

ok: all rounds correct, matchmaking_s at most 0.05 (median), and for 4 peers, 64 MiB and float32: hivemind takes at
least 5 times our time and 4 times our CPU, gloo (no encryption) at least a quarter of our time; without `--against`,
allreduce_s at most 0.28, which is 1 / 5 of what hivemind 1.1.12 takes on two undisturbed cores.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _against, _machine
from benchmarks._against import undisturbed
from benchmarks._allreduce_peer import vector_of
from benchmarks._processes import Worker, Workers
from benchmarks._report import emit, finish, parser, spread

RMS_BOUND = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2, "int8": 2e-2}
"""Largest rms_err / rms_mean of a correct round."""
MATCHMAKING_LIMIT_S = 0.05
ALLREDUCE_LIMIT_S = 0.28
AGAINST_LIMITS: dict[str, dict[str, float]] = {
    "hivemind": {"time_ratio": 5.0, "cpu_ratio": 4.0},
    "gloo": {"time_ratio": 0.25},
}
TURNS = 3
"""How often we and the rivals take turns."""
FIGURES = (
    "matchmaking_s",
    "allreduce_s",
    "mib_per_s",
    "cpu_matchmaking_s",
    "cpu_allreduce_s",
    "others_share",
    "wire_mib",
)


def measure_round(workers: Workers, mean_file: Path, arguments: Any) -> dict[str, Any]:
    """Let all peers average once; one row of figures."""
    workers.ask("settle", 30)
    _machine.wait_until_quiet(arguments.quiet_wait)
    machine, cpu = _machine.machine_time(), workers.cpu_s()
    asked_s = time.monotonic()
    planned = workers.ask("round", 60)
    cpu_planned, wire = workers.cpu_s(), _machine.loopback_bytes()
    started_s = time.monotonic()
    done = workers.ask("go", 120)
    cpu_done, wire_done, machine_done = workers.cpu_s(), _machine.loopback_bytes(), _machine.machine_time()
    checked = workers.ask("check", 60, mean=str(mean_file))
    worst = {name: max(c[name] for c in checked) for name in ("max_err", "rms_err", "rms_mean")}
    matchmaking_s = max(p["planned_s"] for p in planned) - asked_s
    allreduce_s = max(d["done_s"] for d in done) - started_s
    return {
        "matchmaking_s": matchmaking_s,
        "allreduce_s": allreduce_s,
        "mib_per_s": arguments.mib / allreduce_s,
        "cpu_matchmaking_s": cpu_planned - cpu,
        "cpu_allreduce_s": cpu_done - cpu_planned,
        "others_share": _machine.others_share(machine, machine_done, cpu_done - cpu),
        "wire_mib": (wire_done - wire) / 2**20,
        **worst,
        "correct": all(p["members"] == arguments.peers for p in planned)
        and not any(d["lost"] for d in done)
        and len({c["digest"] for c in checked}) == 1
        and worst["rms_err"] <= RMS_BOUND[arguments.codec] * worst["rms_mean"],
    }


def summarise(rows: list[dict[str, Any]], arguments: Any, memory_bytes: int, rivals: list[_against.Rival]) -> int:
    """Print the summary; returns the exit status."""
    judged = undisturbed(rows)
    correct = sum(row["correct"] for row in rows)
    against = {rival.name: _against.compare(rival, rows) for rival in rivals}
    ok = correct == len(rows)
    ok = ok and statistics.median(row["matchmaking_s"] for row in judged) <= MATCHMAKING_LIMIT_S
    if (arguments.peers, arguments.mib, arguments.codec) == (4, 64, "float32") and not arguments.upload_mbit:
        ok = ok and all(is_fast_enough(name, ratios) for name, ratios in against.items())
        ok = ok and (bool(against) or statistics.median(row["allreduce_s"] for row in judged) <= ALLREDUCE_LIMIT_S)
    return finish(
        "allreduce",
        ok,
        arguments.json,
        peers=arguments.peers,
        mib=arguments.mib,
        codec=arguments.codec,
        tcp=not arguments.no_tcp,
        rounds=len(rows),
        rounds_correct=correct,
        rounds_quiet=sum(row["others_share"] <= _machine.QUIET_SHARE for row in rows),
        **{name: spread(row[name] for row in judged) for name in FIGURES},
        **{name: max(row[name] for row in rows) for name in ("max_err", "rms_err", "rms_mean")},
        memory_mib=round(memory_bytes / 2**20),
        **({"against": against} if against else {}),
    )


def is_fast_enough(name: str, ratios: dict[str, Any]) -> bool:
    """Whether a rival takes as many times our time and CPU seconds as it should."""
    limits = AGAINST_LIMITS[name]
    return all(ratios[ratio] is not None and ratios[ratio] >= least for ratio, least in limits.items())


def arguments_of() -> Any:
    """What the command line asks for."""
    options = parser(__doc__)
    options.add_argument("--peers", type=int, default=4)
    options.add_argument("--mib", type=int, default=64, help="size of the float32 vector in MiB")
    options.add_argument("--codec", choices=sorted(RMS_BOUND), default="float32")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--warmup", type=int, default=1, help="rounds before each turn, which do not count")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--quiet-wait", type=float, default=3.0, help="seconds to wait for others to leave the CPU")
    options.add_argument("--upload-mbit", type=float, default=0, help="what each peer may send in Mbit/s; 0: no cap")
    options.add_argument("--no-tcp", action="store_true", help="all streams over iroh")
    options.add_argument("--against", default="", help="comma-separated: hivemind, gloo")
    options.add_argument("--against-python", default=sys.executable, help="an interpreter that has what they need")
    options.add_argument("--against-scripts", default=str(_against.DEFAULT_FOLDER), help="the folder of their scripts")
    return options.parse_args()


def start_peers(workers: Workers, arguments: Any) -> Path:
    """Start the peers; returns a file with the true mean of their vectors."""
    numel = arguments.mib * (1 << 18)
    names = ("peers", "codec", "seed", "upload_mbit", "no_tcp")
    shared = {name: getattr(arguments, name) for name in names} | {"numel": numel}
    mean_file = workers.directory / "mean.float32"
    total = np.zeros(numel)
    for index in range(arguments.peers):
        total += vector_of(arguments.seed, index, numel)
    (total / arguments.peers).astype(np.float32).tofile(mean_file)
    entries: list[Any] = []

    def start(index: int) -> Worker:
        settings = {**shared, "index": index, "entries": entries}
        return workers.start(f"peer-{index}", "benchmarks._allreduce_peer:peer", settings)

    entries.append(start(0).receive(60)["address"])
    workers.gather(90, [start(index) for index in range(1, arguments.peers)])
    return mean_file


def main() -> int:
    arguments = arguments_of()
    rivals = _against.rivals(arguments)
    turns = min(TURNS, arguments.rounds) if rivals else 1
    with Workers() as workers:
        mean_file = start_peers(workers, arguments)
        rows: list[dict[str, Any]] = []
        for turn in range(turns):
            for _ in range(arguments.warmup):
                emit(turn=turn, warmup=True, **measure_round(workers, mean_file, arguments))
            rounds = arguments.rounds * (turn + 1) // turns - len(rows)
            for _ in range(rounds):
                rows.append(measure_round(workers, mean_file, arguments))
                emit(round=len(rows) - 1, warmup=False, **rows[-1])
            for rival in rivals:
                for row in rival.run(arguments, rounds):
                    emit(against=rival.name, turn=turn, **row)
        memory = sum(_machine.memory_bytes(worker.pid) for worker in workers.all)
    return summarise(rows, arguments, memory, rivals)


if __name__ == "__main__":
    raise SystemExit(main())
