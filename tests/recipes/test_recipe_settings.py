"""What run specs say to a recipe: read by the recipe, with its bounds and its words; spelled out when published."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from minga.averaging.strategy_choice import StrategyChoice
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.recipes import load_recipe, new_model, published
from minga.recipes.registry import check_published, example_toml


def spec(albert: dict[str, Any] | None = None, **sections: Any) -> RunSpec:
    return RunSpec.from_mapping({"name": "x", "recipe": {"albert": albert or {}}, **sections})


BAD = [
    ("size", "huge", '"tiny"'),
    ("max_length", 15, "at least 16"),
    ("max_length", 128.0, "whole number"),
    ("max_length", "128", "whole number"),
    ("overrides", {"a": [1]}, "at most 32 names"),
    ("overrides", {"a": "x" * 201}, "at most 32 names"),
    ("overrides", {f"a{i}": 1 for i in range(33)}, "at most 32 names"),
    ("masked_fraction", 0.0, "above 0"),
    ("vocabulary_size", 10**7, "1,048,576"),
    ("max_len", 64, "did you mean max_length?"),
    ("data.source", "web", '"bible"'),
    ("data.source", "datasets", "needs name"),
    ("data.name", "wikitext", "for source"),
    ("data.name", "../../etc", "owner/name"),
    ("data.name", "/etc/passwd", "owner/name"),
    ("data.name", "wikitext\n", "owner/name"),
    ("data.files", ["x.txt"], "files is for source"),
    ("data.files", "x.txt", "list of at most 256"),
    ("data.shuffle_buffer", 0, "from 1"),
    ("data.heldout_fraction", 0.51, "at most 0.5"),
    ("data.heldout_fraction", -0.1, "at most 0.5"),
    ("data.sauce", "web", "did you mean source?"),
]


@pytest.mark.parametrize(("key", "value", "message"), BAD, ids=[f"{i}-{key}" for i, (key, _, _) in enumerate(BAD)])
def test_bad_settings_are_named(key: str, value: object, message: str) -> None:
    section, _, field = key.rpartition(".")
    settings = {section: {field: value}} if section else {field: value}
    with pytest.raises(ConfigurationError) as caught:
        load_recipe(spec(settings), "run.toml")
    text = str(caught.value)
    assert message in text
    assert text.startswith(f"run.toml: recipe.albert.{section or field}")
    assert "\n" not in text
    assert len(text) < 300


def test_publishing_spells_out_every_setting_and_hides_paths() -> None:
    local = spec({"data": {"source": "files", "files": ["/home/me/*.txt"], "heldout_fraction": -0.0}})
    shown = published(local)
    assert b"/home" not in shown.canonical_bytes()
    assert shown.recipe_settings["max_length"] == 128
    assert math.copysign(1.0, shown.recipe_settings["data"]["heldout_fraction"]) == 1.0
    assert published(shown) == shown
    assert RunSpec.from_toml(shown.to_toml()).run_id == shown.run_id
    check_published(shown)
    without_size = {name: value for name, value in shown.recipe_settings.items() if name != "size"}
    for unfinished, what in ((local, "shape of its model"), (shown.with_recipe_settings(without_size), "settings")):
        with pytest.raises(ConfigurationError, match=f"does not spell out the {what}"):
            check_published(unfinished)


def test_recipes_of_other_packages_are_named_by_form_and_found_when_needed() -> None:
    other = RunSpec.from_mapping(
        {"name": "x", "model": {"recipe": "digits"}, "recipe": {"digits": {"hidden": 64, "noise": 0.5}}}
    )
    assert RunSpec.from_canonical(other.canonical_bytes()) == other
    with pytest.raises(
        ConfigurationError, match=r"recipe: 'digits' is none of albert, causal-lm, .*, and no package brings it"
    ):
        load_recipe(other)
    with pytest.raises(ConfigurationError, match="program of the organiser"):
        load_recipe(RunSpec.from_mapping({"name": "x", "model": {"recipe": "custom"}}))


def test_a_run_whose_members_check_each_other_ships_its_text() -> None:
    hub = {"data": {"source": "datasets", "name": "owner/set"}}
    security = {"verification": "byzantine"}
    training, averaging = {"target_batch_size": 64}, {"average_parameters_every": 0}
    with pytest.raises(ConfigurationError, match="text that comes with the run"):
        load_recipe(spec(hub, security=security, training=training, averaging=averaging))
    bible = spec({}, security=security, training=training, averaging=averaging)
    assert load_recipe(bible).context.micro_batch_size == 16


def test_a_model_that_members_compute_again_draws_nothing_at_random() -> None:
    """Devices draw otherwise: honest members would be banned."""
    tables = {"recipe": {"albert": {"overrides": {"num_hidden_layers": 1, "hidden_dropout_prob": 0.3}}}}
    losses: dict[str, set[float]] = {"none": set(), "byzantine": set()}
    for verification, found in losses.items():
        spec = RunSpec.from_mapping({"name": "x", **tables, "security": {"verification": verification}})
        recipe = load_recipe(published(spec))
        model, batch = new_model(recipe), recipe.synthetic_batch(2)
        for seed in range(2):
            torch.manual_seed(seed)
            found.add(recipe.total_loss(model, batch).item())
    assert [len(found) for found in losses.values()] == [2, 1]


@pytest.mark.parametrize("strategy", ["local", "elastic", "leader"])
def test_the_example_has_the_tables_of_all_strategies_to_uncomment(strategy: str) -> None:
    """Each is at its defaults: without the # in front of its lines the spec says the same."""
    text = example_toml("albert").replace('strategy = "synchronous"', f'strategy = "{strategy}"')
    head, _, rest = text.partition(f"# [strategy.{strategy}]")
    table, rest = rest.split("\n\n", 1) if "\n\n" in rest else (rest, "")
    lines = [line.removeprefix("# ") for line in table.split("\n")]
    read = RunSpec.from_toml("\n".join([head, f"[strategy.{strategy}]", *lines[1:], "", rest]))
    choice = StrategyChoice.of(read)
    assert choice.settings == StrategyChoice(strategy).settings
    given = {name for name, value in choice.settings.model_dump().items() if value is not None}
    assert set(read.strategy[strategy]) == given
    assert {name for name in type(choice.settings).model_fields if f"\n# {name} = " in text} >= given
