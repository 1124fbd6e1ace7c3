"""Crowds in the virtual world: the same counts, and the processor time of the simulator."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, cast

import torch

from benchmarks._crowd_counts import Counts, per_pair
from benchmarks._crowd_processes import MICRO_BATCHES, NUMEL, STEP_S, WARM_UP_STEPS, spec_of
from minga.core.spec.run_spec import RunSpec
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.simulation.virtual_time import run_virtual
from minga.training.replica.replica import Replica

LATENCY_S, LINE_BYTES_PER_S = 0.0005, 125e6


def measure(peers: int, steps: int, seed: int, counts: Counts | None) -> dict[str, Any]:
    """What an ordered pair costs in a step after the warm-up: with `counts` (installed) what is done, else processor
    time.
    """
    used: list[tuple[int, float, Counter[str], Counter[str]]] = []

    async def live() -> None:
        swarm = Swarm(spec_of().published({}), seed=seed, make_replica=_replica, gradient=_pull)
        for _ in range(peers):
            host = HostSettings(up_bytes_per_s=LINE_BYTES_PER_S, down_bytes_per_s=LINE_BYTES_PER_S, latency_s=LATENCY_S)
            swarm.add(host, TrainerSettings(1, STEP_S * peers / MICRO_BATCHES))
        try:
            for step in (2 * WARM_UP_STEPS, 2 * WARM_UP_STEPS + steps):
                await swarm.run_until_step(step)
                done = min(peer.replica.step for peer in swarm.alive())
                known = (counts.totals, counts.methods) if counts else (Counter[str](), Counter[str]())
                used.append((done, time.process_time(), Counter(known[0]), Counter(known[1])))
        finally:
            await swarm.close()

    run_virtual(live(), limit_s=36_000)
    (first, cpu_s, totals, methods), (last, cpu_end_s, end_totals, end_methods) = used
    taken = last - first
    if counts is None:
        return {"cpu_ms": round(1e3 * (cpu_end_s - cpu_s) / (taken * peers * (peers - 1)), 3)}
    methods_used = Counter({name: end_methods[name] - methods[name] for name in end_methods})
    return {
        **per_pair({name: end_totals[name] - totals[name] for name in end_totals}, peers, taken),
        "methods": per_pair(dict(methods_used.most_common()), peers, taken),
    }


def _replica(spec: RunSpec) -> Replica:
    torch.manual_seed(spec.training.seed)
    model = torch.nn.Linear(NUMEL, 1, bias=False)
    return Replica(spec, torch.optim.SGD(model.parameters(), lr=0.01), model=model)


def _pull(peer: SimulatedPeer, samples: int) -> None:
    del samples
    (weight,) = cast("Replica", peer.replica).vector.parameters()
    weight.grad = weight.detach().clone()
