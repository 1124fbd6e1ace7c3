"""How much memory one machine needs to train a model, and which micro-batch fits: `minga plan --model M --memory 8GB`.

    device     the frozen base, parameters + moments + the larger of: a pass over a micro-batch beside the sum of the
               gradients, and the update
    a pass     gradients and activations at its worst moment, counted on tensors without memory for a few sizes of
               micro-batch
    its room   a twentieth of the activations and 16 MiB on top, for what operations take inside of themselves
    the update gradients of the mean, and scratch memory of the optimizer
    RAM        the sum of the gradients (two with the delayed strategy) and the result of a round; with --offload also
               parameters, moments and the update, and the device holds parameters and gradients alone. Where plans
               know the round: the part that this peer reduces as it is sent, and a copy of the state for a newcomer, if
               that is small: a large one is a file

Where no recipe of the model is here, what a sample keeps is multiplied by `KEPT_TO_PEAK`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from minga.averaging.strategy_choice import StrategyChoice
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import OptimizerSection
from minga.planner.model_facts import WITH_SCRATCH, ModelFacts
from minga.training.replica.build_optimizer import moment_bytes
from minga.training.state.snapshot import FILED_BYTES

if TYPE_CHECKING:
    import torch


KEPT_TO_PEAK: Final = 1.45
"""How much larger a pass is at its worst moment than what it keeps from forward to backward."""
WORKSPACE_SHARE, WORKSPACE_BYTES = 0.05, 16 << 20
FILLED: Final = 0.9
"""Share of a device's memory that a micro-batch may fill: the rest is for the runtime and for fragments."""
HOST_BYTES_PER_S: Final = 12e9
"""Between RAM and a device, over 16 lanes of PCI Express 3."""
LARGEST_MICRO_BATCH: Final = 1 << 20
COUNTED_SIZES: Final = (1, 8, 16)
"""Micro-batches that are counted. The worst moment of a small one may be where all gradients are there."""


@dataclass(frozen=True)
class PassMemory:
    """Bytes above the parameters at the worst moment of a pass over so many samples, gradients included.

    `counted` has at least two sizes of micro-batch in ascending order; between and beyond them bytes lie on straight
    lines. Nothing is known of activations if it is all gradients (`is_known` is False).
    """

    counted: tuple[tuple[int, float], ...]
    is_known: bool = True

    def of(self, micro_batch_size: int) -> float:
        """Those of a micro-batch (without unknown activations)."""
        place = 1
        while place < len(self.counted) - 1 and micro_batch_size > self.counted[place][0]:
            place += 1
        (small, least), (large, most) = self.counted[place - 1 : place + 1]
        return least + (most - least) * (micro_batch_size - small) / (large - small)


NO_PASSES: Final = PassMemory(((0, 0.0), (1, 0.0)))
"""Those of a peer that computes nothing."""


@dataclass(frozen=True)
class DeviceMemory:
    """What one machine needs, in bytes. `gradients` and `scratch` are those of an update, `sums` what an accelerator
    has of sums of gradients, `wire` what the machine reduces of a round, `state_copy` the state that a newcomer gets.
    """

    parameters: int
    gradients: int
    moments: int
    scratch: int
    sums: int
    averaging: int
    passes: PassMemory
    offload: bool = False
    base: int = 0
    wire: int = 0
    state_copy: int = 0
    pinned: int = 0
    """What is added to RAM at most where the device is CUDA."""

    @property
    def resting(self) -> int:
        """What is always on the device."""
        return self.base + self.parameters + (0 if self.offload else self.moments)

    @property
    def update(self) -> int:
        """What an update adds on the device."""
        return 0 if self.offload else self.gradients + self.scratch

    @property
    def ram(self) -> int:
        """What is in RAM beside the program and the data; the device comes on top where it is the processor."""
        away = self.parameters + self.moments + self.gradients + self.scratch
        copied = self.state_copy if self.state_copy < FILED_BYTES else 0
        return self.averaging + self.wire + copied + (away if self.offload else 0)

    @property
    def transfer_per_step(self) -> int:
        """Bytes between an accelerator and RAM for a step of one micro-batch: the sum of the gradients comes, and the
        mean goes back, or parameters do. Without a sum on the accelerator each further micro-batch brings its
        gradients, too.
        """
        return 2 * self.gradients

    def of_pass(self, micro_batch_size: int) -> float:
        """What a micro-batch adds to the parameters, with room for what operations take inside of themselves."""
        found = self.passes.of(micro_batch_size)
        return found + WORKSPACE_SHARE * max(0.0, found - self.gradients) + WORKSPACE_BYTES

    def device(self, micro_batch_size: int) -> int:
        """What has to fit on the device."""
        return round(self.resting + max(self.of_pass(micro_batch_size) + self.sums, self.update))

    def largest_micro_batch(self, memory_bytes: float) -> int | None:
        """The largest that fits into `FILLED` of the memory, 0 if none does; None if activations are unknown."""
        if not self.passes.is_known:
            return None
        low, high = 0, LARGEST_MICRO_BATCH
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.device(middle) <= FILLED * memory_bytes else (low, middle - 1)
        return low


