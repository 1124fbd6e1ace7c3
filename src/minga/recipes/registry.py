"""Recipes by name: minga's own, and those that other packages declare in the entry-point group `minga.recipes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from minga.averaging.strategy_choice import STRATEGIES
from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Section, without_private
from minga.core.spec.plugins import Registry, check_recorded, recorded
from minga.core.spec.problems import explain, probably_meant
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import ModelSection
from minga.core.spec.toml import render_commented, render_section, table_name
from minga.recipes.interface import Recipe, RecipeContext

RECIPES: Final[Registry[type[Recipe[Any]]]] = Registry(
    "minga.recipes",
    "recipe",
    {
        "albert": "minga.recipes.albert.recipe:AlbertRecipe",
        "causal-lm": "minga.recipes.causal_lm.recipe:CausalLmRecipe",
        "fine-tune": "minga.recipes.fine_tune.recipe:FineTuneRecipe",
        "masked-lm": "minga.recipes.masked_lm.recipe:MaskedLmRecipe",
        "sahajbert": "minga.recipes.albert.sahajbert:SahajbertRecipe",
        "split": "minga.recipes.split.recipe:SplitRecipe",
        "swav": "minga.recipes.swav.recipe:SwavRecipe",
        "text-to-image": "minga.recipes.text_to_image.recipe:TextToImageRecipe",
    },
    base="minga.recipes.interface:Recipe",
)
CUSTOM: Final = "custom"
"""The name in run specs whose model, data and loss are in a program of the organiser's."""

USUAL_RECIPE: Final = str(ModelSection().recipe)
"""What a run spec that names none trains."""

USUAL_MODEL: Final = "albert-base"
"""What `minga plan --measure` measures unless told otherwise."""


def load_recipe(spec: RunSpec, source: str = "run spec") -> Recipe[Any]:
    """The recipe that `spec` names, with the settings that it gives; `source` says in messages where they are from.

    Raises `ConfigurationError` if no installed package brings it, or another one than the run recorded, or it refuses
    its settings.
    """
    name = spec.model.recipe
    if name == CUSTOM:
        raise ConfigurationError(
            f'{source}: model.recipe = "{CUSTOM}": the model is in the program of the organiser, which alone can use '
            "it: a program reads the parameters from minga.Peer.newest_checkpoint"
        )
    recorded([(RECIPES, name)], spec.plugins)  # raises if it is known to be of another package
    found = RECIPES.get(name)
    try:
        settings = found.Settings.model_validate(spec.recipe_settings)
    except ValidationError as error:
        raise ConfigurationError(explain(error, found.Settings, source, within=f"recipe.{name}")) from error
    is_public = spec.security.verification == "byzantine"
    context = RecipeContext(
        name,
        spec.name,
        spec.run_id,
        spec.training.seed,
        is_public,
        spec.security.micro_batch_size if is_public else None,
        spec.model.init_from,
    )
    recipe = found(settings, context)
    _check_coupling(recipe, spec, source)
    if is_public:
        recipe.check_public()
    return recipe


def _check_coupling(recipe: Recipe[Any], spec: RunSpec, source: str) -> None:
    """Where the micro-batch size is part of the run, it must suit what else the run says about samples."""
    size = recipe.fixed_micro_batch_size
    if size is None:
        return
    where = f"{source}: recipe.{spec.model.recipe}.micro_batch_size = {size}"
    smallest = min(phase.training.batch_range[0] for phase in spec.phases)
    if size > smallest:
        raise ConfigurationError(f"{where}: it must be at most the run's target batch size, {smallest}")
    if recipe.context.is_public and size != spec.security.micro_batch_size:
        raise ConfigurationError(f"{where}: security.micro_batch_size = {spec.security.micro_batch_size} must equal it")


