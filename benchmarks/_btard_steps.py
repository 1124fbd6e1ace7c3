"""What a secure step takes beside an ordinary all-reduce of the same vector by the same processes."""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks import _machine
from benchmarks._processes import Worker, Workers
from benchmarks._report import emit, spread
from minga.security.protocol.behaviour import KEPT_STEPS

WARMUP = KEPT_STEPS + 2
"""Rounds until the memory that a run uses again and again is there."""
TICK_S = 0.01
"""The system counts no finer: a short step may have taken no CPU time at all."""


def measure_steps(arguments: Any) -> dict[str, Any]:
    """Let all peers average and take secure steps in turn; the figures of the module's documentation."""
    with Workers() as workers:
        start_peers(workers, arguments)
        pairs = []
        for turn in range(WARMUP + arguments.rounds):
            plain, secure = measure_plain(workers), measure_secure(workers, arguments.peers)
            emit(turn=turn, warmup=turn < WARMUP, plain=plain, secure=secure)
            pairs.append((plain, secure))
    counted = pairs[WARMUP:]
    return {
        "step_ratio": round(_median(counted, 1, "step_s") / _median(counted, 0, "step_s"), 3),
        "cpu_ratio": round(_median(counted, 1, "cpu_s") / max(TICK_S, _median(counted, 0, "cpu_s")), 3),
        "plain_s": spread(plain["step_s"] for plain, _ in counted),
        "secure_s": spread(secure["step_s"] for _, secure in counted),
        "plain_cpu_s": spread(plain["cpu_s"] for plain, _ in counted),
        "secure_cpu_s": spread(secure["cpu_s"] for _, secure in counted),
        "others_share": round(statistics.median(each["others_share"] for pair in counted for each in pair), 3),
        "steps_correct": sum(secure["correct"] for _, secure in counted),
        "steps": len(counted),
    }


def start_peers(workers: Workers, arguments: Any) -> None:
    """Start the processes, which connect with each other."""
    entries: list[Any] = []
    shared = {"peers": arguments.peers, "numel": arguments.mib << 18, "profile": arguments.profile}

    def start(index: int) -> Worker:
        settings = {**shared, "index": index, "entries": entries}
        return workers.start(f"peer-{index}", "benchmarks._btard_peer:peer", settings)

    first = start(0).receive(60)["address"]
    entries.append(first)
    others = workers.gather(120, [start(index) for index in range(1, arguments.peers)])
    members = [first[0], *(other["address"][0] for other in others)]
    workers.ask("meet", 60, members=members)


def measure_plain(workers: Workers) -> dict[str, Any]:
    """An ordinary round: seconds from the moment in which all hold the plan until the last has the result."""
    workers.ask("plain", 120)
    return _timed(workers, "go")


def measure_secure(workers: Workers, count: int) -> dict[str, Any]:
    """A secure step, from the gradients to the applied aggregate and the check of all claims about the own part."""
    figures = _timed(workers, "secure")
    done = figures.pop("done")
    correct = {each["members"] for each in done} == {count} and len({each["digest"] for each in done}) == 1
    return {**figures, "correct": correct}


def _timed(workers: Workers, command: str) -> dict[str, Any]:
    machine, cpu_s, started_s = _machine.machine_time(), workers.cpu_s(), time.monotonic()
    done = workers.ask(command, 300)
    used_s = workers.cpu_s() - cpu_s
    figures = {
        "step_s": round(max(each["done_s"] for each in done) - started_s, 4),
        "cpu_s": round(used_s, 2),
        "others_share": round(_machine.others_share(machine, _machine.machine_time(), used_s), 3),
    }
    return figures if command == "go" else {**figures, "done": done}


def _median(pairs: list[tuple[dict[str, Any], dict[str, Any]]], place: int, name: str) -> float:
    return statistics.median(pair[place][name] for pair in pairs)
