"""How much memory training takes: the passes of some models, as counted and as measured, and what a peer adds.

    python -m benchmarks.memory --json

First, for some recipes, what a pass over a micro-batch takes above the parameters, as `minga plan --memory` counts it,
and as a child measures it: see `_memory_pass.py`.

Then how much memory a peer needs beside model, gradients and optimizer state, in each phase of its life. Each peer is a
process with a model of a few large matrices, whose gradients cost next to nothing, plain SGD, and the
default codec. Of `--peers` processes one hosts and the last one comes later. Figures are the largest resident memory in
a phase, less what the process had when all was imported and torch warm, less parameters and gradients: `extra_mb` in MB
(1e6 bytes), `vectors` in vectors of float32 that are as long as the model. The largest of all peers in the phase
counts.

    joining      of the newcomer, from its start to its second step
    serving      of the others meanwhile
    round        during some steps of all
    checkpoint   while each writes a checkpoint, and trains on
    healing      of a peer whose parameters were changed, and which fetches the right ones from the others
    mending      of the others, when one is killed in a round

ok: passes of 200 MiB and more are counted within 15 %, and extra_mb is at most two vectors and 200 MB in every phase,
at every size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import _memory_pass
from benchmarks._plain_spec import plain_spec
from benchmarks._processes import Message, Worker, Workers
from benchmarks._report import emit, finish, note, parser
from minga import RunSpec

LIMIT_VECTORS, LIMIT_MB = 2.0, 200.0
PER_PEER = 2
"""Micro-batches of each peer in a step."""
PATIENCE_S = 420.0
LOOK_S = 0.3


def spec_of(peers: int, every_steps: int) -> RunSpec:
    """A run of a custom loop with the defaults."""
    return plain_spec(
        "memory", PER_PEER * peers, state={"digest_every": 2}, checkpoints={"every_steps": every_steps, "keep": 1}
    )


class Peers:
    """The peers of one size, and what each needed in each phase."""

    def __init__(self, workers: Workers, parameters: int, peers: int, every_steps: int) -> None:
        self.workers, self._parameters = workers, parameters
        self.spec = spec_of(peers, every_steps).to_toml()
        self.link: str | None = None
        self.vector_bytes = 0
        self.rows: dict[str, dict[str, float]] = {}

    def start(self, name: str) -> Worker:
        """One more; returns at once."""
        directory = self.workers.directory / name
        settings = {"parameters": self._parameters, "link": self.link, "spec": self.spec, "directory": str(directory)}
        worker = self.workers.start(name, "benchmarks._memory_peer:peer", settings)
        if self.link is None:
            self.link = worker.receive(PATIENCE_S)["link"]
        return worker

    def wait_ready(self, worker: Worker) -> None:
        """Until it has the run's state."""
        self.vector_bytes = worker.receive(PATIENCE_S)["vector_bytes"]

    def until(self, what: str, workers: Sequence[Worker], is_done: Callable[[Message], bool]) -> list[Message]:
        """Look at all until each is done. Raises `RuntimeError` if that takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            told = self.workers.ask("look", PATIENCE_S, workers)
            if all(map(is_done, told)):
                return told
            time.sleep(LOOK_S)
        raise RuntimeError(f"{what} took longer than {PATIENCE_S:.0f} s")

    def steps(self, workers: Sequence[Worker], count: int) -> None:
        """Until each has taken so many more."""
        goal = count + max(each["step"] for each in self.workers.ask("look", PATIENCE_S, workers))
        self.until(f"{count} steps", workers, lambda each: each["step"] >= goal)

    def mark(self, workers: Sequence[Worker]) -> None:
        """A phase begins for these."""
        self.workers.ask("mark", PATIENCE_S, workers)

    def close(self, phase: str, workers: Sequence[Worker]) -> None:
        """A phase ends for these: note what the one with the largest peak needed."""
        told = self.workers.ask("look", PATIENCE_S, workers)
        extra = max(each["peak"] - each["base"] for each in told) - 2 * self.vector_bytes
        row = {"extra_mb": round(extra / 1e6, 1), "vectors": round(extra / self.vector_bytes, 3)}
        self.rows[phase] = row
        emit(parameters=self._parameters, phase=phase, **row)


def measure(parameters: int, peers: int, every_steps: int, phases: Sequence[str]) -> dict[str, Any]:
    """All phases at one size."""
    with Workers() as workers:
        swarm = Peers(workers, parameters, peers, every_steps)
        early = [swarm.start(f"early{number}") for number in range(peers - 1)]
        for worker in early:
            swarm.wait_ready(worker)
        swarm.steps(early, 2)
        swarm.mark(early)
        late = swarm.start("late")
        swarm.wait_ready(late)
        swarm.steps([late], 2)
        everybody = [*early, late]
        swarm.close("joining", [late])
        swarm.close("serving", early)
        if "round" in phases:
            swarm.mark(everybody)
            swarm.steps(everybody, 2)
            swarm.close("round", everybody)
        if "checkpoint" in phases:
            swarm.mark(everybody)
            saved = min(each["saved"] for each in workers.ask("look", PATIENCE_S, everybody))
            swarm.until("a checkpoint", everybody, lambda each: each["saved"] > saved)
            swarm.close("checkpoint", everybody)
        if "healing" in phases:
            swarm.mark([late])
            synced = workers.ask("disturb", PATIENCE_S, [late])[0]["synced"]
            swarm.until("healing", [late], lambda each: each["synced"] > synced)
            swarm.close("healing", [late])
        if "mending" in phases:
            swarm.mark(early)
            workers.ask("die", PATIENCE_S, [late])
            swarm.steps(early, 2)
            swarm.close("mending", early)
        for worker in workers.all:
            worker.kill()
        return {"vector_mb": round(swarm.vector_bytes / 1e6, 1), "phases": swarm.rows}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--millions", type=float, nargs="+", default=[18, 124, 355], help="parameters, in millions")
    options.add_argument("--peers", type=int, default=3, help="processes; two at most from 300 million parameters on")
    options.add_argument("--every", type=int, default=5, help="steps between two checkpoints")
    options.add_argument("--phases", nargs="*", default=["round", "checkpoint", "healing", "mending"])
    options.add_argument("--only", choices=("passes", "peers"), help="only one of the two parts")
    arguments = options.parse_args()
    passes = [] if arguments.only == "peers" else _memory_pass.compare()
    ok = not passes or _memory_pass.within(passes)
    if arguments.only == "passes":
        return finish("memory", ok, arguments.json, passes=passes)
    sizes = {}
    for millions in arguments.millions:
        peers = min(arguments.peers, 2) if millions >= 300 else arguments.peers
        note(f"{millions} million parameters, {peers} processes")
        size = measure(round(millions * 1e6), peers, arguments.every, arguments.phases)
        limit_mb = LIMIT_VECTORS * size["vector_mb"] + LIMIT_MB
        ok = ok and all(row["extra_mb"] <= limit_mb for row in size["phases"].values())
        sizes[f"{millions:g}"] = {"peers": peers, **size, "limit_mb": round(limit_mb, 1)}
    return finish("memory", ok, arguments.json, passes=passes, millions=sizes)


if __name__ == "__main__":
    raise SystemExit(main())
