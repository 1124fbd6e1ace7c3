"""The coordinator's side of `benchmarks.links`: starts the peers of a setup and has them average."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks import _machine
from benchmarks._links_setups import Setup
from benchmarks._processes import Worker, Workers
from benchmarks._report import emit, note
from tests.netlab import Lab

REST_S: Final = 8.0
"""Pause between these rounds: in a real run it is minutes, and peers that do not know their line can probe it."""

LONGEST_ROUND_S: Final = 600.0
STABLE, STABLE_ROUNDS = 0.05, 3
"""The plans are stable once so many in a row expect what the one before did, up to this share of the time."""


class Swarm:
    """The peers of one setup, each a process in its namespace."""

    def __init__(self, setup: Setup, workers: Workers, seed: int) -> None:
        self.setup, self._workers = setup, workers
        self._seed = seed
        self._ids: dict[str, str] = {}

    def start(self, lab: Lab) -> None:
        """Start all peers; they know of no rates."""
        entries: list[Any] = []
        answers: dict[str, Worker] = {}
        for index, host in enumerate(self.setup.hosts):
            settings = {
                "namespace": lab.namespace(host.name),
                "host": lab.address(host.name),
                "auxiliary": host.name in self.setup.auxiliaries,
                "trainers": self.setup.trainers,
                "count": len(self.setup.hosts),
                "numel": self.setup.numel,
                "seed": self._seed,
                "index": index,
                "entries": entries,
            }
            worker = self._workers.start(host.name, "benchmarks._links_averager:peer", settings)
            if index == 0:
                entries.append(worker.receive(60)["address"])
                self._ids[host.name] = entries[0][0]
            else:
                answers[host.name] = worker
        for name, worker in answers.items():
            self._ids[name] = worker.receive(120)["address"][0]
        self._workers.gather(300)

    def round(self, kind: str) -> dict[str, Any]:
        """Let all peers average once with a plan of this kind; one row of figures."""
        known = self._workers.ask("settle", 60)
        planned = self._workers.ask("round", 120, kind=kind, server=self._ids[self.setup.server])
        machine, cpu = _machine.machine_time(), self._workers.cpu_s()
        started_s = time.monotonic()
        done = self._workers.ask("go", LONGEST_ROUND_S)
        seconds = max(d["done_s"] for d in done) - started_s
        machine_done, cpu_done = _machine.machine_time(), self._workers.cpu_s()
        shares = planned[0]["shares"]
        row = {
            "setup": self.setup.name,
            "kind": kind,
            "seconds": seconds,
            "predicted_s": planned[0]["predicted_s"],
            "sites": planned[0]["sites"],
            "shares": {name: round(shares.get(peer, 0.0), 4) for name, peer in self._ids.items()},
            "known": {name: [k["up"], k["down"]] for name, k in zip(self._ids, known, strict=True)},
            "cpu_share": (machine_done.busy_s - machine.busy_s) / (machine_done.total_s - machine.total_s),
            "cpu_s": round(cpu_done - cpu, 2),
            "failures": [failure for d in done for failure in d["failures"]][:5],
            "correct": len({d["digest"] for d in done}) == 1
            and not any(d["failures"] for d in done)
            and all(len(p["shares"]) == len(self.setup.hosts) for p in planned),
        }
        emit(**row)
        return row


def warm_up(swarm: Swarm, most: int) -> int:
    """Rounds until the plans no longer change: meanwhile the peers measure their links. Returns how many it took."""
    foreseen: list[float] = []
    while len(foreseen) < most:
        time.sleep(REST_S)
        foreseen.append(swarm.round("adaptive")["predicted_s"] or 0.0)
        if are_stable(foreseen):
            return len(foreseen)
    note(f"{swarm.setup.name}: the plans still change after {most} rounds")
    return most


def are_stable(foreseen: Sequence[float]) -> bool:
    """Whether the last plans expected what the ones before them did; these are the times, in seconds."""
    pairs = list(itertools.pairwise(foreseen))[-STABLE_ROUNDS:]
    return len(pairs) == STABLE_ROUNDS and all(b > 0.0 and abs(a - b) <= STABLE * b for b, a in pairs)


def measure(setup: Setup, kinds: Mapping[str, int], seed: int, most_warmup: int) -> dict[str, Any]:
    """All figures of one setup: of so many rounds with each kind of plan, after rounds until the plans are stable."""
    with Lab(setup.hosts, setup.paths) as lab, Workers() as workers:
        swarm = Swarm(setup, workers, seed)
        swarm.start(lab)
        warmup_rounds = warm_up(swarm, most_warmup)
        rows = {kind: [swarm.round(kind) for _ in range(count)] for kind, count in kinds.items()}
    seconds = {kind: round(statistics.median(row["seconds"] for row in rows[kind]), 3) for kind in kinds}
    figures = {
        "measured_s": seconds["adaptive"],
        "bound_s": round(setup.bound_s(), 3),
        "equal_parts_s": seconds["equal"],
        "parameter_server_s": seconds["server"],
        "predicted_s": rows["adaptive"][-1]["predicted_s"],
        "warmup_rounds": warmup_rounds,
        "cpu_share": round(max(row["cpu_share"] for row in rows["adaptive"]), 3),
        "correct": all(row["correct"] for each in rows.values() for row in each),
    }
    if setup.sites:
        two_level = all(row["sites"] for row in rows["adaptive"])
        figures |= {"flat_s": seconds["equal"], "two_level_s": seconds["adaptive"] if two_level else None}
    return figures
