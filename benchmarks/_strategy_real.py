"""Rounds of real processes on shaped links, to compare with what the virtual clock of `benchmarks.strategies` says.

Four homes behind routers and an auxiliary peer take steps over iroh, at kappa 1. A micro-batch is a pause, so what is
compared depends on this machine only where numbers are encoded, sent and added up. The homes know nothing of their
lines: they find out in the rounds of the warm-up. Needs root on Linux with iproute2 and nftables.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace
from typing import Any, Final

from benchmarks._processes import Workers
from benchmarks._standing import Standing
from benchmarks._strategy_clock import AUXILIARY, HOME_DOWN, HOME_UP, Clock
from benchmarks._strategy_methods import METHODS, Method
from benchmarks._strategy_round import CHUNK_BYTES
from benchmarks._strategy_tasks import GLOBAL_BATCH
from minga import RunSpec
from minga.averaging.codecs.layout import VectorLayout
from tests.netlab import Host, Lab

HOMES: Final = 4
NUMEL: Final = 2_000_000
KAPPA: Final = 1.0
WARM_UP: Final = 6
FIXED_S: Final = 0.02
"""The lab has no latency worth mention; the leader's grace remains."""
TOLERANCE: Final = 0.15


def points() -> list[Method]:
    """What is compared: int8, and local steps with so few of them that the round is a good part of the time."""
    return [METHODS["int8"], replace(METHODS["local-20"], name="local-4", batches=4)]


def compare(method: Method, steps: int) -> dict[str, Any]:
    """Seconds of a step in both worlds. Raises `WorkerError` if the processes do not get on."""
    layout = VectorLayout((NUMEL,), method.codec, method.download_codec)
    clock = Clock((1.0,) * HOMES, KAPPA, NUMEL, NUMEL, fixed_s=FIXED_S)
    chunks = layout.chunks(0, NUMEL, CHUNK_BYTES)
    up, down = sum(chunk.upload_bytes for chunk in chunks), sum(chunk.download_bytes for chunk in chunks)
    predicted_s = method.batches * clock.batch_s + clock.round_s([up] * HOMES, down)
    measured_s = _measure(method, clock, steps)
    off = predicted_s / measured_s - 1
    figures = {"predicted_s": round(predicted_s, 3), "measured_s": round(measured_s, 3), "off": round(off, 3)}
    return {**figures, "ok": abs(off) <= TOLERANCE}


def _measure(method: Method, clock: Clock, steps: int) -> float:
    """Seconds of a step in the median, after the warm-up."""
    standing, last = Standing(), WARM_UP + steps
    homes = [Host(f"home{i}", 8 * HOME_UP, 8 * HOME_DOWN, nat=f"router of home{i}") for i in range(HOMES)]
    hosts = [Host("auxiliary", 8 * AUXILIARY, 8 * AUXILIARY), *homes]
    micro_batch = GLOBAL_BATCH // HOMES
    with Lab(hosts) as lab, Workers() as workers:
        link = ""
        for host in hosts:
            settings = {
                "namespace": lab.namespace(host.name),
                "host": lab.address(host.name),
                "directory": str(workers.directory / host.name),
                "spec": _spec(method).to_toml(),
                "link": link,
                "role": "trainer" if host in homes else "auxiliary",
                "numel": NUMEL,
                "micro_batch": micro_batch,
                "micro_batch_s": clock.batch_s,
            }
            worker = workers.start(host.name, "benchmarks._pausing_peer:peer", settings, standing)
            link = link or standing.wait_for_link(worker)
        trainers = workers.all[1:]
        for step in range(1, last + 1):
            standing.wait(lambda step=step: all(standing.step(worker) >= step for worker in trainers))  # type: ignore[misc]
        taken = standing.collect(trainers)[WARM_UP - 1 : last]  # without the auxiliary peer none could end its step
    return statistics.median(b.at_s - a.at_s for a, b in itertools.pairwise(taken))


def _spec(method: Method) -> RunSpec:
    tables: dict[str, Any] = {
        "name": "strategies",
        "model": {"recipe": "custom"},
        "network": {"relay": "none"},
        "optimizer": {"max_grad_norm": "off"},
        "checkpoints": {"every_steps": 0},
        "training": {},
        **method.spec,
    }
    batch = {"target_batch_size": GLOBAL_BATCH * method.batches}
    return RunSpec.from_mapping({**tables, "training": {**tables["training"], **batch}})
