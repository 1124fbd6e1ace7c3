"""What robust aggregation costs: the time of each aggregator beside that of a mean over the same memory.

    python -m benchmarks.aggregators --json

The rows are those that are hard on CenteredClip: 9 of 16 normal, 7 colluding a thousand times as far away, in one
tensor. All take turns, once a repetition; a mean (`torch.Tensor.mean`) goes before and after each CenteredClip.

    ratio               median over the repetitions of the time of CenteredClip by that of the two means beside it
    ratio_fastest       the fastest CenteredClip by the fastest mean
    mean_s              seconds of that mean: [median, minimum, maximum]
    centered_clip_s     the same of CenteredClip with a measured clipping radius
    iterations          of CenteredClip; none of them reads the rows
    residual            |sum of the clipped differences| by the sum of weights and the clipping radius, in float64
    extra_bytes         largest growth of resident memory during CenteredClip, the value of `part_bytes` included
    apart_ratio         as `ratio`, for rows that lie in memory of their own
    double_ratio        as `ratio`, for rows so nearly equal that CenteredClip works in double precision
    baselines           by aggregator, median of its time by that of the means
    others_share        share of the machine's CPU time that other processes used meanwhile

ok: ratio (ratio_fastest, where others_share exceeds 0.10) at most 3.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import _machine
from benchmarks._other_aggregates import OTHERS, Aggregation
from benchmarks._report import emit, finish, parser, spread
from minga.security.robust.centered_clip import CenteredClip, residual

RATIO_LIMIT = 3.0
HOSTILE_SHARE = 7 / 16
OTHERS_EVERY = 5
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def hostile_rows(count: int, numel: int) -> torch.Tensor:
    """Normal rows, of which the last 7 of 16 are replaced by one that is a thousand times as long."""
    random = torch.Generator().manual_seed(1)
    rows = torch.randn(count, numel, generator=random)
    hostile = int(HOSTILE_SHARE * count)
    rows[count - hostile :] = 1000 * torch.randn(numel, generator=random)
    return rows


def timed(call: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def growth_bytes(call: Callable[[], Any], interval_s: float = 0.0005) -> int:
    """The largest growth of this process's resident memory while a call runs, looked at again and again."""
    page_counts, over = [resident_pages()], threading.Event()

    def watch() -> None:
        while not over.wait(interval_s):
            page_counts.append(resident_pages())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        call()
    finally:
        over.set()
        watcher.join()
    return (max(page_counts) - page_counts[0]) * PAGE_BYTES


def resident_pages() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1])


def ratio_to_mean(rows: torch.Tensor, call: Callable[[], Any]) -> tuple[float, float, float]:
    """Seconds of a call, of the mean around it, and one by the other."""
    before_s = timed(lambda: rows.mean(0))
    call_s = timed(call)
    mean_s = (before_s + timed(lambda: rows.mean(0))) / 2
    return call_s, mean_s, call_s / mean_s


def typical_ratio(rows: torch.Tensor, aggregation: Aggregation, hostile: int, repetitions: int = 3) -> float:
    """Median ratio of the time of another aggregator to that of the mean."""
    return statistics.median(ratio_to_mean(rows, lambda: aggregation(rows, hostile))[2] for _ in range(repetitions))


def main() -> int:
    """Measure, and print."""
    arguments = options()
    numel = arguments.part_mib * (1 << 20) // 4
    rows = hostile_rows(arguments.rows, numel)
    hostile = int(HOSTILE_SHARE * arguments.rows)
    clip, apart, near = CenteredClip(), [row.clone() for row in rows], rows[0] + 1e-4 * rows
    calls: dict[str, Callable[[], Any]] = {
        "centered_clip": lambda: clip.aggregate(rows),
        "apart": lambda: clip.aggregate(apart),
        "double": lambda: clip.aggregate(near),
    }
    machine, own_s = _machine.machine_time(), time.process_time()
    clip.aggregate(rows)  # starts torch's threads
    extra_bytes = max(growth_bytes(calls["centered_clip"]) for _ in range(3))
    seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in calls}
    for repetition in range(arguments.repetitions):
        _machine.wait_until_quiet(arguments.quiet_wait)
        for name, call in calls.items():
            if name == "centered_clip" or repetition % OTHERS_EVERY == 0:
                seen[name].append(ratio_to_mean(rows, call))
        emit(repetition=repetition, **{name: round(times[-1][2], 3) for name, times in seen.items()})
    others_share = _machine.others_share(machine, _machine.machine_time(), time.process_time() - own_s)
    found = clip.aggregate(rows)
    left = float(residual(rows, found.value, found.clip_radius).norm()) / arguments.rows / found.clip_radius
    ratios = {name: statistics.median(ratio for _, _, ratio in times) for name, times in seen.items()}
    fastest = min(call_s for call_s, _, _ in seen["centered_clip"]) / min(s for _, s, _ in seen["centered_clip"])
    judged = fastest if others_share > _machine.QUIET_SHARE else ratios["centered_clip"]
    return finish(
        "aggregators",
        judged <= RATIO_LIMIT,
        arguments.json,
        rows=arguments.rows,
        part_bytes=4 * numel,
        ratio=round(ratios["centered_clip"], 3),
        ratio_fastest=round(fastest, 3),
        mean_s=spread(mean_s for _, mean_s, _ in seen["centered_clip"]),
        centered_clip_s=spread(call_s for call_s, _, _ in seen["centered_clip"]),
        iterations=found.iterations,
        residual=left,
        extra_bytes=extra_bytes,
        apart_ratio=round(ratios["apart"], 3),
        double_ratio=round(ratios["double"], 3),
        baselines={name: round(typical_ratio(rows, OTHERS[name], hostile), 2) for name in arguments.baselines},
        others_share=round(others_share, 3),
    )


def options() -> Any:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=16)
    made.add_argument("--part-mib", type=int, default=16)
    made.add_argument("--baselines", nargs="+", choices=OTHERS, default=list(OTHERS), metavar="NAME")
    made.add_argument("--repetitions", type=int, default=15)
    made.add_argument(
        "--quiet-wait", type=float, default=10.0, help="seconds to wait for others to be quiet, each time"
    )
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
