"""The package `tests/data/minga_extras` as if it were installed, and swarms that train its recipe."""

from __future__ import annotations

import tomllib
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from minga.averaging import CODECS, SKETCHES
from minga.core.spec.run_spec import RunSpec
from minga.recipes import RECIPES, Files, StreamPosition, load_recipe, published
from minga.recipes.init_from import given_base
from minga.recipes.running.run import first_model
from minga.security import AGGREGATORS
from minga.security.randomness.public_batch import PublicBatch
from minga.simulation import BEHAVIOURS
from minga.simulation.attacks.interface import attack
from minga.simulation.swarm.simulated_peer import SimulatedPeer
from minga.simulation.swarm.swarm import Swarm
from minga.training import STRATEGIES
from minga.training.plugins_of_run import with_origins
from minga.training.replica.build_optimizer import build_optimizer
from minga.training.replica.replica import Replica
from tests.worlds.plugin_packages import install, look_again

EXTRAS = Path(__file__).parent.parent / "data" / "minga_extras"
REGISTRIES = (CODECS, SKETCHES, STRATEGIES, RECIPES, AGGREGATORS, BEHAVIOURS)


def install_extras(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Put the package on the path, with the metadata that an installation of its pyproject.toml leaves."""
    project = tomllib.loads((EXTRAS / "pyproject.toml").read_text())["project"]
    install(folder, project["name"], project["version"], project["entry-points"], {})
    patch.syspath_prepend(str(EXTRAS))
    patch.syspath_prepend(str(folder))
    look_again(patch, *REGISTRIES)


class RecipeReplica(Replica):
    """What the recipe of a run builds, with the optimizer of the run."""

    def __init__(self, spec: RunSpec, files: Files = MappingProxyType({})) -> None:
        self.recipe = load_recipe(spec)
        model = first_model(self.recipe, files)
        optimizer, scheduler = build_optimizer(spec.optimizer, model, self.recipe.decayed)
        super().__init__(
            spec,
            optimizer,
            model=model,
            scheduler=scheduler,
            max_grad_norm=spec.optimizer.max_grad_norm,
            rules=self.recipe,
            base=given_base(model, files),
        )
        self.trained = model

    def figures(self) -> dict[str, float]:
        return self.recipe.evaluate(self.trained, {})


def gradient_of_batch(peer: SimulatedPeer, batch: PublicBatch, *, files: Files) -> None:
    assert isinstance(peer.replica, RecipeReplica)
    recipe = peer.replica.recipe
    recipe.total_loss(peer.replica.trained, recipe.public_batch(files, batch)).backward()  # type: ignore[no-untyped-call]


def gradient(peer: SimulatedPeer, samples: int, *, files: Files) -> None:
    assert isinstance(peer.replica, RecipeReplica)
    recipe = peer.replica.recipe
    position = StreamPosition(peer.network.peer_id, worker=peer.samples_done)  # others in each micro-batch
    batch = next(recipe.batches(files, position, samples))
    recipe.total_loss(peer.replica.trained, batch).backward()  # type: ignore[no-untyped-call]


def hosted(sections: dict[str, Any]) -> RunSpec:
    """The run spec as the peer that starts the run publishes it."""
    return with_origins(published(RunSpec.from_mapping(sections))).published({})


def recipe_swarm(spec: RunSpec, hostile: dict[str, str], from_step: int, files: Files = MappingProxyType({})) -> Swarm:
    """A swarm that trains the recipe of `spec`; `hostile` names the attacks of peers by their names."""
    swarm = Swarm(
        spec,
        make_replica=partial(RecipeReplica, files=files),
        gradient=partial(gradient, files=files),
        public_gradient=partial(gradient_of_batch, files=files),
    )
    allies: set[Any] = set()
    makers = {name: attack(behaviour).begin(from_step) for name, behaviour in hostile.items()}

    def conduct_of(peer: SimulatedPeer) -> Any:
        if peer.name not in makers:
            return honest(peer)
        allies.add(peer.network.peer_id)
        return makers[peer.name](allies)

    honest, swarm.conduct_of = swarm.conduct_of, conduct_of
    return swarm
