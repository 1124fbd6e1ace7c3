"""What processes tell that train with pauses for micro-batches (`_pausing_peer`): their link, and their steps."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks._processes import Message, Worker, WorkerError

PATIENCE_S = 120.0


@dataclass(frozen=True)
class Step:
    """One step that was taken: when (in seconds, by the first peer that had it), and the samples of each member."""

    at_s: float
    samples: dict[str, int]


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

    def wait_for_step(self, step: int, workers: list[Worker]) -> None:
        """Wait until all have made this step."""
        self.wait(lambda: all(self.step(worker) >= step for worker in workers))

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
