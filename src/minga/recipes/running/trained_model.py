"""The model of a run with the parameters of a state: of the newest checkpoint in a run's folder, or of any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.units import counted
from minga.recipes.init_from import given_base, load_initial
from minga.recipes.initial import new_model
from minga.recipes.interface import Files, Recipe
from minga.recipes.registry import load_recipe
from minga.training.lineage import UNFOUNDED, Lineage
from minga.training.replica.buffers import OWN_BUFFERS_FILE
from minga.training.replica.build_optimizer import build_optimizer
from minga.training.replica.replica import Replica
from minga.training.state.checkpoints import CheckpointStore
from minga.training.state.snapshot import StateSnapshot

SPEC_FILE = "run-spec.toml"
ONLY_PARTS = (
    "the model of this run is cut: each side has its part alone, written into its folder of the run "
    "(the server's top.safetensors, and parts.safetensors of each client)"
)


@dataclass(frozen=True)
class TrainedModel:
    """A model after `step` global steps of this `lineage`, with the recipe that can evaluate, export and sample it."""

    recipe: Recipe[Any]
    model: nn.Module
    files: Files
    step: int
    lineage: Lineage = UNFOUNDED


def with_state(spec: RunSpec, files: Mapping[str, Path], state: Callable[[Replica], StateSnapshot]) -> TrainedModel:
    """The model of the run of `spec`, with the state that `state` finds for a replica of it.

    Raises `ConfigurationError` if the model is cut, so that nobody has a state of all of it.
    """
    if spec.split.is_on:
        raise ConfigurationError(ONLY_PARTS)
    recipe = load_recipe(spec)
    model, base = new_model(recipe), None
    if not all(each.requires_grad for each in model.parameters()):
        load_initial(model, files)  # no state holds what is frozen
        base = given_base(model, files)
    optimizer, scheduler = build_optimizer(spec.optimizer, model, recipe.decayed, run=spec)
    replica = Replica(spec, optimizer, model=model, scheduler=scheduler, base=base, reads=True)
    replica.restore(state(replica))
    if not recipe.estimates_statistics:
        replica.warn_of_new_buffers()
    return TrainedModel(recipe, model, files, replica.step, replica.lineage)


def from_run_folder(directory: Path) -> TrainedModel:
    """The model of the newest checkpoint in the folder of a run. Raises `ConfigurationError` if there is none."""
    store = directory / "checkpoints"
    if not store.is_dir():
        if any(directory.glob("top.safetensors")) or any(directory.glob("*/parts.safetensors")):
            raise ConfigurationError(f"{directory}: {ONLY_PARTS}")
        runs = sorted(path.parent for path in directory.glob("*/checkpoints"))
        hint = "name the folder of one run, which `minga host` and `minga join` show"
        if runs:
            hint = f"it has the folders of {counted(len(runs), 'run')}; name one of them, such as {runs[-1]}"
        raise ConfigurationError(f"{directory}: no folder named checkpoints in it; {hint}")
    checkpoint = CheckpointStore(store).load()
    if checkpoint is None:
        raise ConfigurationError(f"{directory}: it has no checkpoint yet")
    if SPEC_FILE not in checkpoint.files:
        raise ConfigurationError(f"{checkpoint.path}: no {SPEC_FILE} in it, so the model is not known")
    spec = RunSpec.from_toml(checkpoint.files[SPEC_FILE].decode("utf-8"), str(checkpoint.path / SPEC_FILE))
    files = {name: directory / "files" / name for name in spec.files}

    def state(replica: Replica) -> StateSnapshot:
        replica.take_buffers(checkpoint.files.get(OWN_BUFFERS_FILE, b""))
        return checkpoint.snapshot

    return with_state(spec, files, state)