def pinned(spec: RunSpec) -> RunSpec:
    """The organiser's spec with the commits of the data sets of a hub that it names. Raises what `load_recipe` raises,
    and `ConfigurationError` if the hub does not answer.
    """
    if spec.model.recipe == CUSTOM:
        return spec
    recipe = load_recipe(spec)
    now = recipe.pinned_settings()
    if now.model_dump(mode="json") == recipe.settings.model_dump(mode="json"):
        return spec
    return spec.with_recipe_settings(now.model_dump(mode="json", exclude_unset=True))


def spelled_out(spec: RunSpec, source: str = "run spec") -> RunSpec:
    """The spec with every setting of its recipe spelled out, without those that name things of this machine, and with
    the package that brings the recipe, where it does not come with minga.

    Spelled out, since another version of a recipe may have other defaults.
    Raises what `load_recipe` raises, with `source` in its messages.
    """
    if spec.model.recipe == CUSTOM:
        return spec
    settings = without_private(load_recipe(spec, source).published_settings())
    spec = spec.with_plugins(recorded([(RECIPES, spec.model.recipe)], spec.plugins))
    return spec.with_recipe_settings(settings.model_dump(mode="json"))


def published(spec: RunSpec) -> RunSpec:
    """The spec as others get it: `spelled_out`, without what concerns this machine alone."""
    return spelled_out(spec).published()


def check_installed(spec: RunSpec) -> None:
    """Raise `ConfigurationError`, with what to install, unless this machine has the recipe of a received spec, in the
    recorded version. A `custom` one is that of a program.
    """
    if spec.model.recipe != CUSTOM:
        check_recorded([(RECIPES, spec.model.recipe)], spec.plugins)


def check_published(spec: RunSpec) -> None:
    """Raise `ConfigurationError` unless this machine has the recipe of a received spec, in the recorded version, and
    the spec has just the settings that `published` gives.
    """
    check_installed(spec)
    if spec.model.recipe != CUSTOM:
        load_recipe(spec).check_received()
    if spec.model.recipe != CUSTOM and published(spec).canonical_bytes() != spec.canonical_bytes():
        raise ConfigurationError(
            f"this run does not spell out the settings of its recipe {spec.model.recipe}, or names files of its "
            "organiser: with this version of the recipe it could be another run; ask the organiser to host it anew"
        )


def example_toml(recipe: str) -> str:
    """A commented run spec of `recipe`, with every setting at its default. Raises `ConfigurationError`."""
    return _as_toml(recipe, {}, {})


def new_toml(recipe: str, size: str | None) -> str:
    """A commented run spec of `recipe` with every setting: those of its demo, which learns within minutes on two CPU
    cores, or those of one of its sizes, with everything else at its default. Raises `ConfigurationError`.
    """
    found = RECIPES.get(recipe)
    if size is None:
        tables = dict(found.demo_spec())
        return _as_toml(recipe, tables.pop("recipe", {}).get(recipe, {}), tables)
    if size not in found.sizes:
        known = f"one of {', '.join(found.sizes)}" if found.sizes else "none: it has a single size"
        raise ConfigurationError(f"--size {size}: the recipe {recipe} has {known}{probably_meant(size, found.sizes)}")
    return _as_toml(recipe, found.size_settings(size, None), {})


def _as_toml(recipe: str, settings: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    spec = RunSpec.from_mapping({"name": "my first run", "model": {"recipe": recipe}, **sections})
    values = RECIPES.get(recipe).Settings.model_validate(settings)
    return RunSpec.example_toml(spec) + render_section(table_name("recipe", recipe), values) + _strategy_tables()


def _strategy_tables() -> str:
    """The settings of all strategies that have some, commented out: a run has those of its own strategy only."""
    lines = "\n# The table of the strategy that the run has; leave out the # before the lines that you want.\n"
    for name in STRATEGIES.names():
        settings: type[Section] = STRATEGIES.get(name).Settings
        if settings.model_fields:
            lines += render_commented(table_name("strategy", name), settings())
    return lines