def device_memory(
    model: ModelFacts,
    optimizer: OptimizerSection,
    strategy: StrategyChoice,
    passes: PassMemory,
    *,
    offload: bool = False,
) -> DeviceMemory:
    """The memory of a machine that trains `model`, whose passes take `passes`."""
    size = 4 * model.parameters
    # On the processor an update takes the tensors one after the other, elsewhere all at once.
    scratch = 4 * max(model.tensors) if offload else size
    facts = strategy.facts
    has_sums = facts.payload == "gradient" and not offload
    # PyTorch takes RAM that CUDA writes to in powers of two: here for whole vectors, or for the parameters.
    pinned = [4 * each for each in model.tensors] if offload else [size] * (facts.vectors + 1)
    return DeviceMemory(
        parameters=size,
        gradients=size,
        moments=moment_bytes(model.tensors, optimizer),
        scratch=scratch if optimizer.name in WITH_SCRATCH else 0,
        sums=size * (1 + facts.max_in_flight) if has_sums else 0,
        averaging=size * (facts.vectors + 1),
        passes=passes,
        offload=offload,
        base=model.frozen_bytes if model.base is None else model.base.size_bytes,
        pinned=sum((1 << (each - 1).bit_length()) - each for each in pinned),
    )


def state_bytes(tensors: Sequence[int], optimizer: OptimizerSection, strategy: StrategyChoice) -> int:
    """What a newcomer fetches: parameters, what the strategy shares beside them, and the optimizer's state where it is
    the same for all.
    """
    facts = strategy.facts
    moments = moment_bytes(tensors, optimizer) if facts.shares_optimizer else 0
    return 4 * (1 + facts.shared_vectors) * sum(tensors) + moments


def counted_passes(
    spec: RunSpec, *, dtype: torch.dtype | None = None, checkpoints_activations: bool = False
) -> PassMemory:
    """The passes of the recipe of `spec`, counted; computed in `dtype` under autocast, None is float32.

    Raises `ConfigurationError` for a recipe that cannot compute activations again and should.
    """
    from minga.recipes.counting import peak_bytes
    from minga.recipes.registry import load_recipe

    recipe = load_recipe(spec)
    sizes: tuple[int, ...] = COUNTED_SIZES
    if (of_run := recipe.fixed_micro_batch_size) is not None:
        sizes = (max(2, of_run // 2), max(3, of_run))  # where samples are coupled, one alone may have no loss

    def build() -> torch.nn.Module:
        model = recipe.build_model()
        if checkpoints_activations:
            recipe.checkpoint_activations(model)
        return model

    counted = ((size, peak_bytes(build, recipe.synthetic_batch(size), recipe.total_loss, dtype)) for size in sizes)
    return PassMemory(tuple(counted))


def estimated_passes(model: ModelFacts, *, half: bool) -> PassMemory:
    """The passes of a model of which no recipe is here, by what a sample keeps."""
    least, kept = 4.0 * model.parameters, model.activation_bytes
    if model.base is not None:
        least, half = least + model.base.unpacked_bytes, True  # adapters compute in 16 bits, as their base
    per_sample = KEPT_TO_PEAK * (kept or 0.0) * (0.5 if half else 1.0)
    return PassMemory(((0, least), (1, least + per_sample)), is_known=kept is not None)
