"""SwAV learns: features of digits and of Fashion-MNIST become better, on one peer and on several of which one dies."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from minga.core.spec.sections import OptimizerSection
from minga.recipes import Recipe, StreamPosition, new_model
from minga.recipes.swav.data.packaged import FASHION_FOLDER
from minga.recipes.swav.data.picture_set import read_pictures
from minga.recipes.swav.data.preparation import HELDOUT_FILE, MAX_PROBE, TRAINING_FILE
from minga.recipes.swav.probes import knn_accuracy, linear_probe_accuracy, standardized
from minga.recipes.swav.recipe import SwavRecipe
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.testing import RecipeCase
from minga.training.replica.build_optimizer import build_optimizer
from tests.worlds.extension_world import RecipeReplica, hosted, recipe_swarm
from tests.worlds.swarm_tools import kill_in_a_round, virtually

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
needs_fashion = pytest.mark.skipif(
    not FASHION_FOLDER.is_dir(), reason="the Debian package dataset-fashion-mnist is not installed"
)
LARC: dict[str, Any] = {
    "name": "larc",
    "learning_rate": 2.4,
    "weight_decay": 1e-6,
    "warmup_learning_rate": 0.3,
    "warmup_steps": 20,
    "total_steps": 700,
    "schedule": "cosine",
}
ADAMW: dict[str, Any] = {**LARC, "name": "adamw", "learning_rate": 0.004, "warmup_learning_rate": 0.0}
PLAIN = {"blur": 0.0}


@pytest.mark.parametrize("seed", range(3))
def test_the_demo_makes_better_features_of_digits_than_their_pixels(seed: int, tmp_path: Path) -> None:
    """Where one picture of each class has its label; where all have one, pixels are as good."""
    tables = SwavRecipe.demo_spec()
    case = RecipeCase("swav", tables["recipe"]["swav"], seed=seed)
    recipe: Recipe[Any] = case.recipe()
    files, model = case.files(tmp_path), new_model(recipe)
    before, beside = recipe.evaluate(model, files), recipe.show([model], files).beside
    steps = 200
    optimizer = OptimizerSection(**{**tables["optimizer"], "total_steps": steps})
    inner, scheduler = build_optimizer(optimizer, model, recipe.decayed)
    batches = recipe.batches(files, StreamPosition("a" * 64), 128)
    for step in range(steps):
        inner.zero_grad()
        for batch in islice(batches, 2):
            (recipe.total_loss(model, batch) / 2).backward()
        for name, parameter in model.named_parameters():
            if name in recipe.frozen(step):
                parameter.grad = None
        inner.step()
        scheduler.step()
        recipe.constrain(model, step + 1)
    after = recipe.evaluate(model, files)
    print(seed, before, after, beside)
    assert after["heldout_one_label_accuracy"] >= beside["heldout_one_label_accuracy"].value + 0.05


@needs_fashion
@pytest.mark.parametrize("optimizer", [ADAMW, LARC], ids=lambda each: str(each["name"]))
def test_700_steps_make_better_features_than_chance(optimizer: dict[str, Any], tmp_path: Path) -> None:
    case = RecipeCase("swav", {**PLAIN, "freeze_prototypes_steps": 30})
    recipe: Recipe[Any] = case.recipe()
    files, model = case.files(tmp_path), new_model(recipe)
    before = recipe.evaluate(model, files)
    inner, scheduler = build_optimizer(OptimizerSection(**optimizer), model, recipe.decayed)
    for step, batch in enumerate(islice(recipe.batches(files, StreamPosition("a" * 64), 64), 700)):
        inner.zero_grad()
        recipe.total_loss(model, batch).backward()  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters():
            if name in recipe.frozen(step):
                parameter.grad = None
        inner.step()
        scheduler.step()
        recipe.constrain(model, step + 1)
    after = recipe.evaluate(model, files)
    print(before, after)
    assert after["heldout_probe_accuracy"] >= max(0.77, before["heldout_probe_accuracy"] + 0.05)
    assert after["heldout_knn_accuracy"] >= before["heldout_knn_accuracy"] + 0.04
    assert after["heldout_swav_loss"] < before["heldout_swav_loss"]


@needs_fashion
def test_raw_pixels_are_good_features_of_centred_pictures(tmp_path: Path) -> None:
    """What features have to be compared with, besides those of a trunk that was never trained."""
    files = RecipeCase("swav", PLAIN).files(tmp_path)
    training, heldout = (read_pictures(files[name], 1) for name in (TRAINING_FILE, HELDOUT_FILE))
    known = training.first(MAX_PROBE)
    pixels = standardized(known.pictures.flatten(1).float(), heldout.pictures.flatten(1).float())
    probe = linear_probe_accuracy(pixels[0], known.labels, pixels[1], heldout.labels)
    print("raw pixels", probe, knn_accuracy(pixels[0], known.labels, pixels[1], heldout.labels))
    assert 0.80 < probe < 0.84


@needs_fashion
def test_four_peers_learn_though_one_dies_and_one_comes_late(tmp_path: Path) -> None:
    @virtually
    async def main() -> None:
        steps = 200
        spec = hosted(
            {
                "name": "swav",
                "model": {"recipe": "swav"},
                "recipe": {"swav": PLAIN},
                "training": {"target_batch_size": 256, "stop_after_steps": steps},
                "optimizer": {**ADAMW, "total_steps": steps, "max_grad_norm": "off"},
                "averaging": {"codec": "float16"},
            }
        )
        files = RecipeCase("swav", PLAIN).files(tmp_path)
        swarm = recipe_swarm(spec, {}, from_step=0, files=files)
        trainer = TrainerSettings(64, 1.0)
        peers = [swarm.add(trainer=trainer) for _ in range(4)]
        assert isinstance(peers[0].replica, RecipeReplica)
        before = peers[0].replica.recipe.evaluate(peers[0].replica.trained, files)
        await swarm.run_until_step(60, limit_s=3600)
        await kill_in_a_round(swarm, peers.pop(2))
        await swarm.run_until_step(100, limit_s=3600)
        peers.append(swarm.add(trainer=trainer))
        for peer in peers:
            await peer.ended.wait()
        assert [(peer.error, peer.replica.step) for peer in peers] == [(None, steps)] * 4
        assert len(set(swarm.digests([peer.name for peer in peers]).values())) == 1
        late = peers[-1].replica
        assert isinstance(late, RecipeReplica)
        after = late.recipe.evaluate(late.trained, files)
        print(before, after)
        assert after["heldout_probe_accuracy"] >= before["heldout_probe_accuracy"] + 0.05
        await swarm.close()

    main()
