"""What sketches cost: how fast they project a vector and expand the mean again, on one core.

    python -m benchmarks.sketches --json

The vector is one layer of GPT-2 small, with its biases and norms: 7.1 million elements, 28 MB as float32.

    project_mb_per_s    megabytes of the vector that a second projects: [median, minimum, maximum] of the repetitions
    expand_mb_per_s     the same of expanding the mean
    absorb_s            seconds in which the basis follows the mean
    share_sent          values by elements, mean over the rounds

ok: project and expand of each sketch together do at least 25 megabytes a second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks._report import finish, parser, spread
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.sketches.interface import make_sketch

SKETCHES = ("powersgd(rank=4, start=0)", "powersgd(rank=32, start=0)", "dct64")
LAYER = ((768, 2304), (768, 768), (768, 3072), (3072, 768), *[(768,)] * 6, (2304,), (3072,))
LEAST_MB_PER_S = 25.0


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and the seconds that it takes."""
    began = time.perf_counter()
    found = call()
    return found, time.perf_counter() - began


def measure(choice: str, repetitions: int) -> dict[str, Any]:
    """The figures of one sketch."""
    whole = VectorLayout(LAYER, "float16")
    sketch, vector = make_sketch(choice, whole), torch.randn(whole.total, generator=torch.Generator().manual_seed(1))
    megabytes, times, sent = whole.total * 4 / 1e6, [], 0
    for step in range(repetitions + 2):  # a basis has two sides, and the first time is slower
        values, project_s = timed(partial(sketch.project, vector, step))
        _, expand_s = timed(partial(sketch.expand, values, step))
        _, absorb_s = timed(partial(sketch.absorb, values, step))
        if step > 1:
            times.append((project_s, expand_s, absorb_s))
            sent += values.numel()
    project, expand, absorb = zip(*times, strict=True)
    return {
        "project_mb_per_s": spread([megabytes / each for each in project], 0),
        "expand_mb_per_s": spread([megabytes / each for each in expand], 0),
        "absorb_s": spread(absorb),
        "share_sent": round(sent / repetitions / whole.total, 5),
    }


def main() -> int:
    """Measure all, and print."""
    arguments = parser(__doc__)
    arguments.add_argument("--repetitions", type=int, default=10)
    settings = arguments.parse_args()
    torch.set_num_threads(1)
    figures = {choice: measure(choice, settings.repetitions) for choice in SKETCHES}
    speeds = [1 / (1 / each["project_mb_per_s"][0] + 1 / each["expand_mb_per_s"][0]) for each in figures.values()]
    return finish("sketches", min(speeds) >= LEAST_MB_PER_S, settings.json, **figures)


if __name__ == "__main__":
    sys.exit(main())
