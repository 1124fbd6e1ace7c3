"""What a pass is counted to take, beside what a process takes: within 15 %, from 200 MiB on.

Accelerators report the bytes of tensors that are there. On the processor the same shows in resident memory if freed
tensors go back to the system at once, so the process asks the C library for that.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
import torch

from minga.averaging.strategy_choice import StrategyChoice
from minga.core.spec.run_spec import RunSpec
from minga.planner.device_memory import counted_passes, device_memory
from minga.planner.model_facts import facts_of_recipe, recipe_spec
from minga.recipes.registry import load_recipe
from tests.worlds import forked
from tests.worlds.resident_memory import CAN_BE_MEASURED
from tests.worlds.seeds import soaked

pytestmark = pytest.mark.skipif(not CAN_BE_MEASURED, reason="needs Linux")


class Case(NamedTuple):
    """A recipe with its size, samples of a micro-batch, tokens of a sample (None: as usual), and how it is computed."""

    model: str
    micro_batch: int
    tokens: int | None = None
    checkpoints: bool = False
    precision: str = "float32"

    @property
    def spec(self) -> RunSpec:
        """Its micro-batch is the case's where the run fixes it."""
        spec = recipe_spec(self.model, self.tokens)
        if load_recipe(spec).fixed_micro_batch_size is None:
            return spec
        return spec.with_recipe_settings({**spec.recipe_settings, "micro_batch_size": self.micro_batch})


CASES = (
    Case("causal-lm-tiny", 32, 128),
    Case("causal-lm-small", 8, 128),
    Case("causal-lm-small", 8, 256, checkpoints=True),
    Case("causal-lm-tiny", 32, 256, precision="bfloat16"),
    Case("masked-lm-small", 16, 128),
    Case("albert-base", 4, 256),
    Case("swav-small", 16),
)

PASS = """
import ctypes, json, sys, torch
from minga import RunSpec
from minga.core.free_memory import give_back_free_memory
from minga.recipes.initial import new_model
from minga.recipes.registry import load_recipe
from tests.worlds.resident_memory import reset_peak, resident_bytes

text, micro_batch, checkpoints, half = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1", sys.argv[4] == "1"
torch.set_num_threads(1)
ctypes.CDLL(None).mallopt(-3, 128 << 10)  # M_MMAP_THRESHOLD: such blocks come from the system, and go back to it
recipe = load_recipe(RunSpec.from_toml(text))
model = new_model(recipe)
if checkpoints:
    recipe.checkpoint_activations(model)

def a_pass(size):
    batch = recipe.synthetic_batch(size)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss = recipe.total_loss(model, batch)
    loss.backward()
    model.zero_grad()

a_pass(min(2, micro_batch))  # which loads what PyTorch needs
give_back_free_memory()
before = resident_bytes()
reset_peak()
a_pass(micro_batch)
print(json.dumps(resident_bytes("VmHWM:") - before))
"""


@pytest.mark.parametrize("case", list(map(soaked, CASES)), ids=str)
def test_a_pass_takes_what_is_counted(case: Case) -> None:
    half = case.precision != "float32"
    passes = counted_passes(case.spec, dtype=torch.bfloat16 if half else None, checkpoints_activations=case.checkpoints)
    facts = facts_of_recipe(case.spec, case.model)
    counted = device_memory(facts, case.spec.optimizer, StrategyChoice.of(case.spec), passes).of_pass(case.micro_batch)
    words = (case.spec.to_toml(), str(case.micro_batch), str(int(case.checkpoints)), str(int(half)))
    done = forked.run("-c", PASS, *words, timeout_s=200.0)
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured >= 200 << 20
    assert counted == pytest.approx(measured, rel=0.15)
