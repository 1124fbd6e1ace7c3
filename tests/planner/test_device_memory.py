"""What a device has to hold for a model, counted without memory, and which micro-batch fits into it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from minga.averaging.strategy_choice import StrategyChoice
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import OptimizerSection
from minga.planner.device_memory import (
    DeviceMemory,
    PassMemory,
    counted_passes,
    device_memory,
)
from minga.planner.devices import look_up
from minga.planner.model_facts import facts_of_recipe, model_facts
from minga.recipes.counting import LiveBytes
from minga.recipes.initial import new_model
from minga.recipes.registry import RECIPES, load_recipe
from tests.worlds.cli_run import last_json, run
from tests.worlds.seeds import soaked

TINY = "causal-lm-tiny"
TWO_LAYERS = RunSpec.from_mapping(
    {
        "name": "shallow",
        "model": {"recipe": "causal-lm"},
        "recipe": {"causal-lm": {"size": "tiny", "max_length": 64, "overrides": {"num_hidden_layers": 2}}},
    }
)


@cache
def counted(*, checkpoints_activations: bool = False, dtype: torch.dtype | None = None) -> PassMemory:
    """What passes of the smallest model take: to count it is most of the work here."""
    return counted_passes(TWO_LAYERS, checkpoints_activations=checkpoints_activations, dtype=dtype)


def memory_of(**changed: bool) -> DeviceMemory:
    """1000 parameters, with 100 bytes a sample beside the gradients."""
    passes = PassMemory(((1, 4100.0), (8, 4800.0), (16, 5600.0)))
    return device_memory(model_facts("1000"), OptimizerSection(), StrategyChoice("synchronous"), passes, **changed)


ALIKE = ("albert", "sahajbert", "swav", "text-to-image")
"""Counted as masked-lm is, or by other tests: swav below, and text-to-image by the commands of `docs/models.md`."""


@pytest.mark.parametrize("name", [soaked(name) if name in ALIKE else name for name in RECIPES.names()])
def test_every_recipe_says_what_a_sample_keeps(name: str) -> None:
    sizes = RECIPES.get(name).sizes
    if not sizes:  # a network that the run spec draws has no name for plans
        with pytest.raises(ConfigurationError, match="no model of this name"):
            model_facts(name)
        return
    kept = model_facts(f"{name}-{sizes[0]}").activation_bytes
    assert kept is not None
    assert kept > 0


def test_a_tied_tensor_is_one_tensor_in_the_count() -> None:
    parameters = facts_of_recipe(TWO_LAYERS, TINY).parameters
    assert counted().of(1) < 4 * parameters + 5 * (1 << 20)


@pytest.mark.parametrize("checkpoints", [soaked(False), True])
def test_what_is_counted_on_fake_tensors_is_what_real_ones_take(checkpoints: bool) -> None:
    recipe = load_recipe(TWO_LAYERS)
    model = new_model(recipe)
    if checkpoints:
        recipe.checkpoint_activations(model)
    batch = recipe.synthetic_batch(8)
    with LiveBytes() as real:
        for tensor in [*model.parameters(), *model.buffers()]:
            real.know(tensor)
        recipe.total_loss(model, batch).backward()  # type: ignore[no-untyped-call]
    assert counted(checkpoints_activations=checkpoints).of(8) == pytest.approx(real.peak, rel=0.02)


def test_computing_twice_and_half_precision_take_less() -> None:
    whole = counted().of(8)
    assert counted(checkpoints_activations=True).of(8) < 0.8 * whole
    assert counted(dtype=torch.bfloat16).of(8) < 0.95 * whole


def test_sizes_of_micro_batches_between_and_beyond_those_counted_lie_on_lines() -> None:
    passes = PassMemory(((1, 10.0), (8, 17.0), (16, 41.0)))
    assert [passes.of(size) for size in (1, 4, 8, 12, 16, 32)] == [10.0, 13.0, 17.0, 29.0, 41.0, 89.0]


def test_the_largest_micro_batch_is_the_last_that_fits() -> None:
    memory = memory_of()
    available = 20e6
    largest = memory.largest_micro_batch(available)
    assert largest is not None
    assert memory.device(largest) <= 0.9 * available < memory.device(largest + 1)
    assert memory.largest_micro_batch(1e6) == 0


def test_with_offload_the_moments_and_the_update_are_in_ram() -> None:
    here, away = memory_of(), memory_of(offload=True)
    assert here.device(1) - away.device(1) == 8000 + 4000, "moments, and the sum of the gradients"
    assert away.ram - here.ram == 4000 + 8000 + 4000 + 4000
    assert away.transfer_per_step == 2 * 4000


def test_what_cuda_writes_to_takes_powers_of_two() -> None:
    here, away = memory_of(), memory_of(offload=True)
    assert (here.averaging, here.pinned) == (2 * 4000, 2 * 96)
    assert away.pinned == 96


def test_devices_compute_in_the_format_that_joining_chooses() -> None:
    t4, cpu = look_up("t4"), look_up("laptop-cpu")
    assert t4.samples_per_s(1e9, "auto") == t4.samples_per_s(1e9, "half")
    assert cpu.samples_per_s(1e9, "auto") == cpu.samples_per_s(1e9, "single")


def summary_of(*arguments: str) -> dict[str, object]:
    done = run("plan", *arguments, "--json")
    assert done.returncode == 0
    return last_json(done.stdout)


def test_the_command_tells_the_largest_micro_batch(tmp_path: Path) -> None:
    spec = tmp_path / "run.toml"
    spec.write_text(TWO_LAYERS.to_toml(), "utf-8")
    away = summary_of("--model", str(spec), "--memory", "2GB", "--precision", "single", "--offload")
    assert isinstance(away["parameters"], int)
    assert isinstance(away["largest_micro_batch"], int)
    assert away["largest_micro_batch"] > 100
    assert away["transfer_bytes_per_step"] == 8 * away["parameters"]


def test_where_the_run_fixes_the_micro_batch_that_one_has_to_fit() -> None:
    found = summary_of("--model", "swav-tiny", "--memory", "22MB")
    assert (found["fits"], found["micro_batch_of_run"]) == (False, 64)
    assert isinstance(found["largest_micro_batch"], int)
    assert 0 < found["largest_micro_batch"] < 64


def test_a_bare_number_of_parameters_has_no_known_activations() -> None:
    assert summary_of("--model", "18M", "--memory", "2GB")["largest_micro_batch"] is None
