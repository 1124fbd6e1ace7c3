"""Equal gradients give equal bits: with any vector width and number of threads, and on accelerators."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minga.optim import SGD, AdamW, ReproducibleOptimizer, norms, pieces
from tests.optim.optimizer_run import CONTROL, OPTIMIZERS, play, play_all
from tests.worlds import forked
from tests.worlds.seeds import soaked

pytestmark = pytest.mark.promise("reproducible-optimizers")

ROOT = Path(__file__).parent.parent.parent
STEPS = 200
FEW_STEPS = 4
THREADS = (1, 3)
WIDTHS = ("default", "avx2", "avx512")
OURS = [name for name in OPTIMIZERS if name != CONTROL]


def widths_here() -> tuple[str, ...]:
    """The vector widths that this processor has, of those that can be chosen."""
    widest = torch.backends.cpu.get_cpu_capability().lower()
    return WIDTHS[: WIDTHS.index(widest) + 1] if widest in WIDTHS else ("default",)


def played(width: str, steps: int) -> dict[str, dict[str, str]]:
    """The digests of a process with this vector width after so many steps, by optimizer and number of threads."""
    if width == torch.backends.cpu.get_cpu_capability().lower():
        return play_all(steps, THREADS)  # this process has it
    words = ("-m", "tests.optim.optimizer_run", str(steps), *map(str, THREADS))
    if width == "default":
        done = forked.run_otherwise(*words)
    else:
        env = {**os.environ, "ATEN_CPU_CAPABILITY": width, "OMP_WAIT_POLICY": "passive"}
        done = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["width"].lower() == width
    digests: dict[str, dict[str, str]] = told["digests"]
    return digests


@pytest.mark.timeout(600)
@pytest.mark.parametrize("steps", [FEW_STEPS, soaked(STEPS)])
def test_bits_depend_neither_on_vector_width_nor_on_threads(steps: int) -> None:
    """One test, since it takes a process for each width. Where there are several, torch's own optimizer differs.

    With few steps the widest and none at all are tried.
    """
    widths = widths_here() if steps > FEW_STEPS else {widths_here()[0], widths_here()[-1]}
    by_width = {width: played(width, steps) for width in sorted(widths)}
    for name in OURS:
        digests = {width: digests[name] for width, digests in by_width.items()}
        assert len({each for by_threads in digests.values() for each in by_threads.values()}) == 1, f"{name}: {digests}"
    for width in by_width.keys() - {"default"}:
        assert by_width[width][CONTROL]["1"] != by_width["default"][CONTROL]["1"]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.cuda), "mps"])
def test_an_accelerator_gives_the_bits_of_the_cpu(device: str, name: str) -> None:
    if not (torch.cuda.is_available() if device == "cuda" else torch.backends.mps.is_available()):
        pytest.skip(f"this machine has no {device}")
    assert play(name, STEPS, device) == play(name, STEPS)


@pytest.mark.parametrize("name", OURS)
def test_bits_do_not_depend_on_how_tensors_are_cut_and_joined(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = play(name, 3)
    monkeypatch.setattr(pieces, "CPU_PIECE", 1000)
    monkeypatch.setattr(pieces, "JOINED_BELOW", 30)
    monkeypatch.setattr(pieces, "CPU_PART", 5000)
    monkeypatch.setattr(norms, "_BLOCK", 1 << 8)
    assert play(name, 3) == expected
    monkeypatch.setattr(pieces, "JOINED_BELOW", 1 << 20)
    monkeypatch.setattr(norms, "_BLOCK", 1 << 22)
    assert play(name, 3) == expected


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = np.random.default_rng(3)
    shapes = [(200, 111), (33, 7), (50,), (3, 3, 3), ()]
    values = [torch.from_numpy(np.asarray(0.3 * generator.standard_normal(shape))).to(dtype) for shape in shapes]
    return [torch.nn.Parameter(value) for value in values]


PAIRS = {
    "adamw": (lambda p: AdamW(p, lr=1e-3, weight_decay=0.1), lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1)),
    "adamw plain": (
        lambda p: AdamW(p, lr=1e-3, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.0),
        lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.0),
    ),
    "sgd": (lambda p: SGD(p, lr=0.003), lambda p: torch.optim.SGD(p, lr=0.003)),
    "momentum": (
        lambda p: SGD(p, lr=0.001, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.001, momentum=0.9, weight_decay=0.01),
    ),
    "nesterov": (
        lambda p: SGD(p, lr=0.001, momentum=0.9, weight_decay=0.01, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.001, momentum=0.9, weight_decay=0.01, nesterov=True),
    ),
}


def follow(optimizer: torch.optim.Optimizer, trained: list[torch.nn.Parameter], first: int, last: int) -> None:
    """Take steps by gradients that follow from the number of the step, with a schedule."""
    for step in range(first, last):
        for index, parameter in enumerate(trained):
            drawn = np.random.default_rng([step, index]).standard_normal(tuple(parameter.shape))
            parameter.grad = torch.from_numpy(np.asarray(drawn)).to(parameter.dtype)
        for group in optimizer.param_groups:
            group["lr"] *= 0.99
        optimizer.step()


def distance(ours: list[torch.nn.Parameter], theirs: list[torch.nn.Parameter]) -> float:
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("dtype", "steps", "bound"), [(torch.float32, 100, 1e-6), (torch.float64, 10, 1e-15)])
@pytest.mark.parametrize("name", PAIRS)
def test_equals_the_optimizer_of_torch(name: str, dtype: torch.dtype, steps: int, bound: float) -> None:
    ours, theirs = parameters(dtype), parameters(dtype)
    make, make_theirs = PAIRS[name]
    follow(make(ours), ours, 0, steps)
    follow(make_theirs(theirs), theirs, 0, steps)
    assert distance(ours, theirs) <= bound


@pytest.mark.parametrize("name", ["adamw", "momentum", "nesterov"])
def test_takes_over_the_state_of_torch(name: str) -> None:
    ours, theirs = parameters(), parameters()
    make, make_theirs = PAIRS[name]
    before, after, alone = make_theirs(theirs), make(ours), make_theirs(theirs)
    follow(before, theirs, 0, 20)
    for own, parameter in zip(ours, theirs, strict=True):
        own.data.copy_(parameter.data)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    alone.load_state_dict(copy.deepcopy(after.state_dict()))  # and back
    follow(after, ours, 20, 40)
    follow(alone, theirs, 20, 40)
    assert distance(ours, theirs) <= 1e-6


@pytest.mark.parametrize("name", OURS)
def test_settings_of_groups_and_missing_gradients(name: str) -> None:
    first, second, third = (torch.nn.Parameter(torch.ones(5)) for _ in range(3))
    optimizer = OPTIMIZERS[name]([{"params": [first, third]}, {"params": [second], "lr": 0.0}])
    for parameter in (first, second):
        parameter.grad = torch.ones(5)
    optimizer.step()
    assert not torch.equal(first, torch.ones(5))
    assert torch.equal(second, torch.ones(5))
    assert torch.equal(third, torch.ones(5))
    assert third not in optimizer.state
    assert isinstance(optimizer, ReproducibleOptimizer)
