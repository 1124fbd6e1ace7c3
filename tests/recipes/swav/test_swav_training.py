"""SwAV learns: features of digits become better, on one peer and on several of which one dies."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from minga.core.spec.sections import OptimizerSection
from minga.recipes import Recipe, StreamPosition, new_model
from minga.recipes.swav.recipe import SwavRecipe
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.testing import RecipeCase
from minga.training.replica.build_optimizer import build_optimizer
from tests.worlds.extension_world import RecipeReplica, hosted, recipe_swarm
from tests.worlds.swarm_tools import kill_in_a_round, virtually

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


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


def test_four_peers_learn_though_one_dies_and_one_comes_late(tmp_path: Path) -> None:
    @virtually
    async def main() -> None:
        steps = 200
        spec = hosted(
            {
                "name": "swav",
                "model": {"recipe": "swav"},
                "recipe": {"swav": {}},
                "training": {"target_batch_size": 256, "stop_after_steps": steps},
                "optimizer": SwavRecipe.demo_spec()["optimizer"],
                "averaging": {"codec": "float16"},
            }
        )
        files = RecipeCase("swav", {}).files(tmp_path)
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
        assert after["heldout_one_label_accuracy"] >= before["heldout_one_label_accuracy"] + 0.1
        await swarm.close()

    main()
