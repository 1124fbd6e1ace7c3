"""Adapters among peers that verify each other's gradients: each can compute the others' on the same base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks._attack_real import FlippedWork, FlippingRecipe
from minga.security.protocol.behaviour import Behaviour
from minga.simulation.attacks.gradient_attacks import LabelFlip
from minga.simulation.swarm.simulated_peer import SimulatedPeer
from minga.training.plugins_of_run import with_origins
from tests.recipes.fine_tune.conftest import RunOf
from tests.worlds.extension_world import RecipeReplica, recipe_swarm
from tests.worlds.swarm_tools import virtually

pytest.importorskip("peft", reason="peft makes the adapters")
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of peft
STEPS, FROM_STEP = 9, 3


def test_the_base_draws_nothing_at_random(base: Path, run_of: RunOf) -> None:
    """Devices draw otherwise: honest members would be banned."""
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.1}))
    drawn = []
    for verification in ("none", "byzantine"):
        spec, _ = run_of(security={"verification": verification})
        drawn.append(json.loads(spec.recipe_settings["config"])["attention_dropout"])
    assert drawn == [0.1, 0.0]


def test_who_trains_on_flipped_completions_is_banned_and_nobody_else(run_of: RunOf) -> None:
    spec, files = run_of(
        {"lora": {"dora": True}},
        training={"target_batch_size": 16, "stop_after_steps": STEPS},
        averaging={"codec": "float32"},
        security={"verification": "byzantine", "micro_batch_size": 4, "founders": 4, "peers_per_validator": 2},
    )

    @virtually
    async def main() -> None:
        swarm = recipe_swarm(with_origins(spec).published({}), {"p3": "label-flip"}, FROM_STEP, files)
        usual = swarm.conduct_of

        def conduct_of(peer: SimulatedPeer) -> Behaviour:
            behaviour: Any = usual(peer)
            if isinstance(behaviour, LabelFlip):
                assert isinstance(peer.replica, RecipeReplica)
                recipe = FlippingRecipe(peer.replica.recipe.settings, peer.replica.recipe.context)
                peer.replica.recipe = recipe
                behaviour.labelled = lambda work: FlippedWork(work, recipe)
            found: Behaviour = behaviour
            return found

        swarm.conduct_of = conduct_of
        peers = [swarm.add(name=f"p{number}") for number in range(4)]
        for peer in peers[:3]:
            await peer.ended.wait()
        assert [(peer.error, peer.replica.step) for peer in peers[:3]] == [(None, STEPS)] * 3
        assert len(set(swarm.digests(["p0", "p1", "p2"]).values())) == 1
        bans = {(event.fields["peer"], event.fields["reason"]) for _, event in swarm.log.of("secure.banned")}
        assert bans == {(peers[3].network.peer_id, "WRONG_GRADIENT")}
        await swarm.close()

    main()
