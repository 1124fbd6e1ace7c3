"""How many samples one backward pass takes: the largest number that this device has memory for, with a margin.

    the size that did last time, or one by device ─▶ too large? halve it ─▶ room left? double it, while that pays
        ─▶ try one eighth more: without room for that, take one eighth less ─▶ remembered for this run and device

A device that runs out of memory later, as others use it too, halves the size, and goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from minga.averaging.strategy_choice import smallest_round
from minga.core.errors import ConfigurationError
from minga.core.files import write_atomically
from minga.core.spec.run_spec import RunSpec
from minga.optim.arithmetic import is_out_of_memory
from minga.recipes.initial import new_model
from minga.recipes.interface import Batch, Recipe
from minga.recipes.running.precision import Precision
from minga.training.replica.accelerator import wait_for
from minga.training.replica.build_optimizer import build_optimizer, kept_bytes
from minga.training.replica.draws import keeping_draws

CPU_MICRO_BATCH, ACCELERATOR_MICRO_BATCH = 16, 64
"""Samples with which the search begins; on a CPU they are taken as they are."""

MARGIN = 8
"""The size is tried with one part in so many more."""

PAYS = 1.1
"""A size twice as large is taken if it computes so many times as many samples per second."""

FILE_NAME = "micro-batch.json"
MAX_FILE_BYTES = 1 << 14

TryOut = Callable[[int], float]
"""Computes a micro-batch of so many samples; returns the seconds that it took."""


def size_of_all(recipe: Recipe[Any]) -> int | None:
    """The size that the run says for all peers; None if each peer chooses its own."""
    return recipe.context.micro_batch_size or recipe.fixed_micro_batch_size


def check_wished(size: int, spec: RunSpec, recipe: Recipe[Any]) -> None:
    """Raise `ConfigurationError` unless the run takes micro-batches of the size that the owner of a machine wishes."""
    of_run = size_of_all(recipe)
    if of_run not in (None, size):
        raise ConfigurationError(f"--micro-batch {size}: in this run all compute {of_run} samples at once")
    if not 1 <= size <= smallest_round(spec):
        raise ConfigurationError(
            f"--micro-batch {size}: it must be from 1 to the run's target batch size, {smallest_round(spec)}"
        )


def largest_fit(try_out: TryOut, start: int, most: int, let_go: Callable[[], None] = lambda: None) -> int:
    """The size from 1 to `most` that suits the device, searched for from `start`; after each failure it can `let_go`.

    Raises `ConfigurationError` if there is no memory for a single sample.
    """
    size = max(1, min(start, most))
    while (seconds := _seconds(try_out, size, let_go)) is None:
        if size == 1:
            raise ConfigurationError("this device has too little memory for one sample of this model")
        size //= 2
    while 2 * size <= most:
        twice = _seconds(try_out, 2 * size, let_go)
        if twice is None or 2 * seconds < PAYS * twice:
            break
        size, seconds = 2 * size, twice
    more = size + -(-size // MARGIN)
    if size > 1 and _seconds(try_out, more, let_go) is None:
        size -= -(-size // MARGIN)
    return size


def _seconds(try_out: TryOut, size: int, let_go: Callable[[], None]) -> float | None:
    """How long a micro-batch of this size takes; None if it is too large. Libraries have many words for that, so any
    failure is taken for it that another size may not meet.
    """
    try:
        return try_out(size)
    except Exception as error:  # devices have no class of errors in common
        if not is_out_of_memory(error) and (size == 1 or not isinstance(error, RuntimeError)):
            raise
    let_go()
    return None


def release(device: torch.device) -> None:
    """Give memory that nothing uses back to the accelerator, and forget how much was used at most; outside of handlers,
    which keep what failed alive.
    """
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, "empty_cache"):
        module.empty_cache()
    if hasattr(module, "reset_peak_memory_stats"):
        module.reset_peak_memory_stats(device)


@dataclass(frozen=True)
class MadeUpPasses:
    """Forward and backward passes of a model on made-up samples, which leave it and random numbers as they were."""

    recipe: Recipe[Any]
    model: nn.Module
    device: torch.device
    precision: Precision

    def fit(self, start: int, most: int, *, moments: int, total: int) -> int:
        """The size from 1 to `most` that suits the device beside so many bytes of moments, and of the sum of the
        gradients if that leaves room for one. Raises `ConfigurationError` as `largest_fit` does.
        """
        let_go = partial(release, self.device)
        try:
            return largest_fit(lambda size: self.seconds(size, beside=(moments, total)), start, most, let_go)
        except ConfigurationError:
            if not total:
                raise
        finally:
            let_go()
        return self.fit(start, most, moments=moments, total=0)

    def seconds(self, size: int, *, beside: Sequence[int] = ()) -> float:
        """How long a pass of `size` samples takes, beside vectors of so many bytes on the device."""
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        others = [torch.zeros(each, dtype=torch.uint8, device=self.device) for each in beside]
        try:
            with keeping_draws(self.device):
                made_up = self.recipe.synthetic_batch(size)
                batch = {name: tensor.to(self.device) for name, tensor in made_up.items()}
                self._once(batch)  # the first pass of a size chooses kernels
                self.model.zero_grad(set_to_none=True)
                begun = time.perf_counter()
                self._once(batch)
                return time.perf_counter() - begun
        finally:
            del others
            self.model.zero_grad(set_to_none=True)
            with torch.no_grad():
                for name, buffer in self.model.named_buffers():
                    buffer.copy_(buffers[name])

    def _once(self, batch: Batch) -> None:
        with self.precision.autocast():
            loss = self.recipe.total_loss(self.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        wait_for(self.device)


class RememberedSizes:
    """The sizes that were found for one run, by device; kept in the run's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def get(self, device: str) -> int | None:
        """The size that did last time; None if there is none, or the file is damaged."""
        size = self._read().get(device)
        return size if isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= 1 << 24 else None

    def keep(self, device: str, size: int) -> None:
        """Remember a size; a disk that refuses is no reason not to train."""
        try:
            write_atomically(self._path, json.dumps({**self._read(), device: size}).encode())
        except OSError:
            return

    def _read(self) -> dict[str, object]:
        try:
            with self._path.open("rb") as file:
                found = json.loads(file.read(MAX_FILE_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


# ---- How fast a device trains a recipe, on made-up samples: what `minga plan` reckons with.


UPDATES = 3


@dataclass(frozen=True)
class DeviceSpeed:
    """What one device reaches with micro-batches as a run takes them. `update_s` is one optimizer step; `peak_bytes`
    the device's memory in use at most, None where it cannot be told.
    """

    micro_batch: int
    samples_per_s: float
    update_s: float
    peak_bytes: int | None


def measure_speed(
    recipe: Recipe[Any], spec: RunSpec, device: torch.device, seconds: float, precision: Precision
) -> DeviceSpeed:
    """Train the model of `recipe` on `device` in `precision` for about `seconds`.

    Raises `ConfigurationError` if there is no memory for a single sample, or for the size that the run prescribes, and
    for a base in fewer bits than a new model has.
    """
    model = new_model(recipe)
    frozen_bytes = sum(each.nbytes for each in model.parameters() if not each.requires_grad)
    if 0 < recipe.parameter_sizes().frozen_bytes < frozen_bytes:
        raise ConfigurationError(
            "a base in 8 or 4 bits is quantised from the files of a run, which a measurement has not, and with more "
            "bits it has another speed: measure with base_bits = 16 or 32"
        )
    passes, most = MadeUpPasses(recipe, model.to(device), device, precision), smallest_round(spec)
    start = CPU_MICRO_BATCH if device.type == "cpu" else ACCELERATOR_MICRO_BATCH
    if (size := size_of_all(recipe) or 0) == 0:
        total = 4 * sum(each.numel() for each in model.parameters() if each.requires_grad)
        limit = min(start, most) if device.type == "cpu" else most
        size = passes.fit(start, limit, moments=kept_bytes(model, spec.optimizer), total=total)
    try:
        return _measure(passes, spec, seconds, size)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigurationError(f"{device} has too little memory to train with {size} samples at once") from error


def _measure(passes: MadeUpPasses, spec: RunSpec, seconds: float, size: int) -> DeviceSpeed:
    recipe, model, device = passes.recipe, passes.model, passes.device
    release(device)
    begun, taken = time.perf_counter(), [passes.seconds(size)]
    while time.perf_counter() - begun < seconds:
        taken.append(passes.seconds(size))
    optimizer, _ = build_optimizer(spec.optimizer, model, recipe.decayed)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()  # makes the moments
    wait_for(device)
    begun = time.perf_counter()
    for _ in range(UPDATES):
        optimizer.step()
    wait_for(device)
    update_s = (time.perf_counter() - begun) / UPDATES
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return DeviceSpeed(size, len(taken) * size / sum(taken), update_s, peak)
