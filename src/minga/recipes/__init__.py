"""Models, data and losses that runs can name.

    run spec ─▶ registry ─▶ recipe (interface) ─▶ running/run: model, data, optimizer, training loop
              causal_lm/, masked_lm/ (use language/ and text/), albert/ (uses masked_lm/) ─┤
              fine_tune/ (uses causal_lm/) ────────────────────────────────────────────────┤
              swav/, text_to_image/ (use images/) ─────────────────────────────────────────┤
              split/ (uses minga.split) ───────────────────────────────────────────────────┘

Read: interface (the recipe seam), registry (recipes by name), data_source (data as a run spec names them), initial
(equal initial parameters on every machine), init_from (parameters of another run or of a hub instead), model_files (the
tokenizer that these belong to), counting (parameters, operations and memory of a model), evaluation_mode (a model as it
is), exported (folders of exported models), task_report (what tasks are asked, and answer). Then data (streams, orders,
what is held out), text (text as training data), images (pictures as data), language (what recipes of language models
share), causal_lm and masked_lm (any architecture), fine_tune (adapters of a model that is there already), albert, with
sahajBERT, swav and text_to_image (of the papers), split (networks that are cut), tasks (what a trained model is good
for), running (what is the same for all recipes).

Called by cli. A recipe knows batches and losses, and nothing of peers or steps.

A package of another author adds a recipe by an entry point; `minga.testing.check_recipe` says whether it keeps what the
interface promises. What is listed in `__all__` is public, and importing it loads neither torch nor a recipe's
libraries.

    [project.entry-points."minga.recipes"]
    digits = "my_recipes:Digits"
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from minga.core.spec.fields import choice, described, real, whole
from minga.recipes.exported import Exported, Provenance
from minga.recipes.interface import (
    Batch,
    Beside,
    DemoGoal,
    Exhibit,
    Files,
    Loss,
    Metric,
    Recipe,
    RecipeContext,
    RecipeFacts,
    Sample,
    SampleOptions,
    Settings,
    Showing,
    Shown,
    StreamPosition,
)
from minga.recipes.registry import RECIPES, load_recipe, published
from minga.recipes.task_report import Score, TaskOptions, TaskReport

if TYPE_CHECKING:
    from minga.recipes.data.hold_out import held_out
    from minga.recipes.data.hub import open_hub, rows_of
    from minga.recipes.data.order import endless, epoch_seed, shuffled
    from minga.recipes.evaluation_mode import evaluating
    from minga.recipes.initial import new_model
    from minga.security.randomness.public_batch import PublicBatch

__all__ = [
    "RECIPES",
    "Batch",
    "Beside",
    "DemoGoal",
    "Exhibit",
    "Exported",
    "Files",
    "Loss",
    "Metric",
    "Provenance",
    "PublicBatch",
    "Recipe",
    "RecipeContext",
    "RecipeFacts",
    "Sample",
    "SampleOptions",
    "Score",
    "Settings",
    "Showing",
    "Shown",
    "StreamPosition",
    "TaskOptions",
    "TaskReport",
    "choice",
    "described",
    "endless",
    "epoch_seed",
    "evaluating",
    "held_out",
    "load_recipe",
    "new_model",
    "open_hub",
    "published",
    "real",
    "rows_of",
    "shuffled",
    "whole",
]

_LATE = {
    "PublicBatch": "minga.security.randomness.public_batch",
    "endless": "minga.recipes.data.order",
    "epoch_seed": "minga.recipes.data.order",
    "evaluating": "minga.recipes.evaluation_mode",
    "held_out": "minga.recipes.data.hold_out",
    "new_model": "minga.recipes.initial",
    "open_hub": "minga.recipes.data.hub",
    "rows_of": "minga.recipes.data.hub",
    "shuffled": "minga.recipes.data.order",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
