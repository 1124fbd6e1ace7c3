"""Who comes and goes in the soak: kills and arrivals at random moments, from one seed."""

from __future__ import annotations

import random
import signal
import time

from benchmarks._recovery_swarm import Swarm, Told
from benchmarks._report import note

STAYERS = 2
"""Peers that are never killed."""
PAUSE_S = 8.0
"""Mean time between two strikes."""
LONGEST_ABSENCE_S = 6.0
START_S = 60.0


class Churn:
    """Kills one or two peers at a time, and lets others join in their places after a random while.

    It strikes only when everybody has taken a step: else the two could be half of those who took the last one, and by
    the rules of quorum nobody would ever take the next.
    The processes of newcomers are started beforehand, so that the import of torch is not part of their joining.
    """

    def __init__(self, swarm: Swarm, peers: int, seed: int) -> None:
        self.swarm, self.peers = swarm, peers
        self.stayers = list(swarm.peers)[:STAYERS]
        self.killed: dict[str, float] = {}
        """When each peer was killed, by name."""
        self.joined: dict[str, float] = {}
        """When each newcomer was told to join, by name."""
        self._rng = random.Random(f"minga soak {seed}")
        self._arrivals_s: list[float] = []
        self._strike_s = time.monotonic() + self._rng.expovariate(1 / PAUSE_S)
        self._reserve = [swarm.spawn(), swarm.spawn()]

    def run(self, until_s: float) -> None:
        """Come and go until `until_s`; at the end all places are taken again."""
        while time.monotonic() < until_s or self._arrivals_s:
            self._let_in()
            now = time.monotonic()
            full = len(self.swarm.peers) == self.peers and all(map(self.swarm.step, self.swarm.peers))
            if now >= self._strike_s and now < until_s and full:
                self._strike()
            due_s = min([self._strike_s, *self._arrivals_s]) if now < until_s else min(self._arrivals_s, default=now)
            self.check()
            time.sleep(min(0.5, max(0.05, due_s - now)))

    def check(self) -> None:
        """Raise `WorkerError` if a peer ended that nobody killed."""
        for worker in self.swarm.peers.values():
            if worker.process.poll() is not None:
                worker.receive(0.0)

    def _strike(self) -> None:
        able = [name for name in self.swarm.peers if name not in self.stayers]
        for name in self._rng.sample(able, self._rng.choice((1, 1, 2))):
            worker = self.swarm.peers.pop(name)
            worker.process.send_signal(signal.SIGKILL)
            self.killed[name] = time.monotonic()
            self._arrivals_s.append(time.monotonic() + self._rng.uniform(0.5, LONGEST_ABSENCE_S))
            note(f"killed {name}")
        self._strike_s = time.monotonic() + self._rng.expovariate(1 / PAUSE_S)

    def _let_in(self) -> None:
        for due_s in [due_s for due_s in self._arrivals_s if due_s <= time.monotonic()]:
            worker = self._reserve.pop(0)
            self.swarm.wait(lambda worker=worker: self._is_waiting(worker.name), START_S)  # type: ignore[misc]
            self.swarm.enter(worker, "trainer")
            self._arrivals_s.remove(due_s)
            self.joined[worker.name] = time.monotonic()
            self._reserve.append(self.swarm.spawn())
            note(f"{worker.name} joins")

    def _is_waiting(self, name: str) -> bool:
        def said(told: Told) -> bool:
            return told.name == name

        return any(map(said, self.swarm.of("waiting")))
