"""The passes of some recipes: what `minga plan --memory` counts, beside what a process takes. One child for each.

Accelerators report the bytes of tensors that are there. On the processor the same shows in resident memory if freed
tensors go back to the system at once, so the child asks the C library for that. Its usual heap keeps some of them,
which is measured as well (`on_heap_mib`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from benchmarks._memory_peer import reset_peak, resident_bytes
from benchmarks._processes import Workers
from benchmarks._report import emit
from benchmarks._worker import Channel
from minga.averaging.strategy_choice import StrategyChoice
from minga.core.free_memory import give_back_free_memory
from minga.core.spec.run_spec import RunSpec
from minga.planner.device_memory import counted_passes, device_memory
from minga.planner.model_facts import facts_of_recipe, recipe_spec
from minga.recipes.initial import new_model
from minga.recipes.registry import load_recipe

M_MMAP_THRESHOLD, MAPPED_BYTES = -3, 128 << 10
"""glibc's name for the size from which a block comes from the system itself, and goes back to it."""
LARGE_BYTES: Final = 200 << 20
TOLERANCE: Final = 0.15
PATIENCE_S: Final = 300.0


class Case(NamedTuple):
    """A recipe with its size, samples of a micro-batch, tokens of a sample (None: as usual), and how it is computed."""

    model: str
    micro_batch: int
    tokens: int | None = None
    checkpoints: bool = False
    precision: str = "float32"


CASES: Final = (
    Case("causal-lm-tiny", 8, 128),
    Case("masked-lm-tiny", 8, 128),
    Case("albert-base", 2, 128),
    Case("swav-tiny", 32),
    Case("causal-lm-tiny", 32, 128),
    Case("causal-lm-small", 8, 128),
    Case("causal-lm-small", 8, 256, checkpoints=True),
    Case("causal-lm-tiny", 32, 256, precision="bfloat16"),
    Case("masked-lm-small", 16, 128),
    Case("albert-base", 4, 256),
    Case("swav-small", 16),
    Case("text-to-image-small", 8),
)


def compare(cases: tuple[Case, ...] = CASES) -> list[dict[str, Any]]:
    """Each case predicted and measured, in MiB above parameters and moments."""
    rows = []
    for case in cases:
        predicted = _predicted(case)
        with Workers() as workers:
            measured = _measured(workers, case, heap=False)
            on_heap = _measured(workers, case, heap=True)
        row = {
            **case._asdict(),
            "predicted_mib": round(predicted / 2**20, 1),
            "measured_mib": round(measured / 2**20, 1),
            "on_heap_mib": round(on_heap / 2**20, 1),
            "ratio": round(predicted / measured, 3),
        }
        emit(**row)
        rows.append(row)
    return rows


def within(rows: list[dict[str, Any]]) -> bool:
    """Whether all large cases are within the tolerance."""
    large = [row for row in rows if row["measured_mib"] * 2**20 >= LARGE_BYTES]
    return len(large) >= 3 and all(abs(row["ratio"] - 1.0) <= TOLERANCE for row in large)


def spec_of(case: Case) -> RunSpec:
    """A run of the case's recipe, whose micro-batch is the case's where the run fixes it."""
    spec = recipe_spec(case.model, case.tokens)
    if load_recipe(spec).fixed_micro_batch_size is None:
        return spec
    return spec.with_recipe_settings({**spec.recipe_settings, "micro_batch_size": case.micro_batch})


def _measured(workers: Workers, case: Case, *, heap: bool) -> float:
    settings = {"case": case._asdict(), "heap": heap}
    return float(workers.start(f"pass{heap:d}", "benchmarks._memory_pass:take", settings).receive(PATIENCE_S)["bytes"])


def _predicted(case: Case) -> float:
    spec = spec_of(case)
    model = facts_of_recipe(spec, case.model)
    passes = counted_passes(spec, dtype=_dtype(case), checkpoints_activations=case.checkpoints)
    return device_memory(model, spec.optimizer, StrategyChoice.of(spec), passes).of_pass(case.micro_batch)


def _dtype(case: Case) -> torch.dtype | None:
    return None if case.precision == "float32" else torch.bfloat16


def take(channel: Channel, settings: dict[str, Any]) -> None:
    """In the child: measure the pass of a case, after one with few samples that loads what PyTorch needs."""
    torch.set_num_threads(1)
    if not settings["heap"]:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
    case = Case(**settings["case"])
    spec = spec_of(case)
    recipe = load_recipe(spec)
    model = new_model(recipe)
    if case.checkpoints:
        recipe.checkpoint_activations(model)

    def measured(run: Callable[[], None]) -> int:
        give_back_free_memory()
        before = resident_bytes()
        reset_peak()
        run()
        return resident_bytes("VmHWM:") - before

    def a_pass(size: int) -> None:
        batch = recipe.synthetic_batch(size)
        with torch.autocast("cpu", torch.bfloat16, enabled=case.precision != "float32"):
            loss = recipe.total_loss(model, batch)
        loss.backward()
        del loss
        model.zero_grad()

    a_pass(min(2, case.micro_batch))
    channel.send(bytes=measured(lambda: a_pass(case.micro_batch)))
