"""What minga costs a training loop: time, memory, start-up.

    python -m benchmarks.overhead --json

    alone              by workload, time of a peer that trains alone by that of the same loop in bare PyTorch, less 1:
                       two processes take turns, a block of micro-batches (one global step) each. `slowdown` is from the
                       median ratio of neighbouring blocks, `slowdown_fastest` from the fastest block of each,
                       `slowdown_cpu` from the CPU time of all threads; `block_s` has [median, minimum, maximum] seconds
                       of a bare block, `others_share` the share of the machine that others used meanwhile.
                       Judged is "albert" (6 times one layer of width 256, 8 texts of 64 tokens a micro-batch), which is
                       what minga is made for. Adding up the gradients costs a few passes over them, so the share is
                       larger where little is computed with each parameter: "transformer" (2 layers), "mlp" (0.4 million
                       parameters, 2 ms a micro-batch)
    extra_memory_mb    resident memory of a peer with 17.8 million parameters after some steps, less that of the same
                       loop in bare PyTorch; extra_peak_mb the same of the largest resident memory so far
    memory_limit_mb    150 MB and two vectors of float32
    import_s           seconds that `import minga` and the first use of its names take where torch is imported already:
                       [median, minimum, maximum]
    samples_per_s      of four processes together: "local" without communication, before and after "minga", that is four
                       trainers with the delayed strategy (an MLP of 256-512-512-10, micro-batches of 64)
    four_share         samples/s of minga by the mean of the two local ones, each by the share of the machine that was
                       left to them
    four_share_cpu     samples for each second of processor time of minga by those of the local ones: others
                       on the machine disturb this less
    others_share       share of the machine's CPU time that other processes used meanwhile, for each of the three

ok: slowdown (slowdown_fastest, where others_share exceeds 0.10) at most 0.01 for "albert", extra_memory_mb within
its limit, import_s at most 1, and four_share at least 0.80.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from typing import Any

from benchmarks import _machine
from benchmarks._plain_spec import plain_spec
from benchmarks._processes import PACKAGES, Message, Workers
from benchmarks._report import emit, finish, parser, spread

SLOWDOWN_LIMIT, MEMORY_LIMIT_MB, IMPORT_LIMIT_S, SHARE_LIMIT = 0.01, 150.0, 1.0, 0.80
LARGE_NUMEL = 4219 * 4220
BATCH = {"albert": 8, "transformer": 8, "mlp": 64, "large": 2}
BLOCK = {"albert": 8, "transformer": 24, "mlp": 256}
"""Micro-batches in a block, and thus in a global step, of the peer that trains alone."""
IMPORT = """
import time, torch
began = time.perf_counter()
import minga
minga.join, minga.Optimizer
print(time.perf_counter() - began)
import sys
assert "transformers" not in sys.modules, "import minga imports transformers"
"""


def settings_of(mode: str, workload: str, target: int, strategy: str = "synchronous") -> dict[str, Any]:
    """What a trainer process needs to know."""
    spec = plain_spec("overhead", target, training={"strategy": strategy}, averaging={"codec": "float32"})
    return {
        "mode": mode, "workload": workload, "target": target, "seed": 1, "link": None, "spec": spec.to_toml()
    }  # fmt: skip


def start(workers: Workers, name: str, settings: dict[str, Any]) -> Message:
    """Start one trainer and wait until it is ready; returns what it says about itself."""
    directory = str(workers.directory / name)
    return workers.start(name, "benchmarks._overhead_trainer:trainer", {**settings, "directory": directory}).receive(90)


def measure_alone(workload: str, blocks: int) -> dict[str, Any]:
    """What a single peer loses."""
    micro_batches = BLOCK[workload]
    with Workers() as workers:
        for mode in ("bare", "minga"):
            start(workers, mode, settings_of(mode, workload, micro_batches * BATCH[workload]))
        workers.ask("train", 120, micro_batches=micro_batches)
        machine, own = _machine.machine_time(), workers.cpu_s()
        told: dict[str, list[Message]] = {worker.name: [] for worker in workers.all}
        for block in range(blocks):
            for worker in workers.all[:: 1 if block % 2 else -1]:
                told[worker.name].append(worker.ask("train", 120, micro_batches=micro_batches))
        share = _machine.others_share(machine, _machine.machine_time(), workers.cpu_s() - own)
    bare, minga = ([t["seconds"] for t in told[name]] for name in ("bare", "minga"))
    cpu = {name: sum(t["cpu_s"] for t in blocks) for name, blocks in told.items()}
    return {
        "slowdown": round(statistics.median(m / b for m, b in zip(minga, bare, strict=True)) - 1, 4),
        "slowdown_fastest": round(min(minga) / min(bare) - 1, 4),
        "slowdown_cpu": round(cpu["minga"] / cpu["bare"] - 1, 4),
        "block_s": spread(bare),
        "others_share": round(share, 3),
    }


def measure_memory() -> tuple[float, float]:
    """Extra resident memory of a peer, in MB (1e6 bytes): at the end, and at its peak."""
    with Workers() as workers:
        for mode in ("bare", "minga"):
            start(workers, mode, settings_of(mode, "large", 8))
        for _ in range(3):
            workers.ask("train", 120, micro_batches=12)
        now, peak = [[_machine.memory_bytes(worker.pid, peak=peak) for worker in workers.all] for peak in (False, True)]
    emit(memory_mb=dict(zip(("bare", "minga"), [round(m / 1e6) for m in now], strict=True)))
    return (now[1] - now[0]) / 1e6, (peak[1] - peak[0]) / 1e6


def measure_import(times: int) -> list[float]:
    """Seconds that `import minga` takes in fresh processes that have imported torch."""
    path = os.pathsep.join([str(PACKAGES), os.environ.get("PYTHONPATH", "")])
    found = []
    for _ in range(times):
        command = [sys.executable, "-c", IMPORT]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        found.append(float(done.stdout))
    return found


def measure_four(mode: str, seconds: float, target: int) -> tuple[float, dict[str, Any]]:
    """Samples per second of four processes together, counted over whole steps, and remarks on them."""
    settings = settings_of(mode, "mlp", target if mode == "minga" else target // 4, "delayed")
    with Workers() as workers:
        link = start(workers, f"{mode}-0", settings)["link"]
        for index in range(1, 4):
            start(workers, f"{mode}-{index}", {**settings, "link": link})
        machine, cpu = _machine.machine_time(), workers.cpu_s()
        told = workers.ask("train", seconds + 60, seconds=seconds)
        own = workers.cpu_s() - cpu
        share = _machine.others_share(machine, _machine.machine_time(), own)
    # Steps of minga end for all at about the same time, those of the others for each on its own.
    rates = []
    for one in told:
        marks = one["steps"][1:]  # the first step also has what is needed to get going
        if len(marks) < 3:
            raise RuntimeError(f"only {len(one['steps'])} steps in {seconds} s; give it more --seconds")
        rates.append(sum(samples for _, samples in marks[1:]) / (marks[-1][0] - marks[0][0]))
    remarks = {
        "steps": min(len(one["steps"]) for one in told),
        "computed_per_s": round(sum(one["samples"] / one["seconds"] for one in told)),
        "cpu_s": round(own, 1),
        "samples_per_cpu_s": round(sum(one["samples"] for one in told) / own),
        "others_share": round(share, 3),
    }
    emit(four=mode, samples_per_s=round(sum(rates)), **remarks)
    return sum(rates), remarks


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--blocks", type=int, default=10, help="pairs of blocks of a peer alone")
    options.add_argument("--seconds", type=float, default=20.0, help="how long the four train, each time")
    options.add_argument("--target", type=int, default=65536, help="target batch size of the four")
    options.add_argument("--imports", type=int, default=5, help="processes that import the package, one by one")
    options.add_argument("--only", choices=["alone", "memory", "import", "four"], help="measure just this")
    arguments = options.parse_args()
    figures, ok = measure(arguments)
    return finish("overhead", ok, arguments.json, **figures)


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """All figures that were asked for, and whether they are within their limits."""
    figures: dict[str, Any] = {}
    ok = True
    if arguments.only in (None, "import"):
        seconds = measure_import(arguments.imports)
        figures["import_s"] = spread(seconds)
        ok = ok and statistics.median(seconds) <= IMPORT_LIMIT_S
    if arguments.only in (None, "memory"):
        extra, peak = measure_memory()
        limit = MEMORY_LIMIT_MB + 2 * 4 * LARGE_NUMEL / 1e6
        figures |= {"extra_memory_mb": extra, "extra_peak_mb": peak, "memory_limit_mb": limit}
        ok = ok and extra <= limit
    if arguments.only in (None, "alone"):
        figures["alone"] = {workload: measure_alone(workload, arguments.blocks) for workload in BLOCK}
        alone = figures["alone"]["albert"]
        quiet = alone["others_share"] <= _machine.QUIET_SHARE
        ok = ok and alone["slowdown" if quiet else "slowdown_fastest"] <= SLOWDOWN_LIMIT
    if arguments.only in (None, "four"):
        turns = [measure_four(mode, arguments.seconds, arguments.target) for mode in ("bare", "minga", "bare")]
        local = (turns[0][0] + turns[2][0]) / 2
        figures["samples_per_s"] = {"local": round(local), "minga": round(turns[1][0])}
        first, second, third = (rate / (1.0 - remarks["others_share"]) for rate, remarks in turns)
        figures["four_share"] = round(second / ((first + third) / 2), 4)
        before, ours, after = (remarks["samples_per_cpu_s"] for _, remarks in turns)
        figures["four_share_cpu"] = round(ours / ((before + after) / 2), 4)
        figures["others_share"] = [remarks["others_share"] for _, remarks in turns]
        ok = ok and figures["four_share"] >= SHARE_LIMIT
    return figures, ok


if __name__ == "__main__":
    raise SystemExit(main())
