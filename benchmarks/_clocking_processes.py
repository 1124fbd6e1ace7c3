"""Swarms of real processes over iroh for the clocking benchmark, and what such processes tell."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from benchmarks._clocking_steps import SLOWER, Step
from benchmarks._processes import Message, Worker, WorkerError, Workers
from minga import RunSpec

MICRO_BATCHES_A_STEP = 8
STEP_S = 1.2
"""Seconds of computing in a step: the machine has fewer cores than there are peers, and none to spare."""

SPEED_STEPS = (1.0, 0.7, 1.4, 0.8)
"""How fast the peers are, relative to each other."""

NUMEL = 20_000
PATIENCE_S = 120.0


def run(target_batch_size: int, peers: int, steps: int, warm_up: int, *, slow: bool) -> list[Step]:
    """Take steps with so many processes, and one more that is slow; returns those after the warm-up.

    Raises `WorkerError` if they do not get on.
    """
    standing = Standing()
    with Workers() as workers:
        spec = _spec(target_batch_size).to_toml()
        micro_batch = max(1, target_batch_size // (MICRO_BATCHES_A_STEP * peers))
        each_s = STEP_S * micro_batch * sum(SPEED_STEPS[:peers]) / target_batch_size
        speeds = [*SPEED_STEPS[:peers], *([1.0 / SLOWER] if slow else [])]
        link = ""
        for index, speed in enumerate(speeds):
            name = f"peer-{index}" if index < peers else "slow"
            settings = {"spec": spec, "link": link, "micro_batch": micro_batch, "micro_batch_s": each_s / speed}
            settings |= {"directory": str(workers.directory / name), "host": "127.0.0.1", "numel": NUMEL}
            worker = workers.start(name, "benchmarks._clocking_peer:peer", settings, standing)
            link = standing.wait_for_link(worker)
        watched = workers.all[:peers]
        first = standing.newest(watched) + warm_up
        standing.wait(lambda: all(standing.step(worker) >= first + steps for worker in watched))
        return standing.collect(workers.all)[first : first + steps]


class Standing:
    """What the processes told so far."""

    def __init__(self) -> None:
        self._links: dict[str, str] = {}
        self._steps: dict[str, int] = {}
        self._applied: dict[str, list[tuple[int, float, int]]] = {}

    def __call__(self, worker: Worker, message: Message) -> None:
        """Hear of something; on the thread that reads it."""
        if "link" in message:
            self._links[worker.name] = message["link"]
        elif "step" in message:
            self._steps[worker.name] = message["step"]
        else:
            self._applied[worker.name] = message["applied"]

    def wait_for_link(self, worker: Worker) -> str:
        """The link that a process tells when it has entered."""
        self.wait(lambda: worker.name in self._links)
        return self._links[worker.name]

    def step(self, worker: Worker) -> int:
        return self._steps.get(worker.name, 0)

    def newest(self, workers: list[Worker]) -> int:
        return max(map(self.step, workers))

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait for something. Raises `WorkerError` if it takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise WorkerError(f"waited in vain for {PATIENCE_S:.0f} s; steps: {self._steps}")
            time.sleep(0.05)

    def collect(self, workers: list[Worker]) -> list[Step]:
        """End all, and return all steps from the first on."""
        for worker in workers:
            worker.send("report")
        self.wait(lambda: len(self._applied) == len(workers))
        samples: dict[int, dict[str, int]] = defaultdict(dict)
        at_s: dict[int, float] = {}
        for name, applied in self._applied.items():
            for step, when_s, given in applied:
                samples[step][name] = given
                at_s[step] = min(when_s, at_s.get(step, when_s))
        return [Step(at_s.get(step, 0.0), samples[step]) for step in range(1, max(samples) + 1)]


def _spec(target_batch_size: int) -> RunSpec:
    return RunSpec.from_mapping(
        {
            "name": "clocking",
            "model": {"recipe": "custom"},
            "network": {"relay": "none"},
            "optimizer": {"max_grad_norm": "off"},
            "training": {"target_batch_size": target_batch_size},
            "averaging": {"codec": "float16"},
            "checkpoints": {"every_steps": 0},
        }
    )
