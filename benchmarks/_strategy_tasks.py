"""What `benchmarks.strategies` trains, and which large model each small one stands for on the links that people have.

The models are so small that their vectors would cross any line at once. So lines are as much slower as the model is
smaller than the one it stands for: a round takes as long as that model's would, and all seconds are that model's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from torch import nn

from minga import RunSpec
from minga.core.files import write_atomically
from minga.recipes.initial import new_model
from minga.recipes.interface import Batch, Recipe, StreamPosition
from minga.recipes.registry import load_recipe
from minga.training.replica.build_optimizer import build_optimizer
from minga.training.replica.replica import Replica

GLOBAL_BATCH: Final = 32
"""Sequences of one optimizer step of the synchronous reference."""
WARMUP_SHARE, FINAL_SHARE = 0.05, 0.1
"""The learning rate rises over this share of the samples, then falls linearly to this share of its peak."""


@dataclass(frozen=True)
class Task:
    """A recipe with its settings, how it is optimized, and what it stands for.

    `loss` names the held-out figure. The run's optimizer has peak `learning_rate`; `stands_for` has so many
    `parameters`.
    """

    name: str
    recipe: str
    settings: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    loss: str
    stands_for: str
    parameters: int


TASKS: Final = {
    task.name: task
    for task in (
        Task(
            "albert",
            "albert",
            {"size": "tiny", "max_length": 128, "vocabulary_size": 8192, "data": {"source": "bible"}},
            {"name": "adamw", "learning_rate": 2e-3, "betas": [0.9, 0.95], "weight_decay": 0.1},
            "heldout_mlm_loss",
            "ALBERT-large",
            17_800_000,
        ),
        Task(
            "gpt",
            "causal-lm",
            {
                "architecture": "gpt2",
                "size": "tiny",
                "max_length": 128,
                "vocabulary_size": 258,  # the bytes and two special tokens: nothing is merged
                "data": {"source": "bible"},
            },
            {"name": "adamw", "learning_rate": 2e-3, "betas": [0.9, 0.95], "weight_decay": 0.1},
            "heldout_loss",
            "GPT-2 124M",
            124_400_000,
        ),
        Task(
            "mini",  # a sequence costs a fraction of one of the GPT: for series of many runs
            "causal-lm",
            {
                "architecture": "gpt2",
                "size": "tiny",
                "overrides": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
                "max_length": 64,
                "vocabulary_size": 258,
                "data": {"source": "bible", "heldout_fraction": 0.0025},
            },
            {"name": "adamw", "learning_rate": 4e-3, "betas": [0.9, 0.95], "weight_decay": 0.1},
            "heldout_loss",
            "GPT-2 124M",
            124_400_000,
        ),
    )
}


class Subject:
    """What the peers of one run have in common: its spec, its recipe, and the files that the recipe makes of the text.

    These are kept in `folder`, for all runs of the task.
    """

    def __init__(self, task: Task, spec: RunSpec, folder: Path) -> None:
        self.task, self.spec, self.recipe = task, spec, load_recipe(spec)
        self.files = _prepared(self.recipe, folder)

    def new_model(self) -> nn.Module:
        """A model with the run's initial parameters."""
        return new_model(self.recipe)

    def replica_of(self, model: nn.Module) -> Replica:
        """A model with its optimizer and schedule, as peers have them."""
        optimizer, scheduler = build_optimizer(self.spec.optimizer, model, self.recipe.decayed, run=self.spec)
        norm = self.spec.optimizer.max_grad_norm
        return Replica(self.spec, optimizer, model=model, scheduler=scheduler, max_grad_norm=norm, rules=self.recipe)

    def batches(self, peer: str, micro_batch: int) -> Iterator[Batch]:
        """The data of one peer, in its order."""
        return self.recipe.batches(self.files, StreamPosition(peer.encode().hex().rjust(64, "0")), micro_batch)

    def heldout_loss(self, model: nn.Module) -> float:
        """The loss on text that no peer trains on, in nats a token."""
        return self.recipe.evaluate(model, self.files)[self.task.loss]


def _prepared(recipe: Recipe[Any], folder: Path) -> dict[str, Path]:
    """The files of the recipe by name, which do not depend on the run's seed."""
    listing = folder / "files.json"
    if not listing.exists():
        content = recipe.prepare()
        folder.mkdir(parents=True, exist_ok=True)
        for name, made in content.items():
            write_atomically(folder / name, made if isinstance(made, bytes) else Path(made).read_bytes())
        write_atomically(listing, json.dumps(sorted(content)).encode())
    return {name: folder / name for name in json.loads(listing.read_text("utf-8"))}


@cache
def tensors_of(name: str) -> tuple[int, ...]:
    """The numbers of elements of a task's tensors."""
    return load_recipe(run_spec(TASKS[name], 0, 1, GLOBAL_BATCH, {})).facts().tensors


def run_spec(
    task: Task, seed: int, rounds: int, batch: int, changes: Mapping[str, Mapping[str, Any]], factor: float = 1.0
) -> RunSpec:
    """The run spec of so many rounds of `batch` samples; `changes` are tables of the method, and `factor` scales the
    learning rate. In texts {tenth} is the tenth part of the rounds.
    """
    rate = factor * float(changes.get("optimizer", {}).get("learning_rate", task.optimizer["learning_rate"]))
    tables: dict[str, Any] = {
        "name": f"strategies {task.name}",
        "model": {"recipe": task.recipe},
        "recipe": {task.recipe: dict(task.settings)},
        "optimizer": {
            "max_grad_norm": 1.0,
            **task.optimizer,
            "warmup_steps": max(1, round(WARMUP_SHARE * rounds)),
            "total_steps": max(2, rounds),
            "final_learning_rate": FINAL_SHARE * rate,
        },
        "training": {"target_batch_size": batch, "seed": seed},
    }
    for name, table in changes.items():
        said = {key: each.format(tenth=rounds // 10) if isinstance(each, str) else each for key, each in table.items()}
        tables[name] = {**tables.get(name, {}), **said}
    tables["optimizer"]["learning_rate"] = rate
    return RunSpec.from_mapping(tables)
