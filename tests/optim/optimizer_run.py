"""Plays all optimizers on given gradients and says what comes out: for processes that compute in different ways.

    python -m tests.optim.optimizer_run STEPS THREADS…   prints {"width": …, "digests": {optimizer: {threads: digest}}}

Everything random is drawn by NumPy: torch's own numbers depend on the vector width.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from blake3 import blake3

from minga.optim import LAMB, LARC, LARS, SGD, AdamW, MomentStorage, Muon, clip_by_global_norm

SHAPES = ((331, 151), (37, 129), (8195,), (4, 3, 5, 5), (65, 33), (7,), ())
TINY, STRIDED, HALF = 2, 3, 4
"""A tensor whose gradients are near the smallest numbers there are, one with channels last, and one of bfloat16."""
CONTROL = "torch.optim.AdamW"

CODED = MomentStorage(8, block=256, least_numel=30)


def _by_kind(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups, each divided into matrices and the rest."""
    return [
        {**group, "params": [each for each in group["params"] if (each.ndim >= 2) == is_matrix], "use_muon": is_matrix}
        for group in groups
        for is_matrix in (True, False)
    ]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "nesterov": lambda p: SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adamw": lambda p: AdamW(p, lr=1e-3, weight_decay=0.1),
    "lamb": lambda p: LAMB(p, lr=1e-3),
    "adamw8": lambda p: AdamW(p, lr=1e-3, weight_decay=0.1, storage=CODED),
    "lamb8": lambda p: LAMB(p, lr=1e-3, debias=False, storage=CODED),
    "lars": lambda p: LARS(p, lr=1.0, weight_decay=1e-3),
    "larc": lambda p: LARC(p, lr=1.0, weight_decay=1e-3),
    "muon": lambda p: Muon(_by_kind(p), lr=1e-3, weight_decay=1e-3),
    CONTROL: lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1),
}


def play(name: str, steps: int, device: str = "cpu") -> str:
    """The digest of parameters, state and norms after some clipped steps."""
    generator = np.random.default_rng(1)
    values = [generator.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    drawn = [[generator.standard_normal(shape).astype(np.float32) for shape in SHAPES] for _ in range(5)]
    parameters = [torch.nn.Parameter(torch.from_numpy(np.asarray(value)).to(device)) for value in values]
    parameters[STRIDED] = torch.nn.Parameter(parameters[STRIDED].detach().to(memory_format=torch.channels_last))
    parameters[HALF] = torch.nn.Parameter(parameters[HALF].detach().bfloat16())
    optimizer = OPTIMIZERS[name](
        [{"params": parameters[:4]}, {"params": parameters[4:], "lr": 3e-3, "weight_decay": 0.0}]
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step % 7))
    hashed = blake3()
    for step in range(steps):
        for index, parameter in enumerate(parameters):
            scale = np.float32(10.0 ** generator.integers(-3, 2) * (1e-37 if index == TINY else 1.0))
            gradient = torch.from_numpy(np.asarray(drawn[step % 5][index] * scale))
            parameter.grad = torch.empty_like(parameter).copy_(gradient)
        norm = clip_by_global_norm(parameters, 1.0)
        hashed.update(np.float64(norm).tobytes())
        optimizer.step()
        schedule.step()
    for parameter in parameters:
        for tensor in (parameter.detach(), *(each for _, each in sorted(optimizer.state[parameter].items()))):
            hashed.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def play_all(steps: int, threads: Sequence[int]) -> dict[str, dict[str, str]]:
    """The digests by optimizer and number of threads; of the control only with the first number."""
    digests: dict[str, dict[str, str]] = {name: {} for name in OPTIMIZERS}
    before = torch.get_num_threads()
    for number in threads:
        torch.set_num_threads(number)
        for name in OPTIMIZERS:
            if name != CONTROL or number == threads[0]:
                digests[name][str(number)] = play(name, steps)
    torch.set_num_threads(before)
    return digests


def main() -> None:
    digests = play_all(int(sys.argv[1]), [int(number) for number in sys.argv[2:]])
    print(json.dumps({"width": torch.backends.cpu.get_cpu_capability(), "digests": digests}))


if __name__ == "__main__":
    main()
