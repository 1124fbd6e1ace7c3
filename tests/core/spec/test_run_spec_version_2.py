"""Run specs of version 2, with the settings of the recipe in [model] and [data]: read, hashed and written as ever."""

from __future__ import annotations

import json
from typing import Any

import pytest

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.recipes import load_recipe, published
from tests.worlds.recipe_text import small_recipe

FILES = """
name = "old"
[model]
size = "base"
max_length = 64
overrides = {hidden_size = 96}
[data]
source = "files"
files = ["texts/*.txt"]
heldout_fraction = 0
vocabulary_size = 1000
masked_fraction = 0.2
[training]
seed = 7
"""
HUB = """
spec_version = 2
name = "old"
[data]
source = "datasets"
name = "owner/set"
config = "c"
[security]
mode = "members"
"""
PLAIN = 'spec_version = 2\nname = "pinned"'
CUSTOM = 'spec_version = 2\nname = "pinned"\n[model]\nrecipe = "custom"'
# Run ids that the last minga of version 2 gave: of the spec as written, and as published.
OLD_RUN_IDS = [
    (PLAIN, "4e2de0a062b1f3e94828b81b8002f9bb37288bea579839a3948afe23dab45a26", None),
    (CUSTOM, "430753f730a5f775c49f21ecac9346b5e041a8a2de7a774e980bc82a0cc634e3", None),
    (
        FILES,
        "f36f75f8e84ce95a6b23a4b4a666a516bafa2b1d32c319aef7dcc2893e122150",
        "54f932694d66736aa0e312908772d71304c4f624dde706d169f2aaf4bc353180",
    ),
    (HUB, "7cfb4eef2ebb22c1d0b7f4eef97c811b048d3fb1ec3482770064aa1ab5869538", None),
]


@pytest.mark.parametrize(("toml", "own", "of_published"), OLD_RUN_IDS)
def test_old_specs_keep_their_run_ids(toml: str, own: str, of_published: str | None) -> None:
    spec = RunSpec.from_toml(toml)
    assert spec.is_old
    assert spec.run_id == own
    assert spec.published({}).run_id == published(spec).run_id == (of_published or own)
    assert RunSpec.from_toml(spec.to_toml()).run_id == own
    again = RunSpec.from_canonical(spec.canonical_bytes())
    assert again == spec
    assert {"model", "data"} <= json.loads(spec.canonical_bytes()).keys()
    assert "recipe" not in json.loads(spec.canonical_bytes())


def test_old_settings_reach_the_recipe() -> None:
    settings = load_recipe(RunSpec.from_toml(FILES)).settings
    assert (settings.size, settings.max_length, settings.overrides) == ("base", 64, {"hidden_size": 96})
    assert (settings.vocabulary_size, settings.masked_fraction) == (1000, 0.2)
    assert (settings.data.files, settings.data.heldout_fraction) == (("texts/*.txt",), 0.0)
    assert (settings.data.name, load_recipe(RunSpec.from_toml(HUB)).settings.data.name) == ("", "owner/set")


def test_an_old_spec_without_a_version_is_known_by_its_places_and_a_new_one_by_its_table() -> None:
    assert RunSpec.from_toml('name = "x"\n[data]\nshuffle_buffer = 7').is_old
    assert RunSpec.from_toml('name = "x"\n[model]\nsize = "tiny"').is_old
    assert not RunSpec.from_toml('name = "x"\n[model]\nrecipe = "albert"').is_old
    assert not RunSpec.from_toml('name = "x"\n[recipe.albert]\nsize = "tiny"').is_old


def test_old_and_new_spellings_are_the_same_recipe() -> None:
    old = RunSpec.from_toml('name = "x"\n[model]\nmax_length = 32\n[data]\nmasked_fraction = 0.3')
    new = RunSpec.from_toml('name = "x"\n[recipe.albert]\nmax_length = 32\nmasked_fraction = 0.3')
    assert load_recipe(old).settings == load_recipe(new).settings
    assert old.run_id != new.run_id


def test_local_paths_are_not_published() -> None:
    spec = RunSpec.from_toml(FILES)
    assert spec.names_local_files
    assert not spec.published().names_local_files
    assert b"texts" not in spec.published().canonical_bytes()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": {"sauce": "bible"}}, r"data\.sauce: unknown key; did you mean source\?"),
        ({"model": {"sise": "tiny"}, "spec_version": 2}, r"model\.sise: unknown key; did you mean size\?"),
        ({"data": 5}, "data: must be a table"),
        ({"model": {"recipe": 5, "size": "tiny"}}, "must be the name of a recipe"),
        ({"data": {}, "recipe": {"albert": {}}}, "leave those out"),
        ({"data": {}, "spec_version": 3}, "data: unknown key"),
    ],
)
def test_what_no_version_had_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RunSpec.from_mapping({"name": "x", **values})


def test_new_recipes_have_no_old_specs() -> None:
    assert type(small_recipe()).from_version_2 is not None
    with pytest.raises(ConfigurationError, match="none of albert"):
        load_recipe(RunSpec.from_mapping({"name": "x", "spec_version": 2, "model": {"recipe": "digits"}}))
