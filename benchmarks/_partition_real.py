"""One seeded partition of real processes in network namespaces."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from benchmarks._partition_play import CUT_S, HEALED_S, Partition, Verdict, stall_s
from benchmarks._processes import Message, Worker, WorkerError, Workers
from minga import RunSpec
from tests.netlab import Host, Lab

PEERS = 4
MICRO_BATCH, MICRO_BATCH_S, NUMEL = 4, 0.1, 10_000
BEFORE = 5
"""Steps that all have taken before anything happens."""
START_S = 90.0


class _Told:
    """What the processes told so far."""

    def __init__(self) -> None:
        self.links: list[str] = []
        self.steps: dict[str, int] = defaultdict(int)
        self.states: dict[int, set[str]] = defaultdict(set)
        self.applied: list[tuple[float, str]] = []
        self._changed = threading.Condition()

    def __call__(self, worker: Worker, message: Message) -> None:
        with self._changed:
            if "link" in message:
                self.links.append(message["link"])
            if "step" in message:
                self.steps[worker.name] = message["step"]
                self.states[message["step"]].add(message["digest"])
                self.applied.append((message["t"], worker.name))
            self._changed.notify_all()

    def wait_for_links(self, count: int) -> None:
        """Wait until so many peers are in the run."""
        self._wait(lambda: len(self.links) >= count)

    def wait_for_step(self, step: int) -> None:
        """Wait until all have taken `step`."""
        self._wait(lambda: len(self.steps) == PEERS and min(self.steps.values()) >= step)

    def _wait(self, condition: object) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, START_S):  # type: ignore[arg-type]
                raise WorkerError("the processes did not get on")


def play_real(seed: int) -> Verdict:
    """Play the partition of a seed with four processes; newcomers and kills are left to the simulated ones."""
    partition = Partition.drawn(seed, PEERS)
    verdict = Verdict(partition)
    names = [f"p{index}" for index in range(PEERS)]
    spec = RunSpec.from_mapping(
        {
            "name": "partitions",
            "training": {"target_batch_size": 2 * MICRO_BATCH * PEERS},
            "averaging": {"codec": "float32"},
        }
    )
    told = _Told()
    with Lab([Host(name) for name in names]) as lab, Workers() as workers:
        for index, name in enumerate(names):
            settings = {
                "namespace": lab.namespace(name),
                "host": lab.address(name),
                "directory": str(workers.directory / name),
                "spec": spec.to_toml(),
                "link": told.links[0] if told.links else "",
                "index": index,
                "numel": NUMEL,
                "micro_batch": MICRO_BATCH,
                "micro_batch_s": MICRO_BATCH_S,
            }
            workers.start(name, "benchmarks._partition_peer:peer", settings, told)
            told.wait_for_links(index + 1)
        told.wait_for_step(BEFORE)
        _divide(lab, names, partition)
        time.sleep(CUT_S)
        for a, b, _ in partition.cut_at_s:
            lab.restore(names[a], names[b], one_way=partition.shape == "one-way")
        healed_s = time.monotonic()
        time.sleep(HEALED_S)
        end_s = time.monotonic()
    apart = sorted(step for step, states in told.states.items() if len(states) > 1)
    if apart:
        verdict.forked_at, verdict.steps_apart = apart[0], len(apart)
    verdict.stall_s = stall_s(told.applied, healed_s, end_s)
    moved = {name for at_s, name in told.applied if at_s >= healed_s + HEALED_S * 2 / 3}
    verdict.stood_still = tuple(sorted(set(names) - moved))
    return verdict


def _divide(lab: Lab, names: list[str], partition: Partition) -> None:
    begun_s = time.monotonic()
    for a, b, at_s in sorted(partition.cut_at_s, key=lambda cut: cut[2]):
        time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
        lab.cut(names[a], names[b], one_way=partition.shape == "one-way")
