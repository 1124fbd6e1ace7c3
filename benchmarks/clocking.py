"""Whether a swarm keeps its own time: everybody takes part in each step, batches are as large as they should be, and a
slow volunteer does not hold up the others, from small target batch sizes to large ones.

    python -m benchmarks.clocking --json

Virtual cases run production code in virtual time: target batch sizes B from 64 to 65,536, 2 to 16 peers whose speeds
are drawn log-uniformly over a factor of 8, round trips of 5 to 150 ms, home lines. Micro-batches are sized so that a
peer does about four in a step (`_clocking_swarm`). Real cases are processes over iroh on this machine. Each is run as
it is, and once more with another peer that is 20 times slower than the median but has micro-batches of the same size.

One line for each case:

    participation   contributors / (peers x steps), after the warm-up
    within          share of the steps whose realised batch is in [B, 1.1 B]
    batch_ratios    smallest and largest realised batch / B
    steps_per_hour  of the peers without the slow one
    slow_costs      (with the slow peer) by which share the others' steps per hour fell; negative if they rose
    slow_gave       (with the slow peer) share of the steps to which it contributed

ok: participation at least 0.95 and within at least 0.95 in every case, slow_costs at most 0.05.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from benchmarks import _clocking_processes, _clocking_swarm
from benchmarks._clocking_steps import Step, figures, holds
from benchmarks._clocking_swarm import Case
from benchmarks._processes import WorkerError
from benchmarks._report import emit, finish, note, parser

BATCHES, PEERS = (64, 512, 4096, 65_536), (2, 4, 8, 16)
REAL_CASES = ((64, 2), (64, 4), (4096, 3), (65_536, 4))
WARM_UP = 6
Row = dict[str, Any]


def rows_of(about: Row, run: Callable[[bool], list[Step]], batch: int, peers: int) -> list[Row]:
    """The same case without and with the slow peer."""
    names = [f"peer-{index}" for index in range(peers)]
    alone = {**about, **figures(run(False), batch, names)}
    steps = run(True)
    slow = {**about, "slow": True, **figures(steps, batch, names)}
    slow["slow_costs"] = 1.0 - slow["steps_per_hour"] / alone["steps_per_hour"]
    slow["slow_gave"] = sum(bool(step.samples.get("slow")) for step in steps) / len(steps)
    return [alone, slow]


def virtual_rows(batch: int, peers: int, seed: int, steps: int) -> list[Row]:
    """A case in the virtual world."""

    def run(slow: bool) -> list[Step]:
        return _clocking_swarm.run(Case(batch, peers, seed, steps, WARM_UP, slow))

    about = {"world": "virtual", "target_batch_size": batch, "peers": peers, "seed": seed}
    return rows_of(about, run, batch, peers)


def real_rows(batch: int, peers: int, steps: int) -> list[Row]:
    """A case of real processes."""

    def run(slow: bool) -> list[Step]:
        return _clocking_processes.run(batch, peers, steps, WARM_UP, slow=slow)

    about = {"world": "real", "target_batch_size": batch, "peers": peers}
    try:
        return rows_of(about, run, batch, peers)
    except WorkerError as error:
        return [{**about, "error": str(error)}]


def all_rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """The rows of all cases that are wanted, the virtual ones on several cores."""
    cases = [(b, n) for b, n in itertools.product(BATCHES, PEERS) if b in arguments.batches and n in arguments.peers]
    with ProcessPoolExecutor(arguments.jobs, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        made = [pool.submit(virtual_rows, b, n, arguments.seed, arguments.steps) for b, n in reversed(cases)]
        for future in made:
            yield from future.result()
    for batch, peers in REAL_CASES:
        if not arguments.virtual and batch in arguments.batches and peers in arguments.peers:
            yield from real_rows(batch, peers, arguments.steps)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="only these target batch sizes")
    options.add_argument("--peers", type=int, nargs="+", default=(*PEERS, 3), help="only with so many peers")
    options.add_argument("--virtual", action="store_true", help="no real processes")
    options.add_argument("--steps", type=int, default=20, help="steps of each case after the warm-up")
    options.add_argument("--seed", type=int, default=1, help="of the virtual cases")
    options.add_argument("--jobs", type=int, default=2, help="virtual cases at a time")
    arguments = options.parse_args()
    note("about 15 minutes on two cores")
    rows = []
    for row in all_rows(arguments):
        row["ok"] = "error" not in row and holds(row)
        emit(**row)
        rows.append(row)
    if not rows:
        options.error("no such case")
    plain = [row for row in rows if "participation" in row and "slow" not in row]
    return finish(
        "clocking",
        all(row["ok"] for row in rows),
        arguments.json,
        cases=len(rows),
        lowest_participation=min((row["participation"] for row in plain), default=None),
        lowest_within=min((row["within"] for row in rows if "within" in row), default=None),
        highest_slow_costs=max((row["slow_costs"] for row in rows if "slow_costs" in row), default=None),
        failed=[
            {k: row.get(k) for k in ("world", "target_batch_size", "peers", "slow")} for row in rows if not row["ok"]
        ],
    )


if __name__ == "__main__":
    raise SystemExit(main())
