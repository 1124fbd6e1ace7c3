"""Crowds of real processes over iroh: what their steps cost, and how a few fare whom many join."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks._crowd_counts import per_pair
from benchmarks._plain_spec import plain_spec
from benchmarks._processes import Message, Worker, WorkerError, Workers
from minga import RunSpec

MICRO_BATCHES, STEP_S = 32, 0.16
"""Micro-batches of a step, and the seconds that it would take if nothing but they took any time."""

NUMEL = 2000
WARM_UP_STEPS, PATIENCE_S = 5, 90.0
WINDOW_S = 10.0
"""The slowest pace is looked for in windows of so many seconds."""


def measure(peers: int, seconds: float) -> dict[str, Any]:
    """What an ordered pair costs in a step: processor time first, and then, since counting takes time, what is done."""
    with Workers() as workers:
        bare = start(workers, peers)
        enter(workers.all)
        reach(workers.all, WARM_UP_STEPS)
        before = workers.ask("mark", PATIENCE_S)
        time.sleep(seconds)
        after = workers.ask("mark", PATIENCE_S)
        counted = workers.ask("count", PATIENCE_S)
        time.sleep(seconds)
        end = workers.ask("mark", PATIENCE_S)
    steps, counted_steps = mean_steps(before, after), mean_steps(counted, end)
    cpu_s = sum(b["cpu_s"] - a["cpu_s"] for a, b in zip(before, after, strict=True))
    methods = differences(counted, end, "methods")
    return {
        "peers": peers,
        "steps": round(steps, 1),
        "steps_per_s": round(steps / (after[0]["at_s"] - before[0]["at_s"]), 2),
        "cpu_ms": round(1e3 * cpu_s / (steps * peers * (peers - 1)), 3),
        "cpu_ms_a_peer": round(1e3 * cpu_s / (steps * peers), 2),
        "bare_ms_a_peer": round(1e3 * sum(told["bare_s"] for told in bare) / peers, 2),
        **per_pair(differences(counted, end, "totals"), peers, counted_steps),
        "methods": per_pair(dict(methods.most_common()), peers, counted_steps),
    }


def join_a_few(hosts: int, newcomers: int, seconds: float) -> dict[str, Any]:
    """The pace of `hosts` peers while `newcomers` enter, all at once, relative to the slower of the paces before and
    after.
    """
    with Workers() as workers:
        start(workers, hosts + newcomers)
        few, many = workers.all[:hosts], workers.all[hosts:]
        link = enter(few)
        reach(few, WARM_UP_STEPS)
        time.sleep(seconds)
        began_s = time.monotonic()
        for worker in many:
            worker.send("enter", link=link)
        workers.gather(PATIENCE_S, many)
        entered_s = time.monotonic()
        time.sleep(WINDOW_S + seconds)
        end_s = time.monotonic()
        applied = few[0].ask("mark", PATIENCE_S)["applied"]
    before, after = pace(applied, began_s - seconds, began_s), pace(applied, end_s - seconds, end_s)
    windows = [began_s + 0.5 * number for number in range(int(2 * (end_s - WINDOW_S - began_s)) + 1)]
    slowest = min(pace(applied, since_s, since_s + WINDOW_S) for since_s in windows)
    return {
        "hosts": hosts,
        "newcomers": newcomers,
        "steps_per_s_before": round(before, 2),
        "steps_per_s_after": round(after, 2),
        "slowest_steps_per_s": round(slowest, 2),
        "slowest_share": round(slowest / max(min(before, after), 1e-9), 3),
        "entering_s": round(entered_s - began_s, 1),
    }


def start(workers: Workers, peers: int) -> list[Message]:
    """Start so many processes, and wait until all have imported what they need; returns what each says of itself."""
    about = {
        "spec": spec_of().to_toml(),
        "numel": NUMEL,
        "micro_batch_s": STEP_S * peers / MICRO_BATCHES,
        "micro_batches": max(1, MICRO_BATCHES // peers),
    }
    for index in range(peers):
        settings = about | {"directory": str(workers.directory / f"peer-{index}")}
        workers.start(f"peer-{index}", "benchmarks._crowd_peer:peer", settings)
    return workers.gather(PATIENCE_S)


def enter(workers: Sequence[Worker]) -> str:
    """Let them enter, the first alone; returns its link."""
    link = str(workers[0].ask("enter", PATIENCE_S, link="")["link"])
    for worker in workers[1:]:
        worker.send("enter", link=link)
    for worker in workers[1:]:
        worker.receive(PATIENCE_S)
    return link


def reach(workers: Sequence[Worker], steps: int) -> None:
    """Wait until each has taken so many steps with the others. Raises `WorkerError` if they do not."""
    deadline = time.monotonic() + PATIENCE_S
    while min(len(worker.ask("mark", PATIENCE_S)["applied"]) for worker in workers) < steps:
        if time.monotonic() > deadline:
            raise WorkerError(f"the crowd took no {steps} steps within {PATIENCE_S:.0f} s")
        time.sleep(0.5)


def mean_steps(before: Sequence[Message], after: Sequence[Message]) -> float:
    """Steps between two marks, on average over the peers. Raises `WorkerError` if there were none."""
    steps = sum(b["step"] - a["step"] for a, b in zip(before, after, strict=True)) / len(before)
    if steps < 1:
        raise WorkerError("the crowd takes no steps")
    return steps


def differences(before: Sequence[Message], after: Sequence[Message], name: str) -> Counter[str]:
    """What was counted between two marks, by all peers together."""
    found: Counter[str] = Counter()
    for early, late in zip(before, after, strict=True):
        found.update(late[name])
        found.subtract(early[name])
    return found


def pace(applied: Sequence[float], since_s: float, until_s: float) -> float:
    """Steps per second between two moments."""
    return (bisect_left(applied, until_s) - bisect_left(applied, since_s)) / (until_s - since_s)


def spec_of() -> RunSpec:
    """The run spec of all crowds."""
    return plain_spec("crowd", MICRO_BATCHES, averaging={"codec": "float16"})
