"""A base that each peer holds in as many bits as it likes: the same base to all, and adapters that stay equal."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.quantizers import HfQuantizer, auto
from transformers.utils.quantization_config import QuantizationConfigMixin

import minga
from minga.averaging.planning.contributor_choice import StepWork
from minga.averaging.solver.division import SwarmRates
from minga.cli.commands import JoinCommand
from minga.cli.taking_part.first_screen import costs_of
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.planner.model_facts import facts_of_recipe
from minga.recipes.fine_tune import recipe as fine_tune
from minga.recipes.init_from import given_base
from minga.recipes.interface import StreamPosition
from minga.recipes.registry import load_recipe
from minga.recipes.running.background_evaluation import Evaluator
from minga.recipes.running.micro_batch import measure_speed
from minga.recipes.running.precision import choose_precision
from minga.recipes.running.run import first_model
from minga.training.prospect import Prospect
from minga.training.replica.build_optimizer import build_optimizer
from minga.training.replica.replica import Replica
from minga.training.status.run_status import LiveRates
from tests.recipes.fine_tune.conftest import RunOf

pytest.importorskip("peft", reason="peft makes the adapters")
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of peft
CPU = torch.device("cpu")


class CodedLinear(nn.Linear):
    """Weights in 8 bits, as libraries keep them: codes, and scales that are no tensor of the model."""

    def __init__(self, plain: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = plain.in_features, plain.out_features, plain.bias
        weight = plain.weight.detach().float()
        self.scales = weight.abs().amax(1, keepdim=True) / 127
        self.weight = nn.Parameter((weight / self.scales).round().to(torch.int8), requires_grad=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.linear(input, self.weight.to(input.dtype) * self.scales.to(input.dtype), self.bias)


class Coding(HfQuantizer):  # type: ignore[misc]
    """What transformers does with such a library."""

    is_trainable = True

    def is_serializable(self) -> bool:
        return False

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        for path, layer in list(model.named_modules()):
            if type(layer) is nn.Linear and layer is not model.get_output_embeddings():
                model.set_submodule(path, CodedLinear(layer))
        return model


def bring(library: str, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the test where the library is missing; `stand-in` is always there."""
    if library == "stand-in":
        monkeypatch.setitem(auto.AUTO_QUANTIZER_MAPPING, "codes", Coding)
        monkeypatch.setattr(fine_tune, "quantisation", lambda bits, device: QuantizationConfigMixin("codes"))
        return
    pytest.importorskip(library, reason=f"{library} holds bases in {bits} bits")
    pytest.importorskip("accelerate", reason="transformers loads a quantised model by it")


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize(
    ("library", "bits"), [("stand-in", 8), ("bitsandbytes", 8), ("bitsandbytes", 4), ("torchao", 8), ("none", 16)]
)
def test_peers_that_hold_the_base_in_other_bits_train_one_model(
    library: str, bits: int, dora: bool, run_of: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library != "none":
        bring(library, bits, monkeypatch)
    spec, files = run_of({"lora": {"dora": dora}})
    recipe = load_recipe(spec)
    own = recipe.own_base(bits)
    replicas, models = [], []
    for each in (recipe, own):
        model = first_model(each, files, CPU)
        optimizer, scheduler = build_optimizer(spec.optimizer, model, each.decayed)
        replicas.append(
            Replica(spec, optimizer, model=model, scheduler=scheduler, base=given_base(model, files), rules=each)
        )
        models.append(model)
    whole, packed = models
    assert {each.dtype for each in packed.parameters() if not each.requires_grad} != {torch.float32}
    assert replicas[0].trains == replicas[1].trains
    assert replicas[0].digest() == replicas[1].digest()  # adapters begin with equal bits
    replicas[1].restore(replicas[0].capture())
    if library == "stand-in" and dora:
        return  # peft does not know how it keeps weights, of which DoRA needs the lengths
    batch = next(recipe.batches(files, StreamPosition("ab" * 32), 4))
    own.total_loss(packed, batch).backward()  # type: ignore[no-untyped-call]
    mean = torch.zeros(replicas[1].vector.numel)
    assert replicas[1].accumulate(mean, 1.0)
    assert float(mean.norm()) > 0.0
    for replica in replicas:
        replica.apply(mean, 1)
    assert replicas[0].digest() == replicas[1].digest()
    losses = [each.evaluate(model, files)["heldout_loss"] for each, model in ((recipe, whole), (own, packed))]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    told: list[dict[str, float]] = []
    evaluator = Evaluator(spec, files, packed, lambda _, figures: told.append(figures))  # of a copy
    evaluator.start(packed, 1)
    evaluator.wait()
    assert told[0]["heldout_loss"] == losses[1]
    if evaluator._copy is None:  # with layers that no two threads may use
        return
    frozen = {id(each) for each in packed.parameters() if not each.requires_grad}
    assert frozen <= {id(each) for each in evaluator._copy.parameters()}  # there may be no room for two
    assert not set(packed.modules()) & set(evaluator._copy.modules())


def test_bits_that_cannot_be_are_refused_with_what_to_do(run_of: RunOf, monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in ("bitsandbytes", "torchao"):
        monkeypatch.setitem(sys.modules, missing, None)
    spec, files = run_of()
    for bits in (8, 4):
        own = load_recipe(spec).own_base(bits)
        for attempt in (lambda: own.check_device(CPU), lambda: first_model(own, files, CPU)):  # noqa: B023
            with pytest.raises(
                ConfigurationError, match="pip install bitsandbytes accelerate, or choose --base-bits 16"
            ):
                attempt()
    with pytest.raises(ConfigurationError, match="32, 16, 8 or 4"):
        load_recipe(spec).own_base(2)
    verified, _ = run_of(security={"verification": "byzantine"})
    with pytest.raises(ConfigurationError, match="all hold the base in 32"):
        load_recipe(verified).own_base(8)
    load_recipe(verified).own_base(32)
    with pytest.raises(ConfigurationError, match="the recipe albert tunes no base"):
        load_recipe(RunSpec.from_mapping({"name": "other", "model": {"recipe": "albert"}})).own_base(8)


def test_before_anything_comes_a_machine_hears_what_its_own_bits_take(
    run_of: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    spec, _ = run_of()
    prospect = Prospect("ab" * 32, "cd" * 32, spec, LiveRates((), SwarmRates(()), 0), StepWork(0, 256))
    memory = [
        costs_of(prospect, minga.PeerOptions(), JoinCommand(device="cpu", base_bits=bits)).memory_bytes or 0
        for bits in (None, 16)
    ]
    assert 0 < memory[1] < memory[0]
    with pytest.raises(ConfigurationError, match=r"bitsandbytes\S* is not installed"):
        costs_of(prospect, minga.PeerOptions(), JoinCommand(device="cpu", base_bits=4))


def test_a_run_may_say_in_how_many_bits_peers_hold_the_base(run_of: RunOf) -> None:
    spec, files = run_of()
    specs = {bits: spec.with_recipe_settings({**spec.recipe_settings, "base_bits": bits}) for bits in (32, 16, 8, 4)}
    recipes = {bits: load_recipe(each) for bits, each in specs.items()}
    sizes = {bits: recipe.parameter_sizes().frozen_bytes for bits, recipe in recipes.items()}
    assert sizes[32] == 2 * sizes[16] > 2 * sizes[8] > 2 * sizes[4] > sizes[8]
    assert facts_of_recipe(specs[16], "run.toml").frozen_bytes == sizes[16]
    for bits, recipe in recipes.items():
        model = first_model(recipe, files)
        assert {each.dtype for each in model.parameters() if each.requires_grad} == {torch.float32}
        frozen = {each.dtype for each in model.parameters() if not each.requires_grad}
        assert frozen == {torch.float32 if bits == 32 else torch.bfloat16}  # where it is not trained
        if bits == 16:
            assert sizes[16] == 2 * sum(each.numel() for each in model.parameters() if not each.requires_grad)
            recipe.checkpoint_activations(model)
            batch = next(recipe.batches(files, StreamPosition("ab" * 32), 4))
            recipe.total_loss(model, batch).backward()  # type: ignore[no-untyped-call]
            assert all(bool(each.grad.isfinite().all()) for each in model.parameters() if each.requires_grad)
    with pytest.raises(ConfigurationError, match="measure with base_bits = 16 or 32"):  # 4 bits would be told as 16
        measure_speed(recipes[4], spec, CPU, 0.01, choose_precision("float32", CPU, spec))
    measure_speed(recipes[4].own_base(16), spec, CPU, 0.01, choose_precision("float32", CPU, spec))
