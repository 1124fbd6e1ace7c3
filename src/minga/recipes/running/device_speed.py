"""How fast a device of this machine trains a recipe: forward and backward passes on made-up samples."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from minga.core.errors import ConfigurationError
from minga.core.spec.sections import OptimizerSection
from minga.core.units import counted
from minga.recipes.initial import new_model
from minga.recipes.interface import Recipe
from minga.recipes.running.micro_batch import ACCELERATOR_MICRO_BATCH, CPU_MICRO_BATCH, release
from minga.recipes.running.precision import Precision
from minga.training.replica.accelerator import is_out_of_memory
from minga.training.replica.build_optimizer import build_optimizer

WARM_UP_PASSES = 2
UPDATES = 3


@dataclass(frozen=True)
class DeviceSpeed:
    """What one device reaches with its best micro-batch. `update_s` is one optimizer step; `peak_bytes` the device's
    memory in use at most, None where it cannot be told.
    """

    micro_batch: int
    samples_per_s: float
    update_s: float
    peak_bytes: int | None


def devices() -> list[str]:
    """What this machine can compute with, the accelerators first."""
    found = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return [*found, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def hardware(device: torch.device) -> str:
    """What the device is called by its maker, as far as one can tell."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {counted(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else device.type


def measure_speed(
    recipe: Recipe[Any],
    optimizer_settings: OptimizerSection,
    device: torch.device,
    seconds: float,
    precision: Precision,
) -> DeviceSpeed:
    """Train the model of `recipe` on `device` in `precision`, for about `seconds` with each micro-batch.

    Begins with what `minga join` takes, halves it until there is memory for it, then tries half of that as well, which
    is faster on some machines; a size that the run prescribes is the only one. Raises `ConfigurationError` if there is
    no memory for a single sample, or for the prescribed size, and for a base in fewer bits than a new model has.
    """
    model = new_model(recipe)
    frozen_bytes = sum(each.nbytes for each in model.parameters() if not each.requires_grad)
    if 0 < recipe.facts().frozen_bytes < frozen_bytes:
        raise ConfigurationError(
            "a base in 8 or 4 bits is quantised from the files of a run, which a measurement has not, and with more "
            "bits it has another speed: measure with base_bits = 16 or 32"
        )
    model = model.to(device)
    optimizer, _ = build_optimizer(optimizer_settings, model, recipe.decayed)
    fixed = recipe.fixed_micro_batch_size
    micro_batch = fixed or (ACCELERATOR_MICRO_BATCH if device.type != "cpu" else CPU_MICRO_BATCH)
    best: DeviceSpeed | None = None
    while micro_batch >= 1:
        try:
            found = _measure(recipe, model, optimizer, micro_batch, seconds, precision)
        except Exception as error:  # devices have no class of errors in common
            if not is_out_of_memory(error):
                raise
            release()
            if fixed is not None:
                raise ConfigurationError(
                    f"{device} has too little memory for the run's {fixed} samples at once"
                ) from None
            micro_batch //= 2
            continue
        if fixed is not None:
            return found
        if best is not None:
            return max(best, found, key=lambda each: each.samples_per_s)
        best, micro_batch = found, micro_batch // 2
    if best is None:
        raise ConfigurationError(f"{device} has too little memory for one sample of this model")
    return best


def _measure(
    recipe: Recipe[Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    micro_batch: int,
    seconds: float,
    precision: Precision,
) -> DeviceSpeed:
    device = next(model.parameters()).device
    batch = {name: tensor.to(device) for name, tensor in recipe.synthetic_batch(micro_batch).items()}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

    def compute() -> None:
        with precision.autocast():
            loss = recipe.total_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        float(loss.item())  # waits until the device is done
        wait(device)

    for _ in range(WARM_UP_PASSES):
        compute()
    begun, passes = time.perf_counter(), 0
    while passes == 0 or time.perf_counter() - begun < seconds:
        compute()
        passes += 1
    speed = passes * micro_batch / (time.perf_counter() - begun)
    optimizer.step()  # makes the moments
    begun = time.perf_counter()
    for _ in range(UPDATES):
        optimizer.step()
    wait(device)
    update_s = (time.perf_counter() - begun) / UPDATES
    optimizer.zero_grad()
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return DeviceSpeed(micro_batch, speed, update_s, peak)


def wait(device: torch.device) -> None:
    """Until all that the device was asked to do is done."""
    torch.zeros((), device=device).cpu()
