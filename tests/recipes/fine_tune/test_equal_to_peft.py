"""Four peers that train adapters together get what PyTorch and peft get alone from the same conversations."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from minga.core.spec.run_spec import RunSpec
from minga.recipes.fine_tune.recipe import FineTuneRecipe
from minga.recipes.fine_tune.samples import Samples
from minga.recipes.registry import load_recipe
from minga.recipes.running.run import first_model
from minga.simulation.swarm.simulated_peer import SimulatedPeer
from minga.simulation.swarm.swarm import Swarm
from tests.recipes.fine_tune.conftest import RunOf
from tests.worlds.extension_world import RecipeReplica
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import virtually

peft = pytest.importorskip("peft", reason="peft makes the adapters")
STEPS, RATE, MICRO_BATCH = 3, 0.01, 4
EPSILON = 1e-4
"""With less AdamW makes of the rounding of gradients near 0, as those of new adapters are, steps of full length."""


def samples_of(recipe: Any, files: Mapping[str, Path]) -> Samples:
    assert isinstance(recipe, FineTuneRecipe)
    return recipe._samples_of(files)


def chosen(peer: str, place: int, count: int, among: Sequence[Any]) -> list[int]:
    """Which samples a peer takes that has given `place` of them to the run."""
    return random.Random(f"{peer} {place}").choices(range(len(among)), k=count)


def trained_together(
    spec: RunSpec, files: Mapping[str, Path], count: int
) -> tuple[dict[int, list[list[int]]], list[dict[str, torch.Tensor]]]:
    """The samples that each peer gave to each step, and what each has in the end."""

    def gradient(peer: SimulatedPeer, size: int) -> None:
        assert isinstance(peer.replica, RecipeReplica)
        recipe = peer.replica.recipe
        samples = samples_of(recipe, files)
        batch = samples.batch(chosen(peer.name, peer.samples_done, size, samples))
        recipe.total_loss(peer.replica.trained, batch).backward()

    @virtually
    async def main() -> Swarm:
        swarm = Swarm(spec.published({}), make_replica=partial(RecipeReplica, files=files), gradient=gradient)
        for peer in [swarm.add() for _ in range(count)]:
            await peer.ended.wait()
            assert peer.error is None
        await swarm.close()
        return swarm

    swarm, places = main(), dict[str, int]()
    samples, given = samples_of(load_recipe(spec), files), defaultdict[int, list[list[int]]](list)
    for name, event in swarm.log.of("step.applied"):
        fields: Any = event.fields
        place = places.setdefault(name, 0)
        places[name] += fields["samples"]
        numbers = [chosen(name, at, MICRO_BATCH, samples) for at in range(place, places[name], MICRO_BATCH)]
        given[fields["step"]].append([number for each in numbers for number in each])
    models = [peer.replica.trained for peer in swarm.peers.values() if isinstance(peer.replica, RecipeReplica)]
    return given, [{name: each for name, each in model.named_parameters() if each.requires_grad} for model in models]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of peft
@pytest.mark.parametrize("lora", [{}, soaked({"dora": True, "rslora": True})])
def test_four_peers_train_what_pytorch_and_peft_train_alone(lora: dict[str, bool], base: Path, run_of: RunOf) -> None:
    """Packed samples there, one conversation after the other here."""
    spec, files = run_of(
        {"lora": lora},
        optimizer={
            "name": "adamw",
            "learning_rate": RATE,
            "warmup_steps": 0,
            "schedule": "constant",
            "epsilon": EPSILON,
        },
        training={"target_batch_size": 16, "stop_after_steps": STEPS},
        averaging={"codec": "float32"},
    )
    given, trained = trained_together(spec, files, 4)
    assert all(torch.equal(trained[0][name], each[name]) for each in trained for name in trained[0])
    assert given.keys() == {1, 2, 3}
    assert all(sum(map(bool, peers)) >= 2 for peers in given.values())

    recipe = load_recipe(spec)
    samples = samples_of(recipe, files)
    begun = {name: each for name, each in first_model(recipe, files).named_parameters() if each.requires_grad}
    kind = {f"use_{name}": value for name, value in lora.items()}
    settings = peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM", **kind)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), settings)
    own = {
        name.removeprefix("base_model.model."): each for name, each in model.named_parameters() if each.requires_grad
    }
    assert own.keys() == begun.keys()
    with torch.no_grad():
        for name, each in own.items():
            each.copy_(begun[name])
    matrices, vectors = ([each for each in own.values() if (each.ndim > 1) == is_matrix] for is_matrix in (True, False))
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": 0.01},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=EPSILON)
    for peers in given.values():
        numbers = [number for chosen in peers for number in chosen]
        for number in numbers:
            for chat in samples._rows[number]:
                ids = torch.from_numpy(chat.ids.astype("int64")).unsqueeze(0)
                losses = functional.cross_entropy(model(input_ids=ids).logits[0, :-1], ids[0, 1:], reduction="none")
                says = torch.from_numpy(chat.carries[1:] == 1)
                (losses[says].sum() / float(samples._usual) / len(numbers)).backward()
        torch.nn.utils.clip_grad_norm_(own.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    first, alone, together = (_joined(found, list(own)) for found in (begun, own, trained[0]))
    assert float((together - alone).norm() / alone.norm()) <= 1e-5
    assert float((alone - first).norm() / first.norm()) > 1e-2


def _joined(tensors: Mapping[str, torch.Tensor], names: list[str]) -> torch.Tensor:
    return torch.cat([tensors[name].detach().flatten() for name in names]).double()


@pytest.mark.parametrize(
    ("strategy", "codec", "download_codec"),
    [soaked("synchronous", "topk", "int8"), ("local", "int4(block=32)", "")],
)
def test_adapters_learn_with_other_codecs_and_strategies(
    strategy: str, codec: str, download_codec: str, run_of: RunOf
) -> None:
    averaging = {"codec": codec, **({"download_codec": download_codec} if download_codec else {})}
    spec, files = run_of(
        optimizer={"name": "adamw", "learning_rate": 0.02, "warmup_steps": 0, "schedule": "constant"},
        training={"target_batch_size": 16, "stop_after_steps": 8, "strategy": strategy},
        averaging=averaging,
        **({"strategy": {"local": {"local_batch": 8}}} if strategy == "local" else {}),
    )
    _, trained = trained_together(spec, files, 2)
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])
    recipe = load_recipe(spec)
    model = first_model(recipe, files)
    before = recipe.evaluate(model, files)["heldout_loss"]
    with torch.no_grad():
        for name, each in trained[0].items():
            model.get_parameter(name).copy_(each)
    assert recipe.evaluate(model, files)["heldout_loss"] < 0.9 * before
