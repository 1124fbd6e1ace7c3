"""Shapes of language models: the sizes that come with minga, shapes from elsewhere, and those that no peer builds."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from minga.cli.diagnosing.machine import model_of
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.recipes import load_recipe, new_model, published
from minga.recipes.causal_lm.model import FAMILY
from minga.recipes.language import config_guard, shape
from minga.recipes.language import shape as resolution
from minga.recipes.language.config_guard import check_memory
from minga.recipes.registry import check_published
from tests.worlds.language_models import SMALL, TEXT, language_recipe, prepared
from tests.worlds.recipe_text import GENESIS

COUNTS = [
    ("causal-lm", "tiny", 1_328_256),
    ("causal-lm", "small", 13_767_552),
    ("causal-lm", "base", 123_587_328),
    ("causal-lm", "large", 355_124_224),
    ("causal-lm", "paper", 124_439_808),
    ("masked-lm", "tiny", 1_536_128),
    ("masked-lm", "small", 14_147_456),
    ("masked-lm", "base", 109_514_298),
    ("albert", "base", 11_813_810),
    ("albert", "large", 17_847_474),
    ("sahajbert", "large", 18_105_474),
]


def spec(recipe: str, **settings: Any) -> RunSpec:
    return RunSpec.from_mapping({"name": "x", "model": {"recipe": recipe}, "recipe": {recipe: settings}})


@pytest.mark.parametrize(("recipe", "size", "parameters"), COUNTS)
def test_sizes_have_the_parameters_that_they_promise(recipe: str, size: str, parameters: int) -> None:
    settings = load_recipe(spec(recipe)).size_settings(size, None)
    with torch.device("meta"):
        model = load_recipe(spec(recipe, **settings)).build_model()
    assert sum(each.numel() for each in model.parameters()) == parameters


def test_an_architecture_with_rules_of_its_own() -> None:
    recipe = language_recipe("llama", overrides={}, packing="stream", architecture="falcon")
    assert recipe.total_loss(new_model(recipe), recipe.synthetic_batch(2)).isfinite()


def test_an_architecture_whose_layers_differ_keeps_what_no_size_can_say_of_all() -> None:
    settings = published(spec("causal-lm", size="tiny", architecture="gemma4_text")).recipe["causal-lm"]
    config = json.loads(settings["config"])
    assert config["hidden_size"] == 128
    assert config["per_layer_config"] == {"3": {"head_dim": 512}}


def test_todays_tiny_albert_is_as_large_as_ever() -> None:
    assert load_recipe(spec("albert")).parameter_sizes().parameters == 1_256_194


def test_what_is_published_says_everything_and_peers_need_no_more() -> None:
    shown = published(spec("causal-lm", overrides={"rms_norm_eps": 1e-5}, data=TEXT))
    settings = shown.recipe_settings
    config = json.loads(settings["config"])
    assert (config["model_type"], config["vocab_size"], config["rms_norm_eps"]) == ("llama", 4096, 1e-5)
    assert (settings["max_length"], settings["vocabulary_size"], settings["architecture"]) == (128, 4096, "llama")
    assert config["transformers_version"]
    check_published(shown)
    assert published(shown) == shown
    with pytest.raises(ConfigurationError, match="spell out"):
        check_published(spec("causal-lm", data={"source": "bible"}))


def test_a_shape_from_a_folder_and_its_tokenizer(tmp_path: Path) -> None:
    source = tmp_path / "model"
    begun = language_recipe("gpt2")
    begun.export(new_model(begun), prepared(begun, tmp_path / "files"), source, begun.provenance(1))
    settings = {"config_from": str(source), "tokenizer": f"from:{source}", "data": TEXT, "overrides": {"n_layer": 3}}
    shown = published(spec("causal-lm", **settings))
    assert str(source) not in shown.canonical_bytes().decode()
    assert (shown.recipe_settings["tokenizer"], shown.recipe_settings["max_length"]) == ("from:run", 32)
    model: Any = new_model(load_recipe(shown))
    assert (model.config.model_type, model.config.n_layer, model.config.n_embd) == ("gpt2", 3, 32)
    organiser = load_recipe(spec("causal-lm", **settings))
    assert organiser.prepare()["tokenizer.json"] == (source / "tokenizer.json").read_bytes()
    assert source / "tokenizer.json" in organiser.inputs()
    with pytest.raises(ConfigurationError, match="64: the model of config_from has 32 positions"):
        published(spec("causal-lm", **settings, max_length=64))
    with pytest.raises(ConfigurationError, match="vocabulary_size = 500: the model of config_from has 400"):
        published(spec("causal-lm", **settings, vocabulary_size=500))


def test_a_shape_from_a_folder_ends_texts_with_the_token_of_the_tokenizer_that_is_trained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    source = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": 400}
    (tmp_path / "config.json").write_text(json.dumps({**source, "bos_token_id": 50256, "eos_token_id": 399}))
    shown = published(spec("causal-lm", config_from=str(tmp_path), data=TEXT))
    config = json.loads(shown.recipe_settings["config"])
    assert (config["bos_token_id"], config["eos_token_id"], config["vocab_size"]) == (0, 0, 400)
    with pytest.raises(ConfigurationError, match="pad_token_id: the run's tokenizer"):
        published(spec("causal-lm", config_from=str(tmp_path), data=TEXT, overrides={"pad_token_id": 7}))
    assert published(spec("causal-lm", config_from=str(tmp_path), data=TEXT, overrides={"vocab_size": 500}))
    assert not caplog.records, "what transformers says of tokens that are not the run's"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"architecture": "lama"}, "did you mean llama?"),
        ({"architecture": "resnet"}, "no such model for causal-lm"),
        ({"overrides": {"hidden_sise": 3}}, "did you mean hidden_size?"),
        ({"overrides": {"num_attention_heads": 0}}, "llama"),
        ({"overrides": {"hidden_act": "no-such-function"}}, "makes no llama of these settings"),
        ({"config_from": "no-such"}, f"no such folder in {Path.cwd()}"),
        ({"tokenizer": "from:/no/such/folder"}, "= '/no/such/folder': no such folder, and"),
        ({"vocabulary_size": 5}, "at least 64"),
    ],
)
def test_shapes_that_cannot_be_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        published(spec("causal-lm", data=TEXT, **settings))
    assert words in str(caught.value)


def test_a_model_that_branches_on_values_is_tried_with_values(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("torch"), "propagate", True)
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}
    assert language_recipe("llama", architecture="mixtral", overrides={**SMALL, **experts, "head_dim": 8}).prepare()
    with pytest.raises(ConfigurationError, match="runs no longformer of these settings"):
        language_recipe("roberta", architecture="longformer", overrides={**SMALL, "return_dict": False}).prepare()
    assert not [each for each in caplog.records if each.name.startswith("torch")], "of the pass without values"


def hostile(**changes: Any) -> RunSpec:
    """A published spec whose configuration another person changed."""
    shown = published(spec("causal-lm", overrides={**SMALL, "head_dim": 8}, data=TEXT))
    config = {**json.loads(shown.recipe_settings["config"]), **changes}
    return shown.with_recipe_settings({**shown.recipe_settings, "config": json.dumps(config)})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 10**9}, "at most 1,024"),
        ({"hidden_size": 2**20 + 1}, "at most 1,048,576"),
        ({"num_local_experts": 257}, "at most 256"),
        ({"auto_map": {"AutoModelForCausalLM": "model.Evil"}}, "cannot say this"),
        ({"text_config": {"quantization_config": {}}}, "cannot say this"),
        ({"_attn_implementation": "owner/kernel"}, "cannot say this"),
        ({"layer_types": ["x"] * 2000}, "over 1024 entries"),
        ({"model_type": "no-such-type"}, "no such model"),
        ({"model_type": 5}, "no object with a model_type"),
        ({"hidden_size": 2**20, "intermediate_size": 2**20, "num_attention_heads": 1}, "MiB to train"),
    ],
)
def test_hostile_shapes_are_refused_before_they_take_memory(changes: dict[str, Any], words: str) -> None:
    recipe = load_recipe(hostile(**changes))
    before = time.process_time()
    with pytest.raises(ConfigurationError) as caught:
        new_model(recipe)
    assert words in str(caught.value)
    assert time.process_time() - before < 1.0  # of this process alone: no clock of the machine


def test_a_base_of_frequencies_is_no_size() -> None:
    theta = {"rope_type": "default", "rope_theta": 5_000_000}  # as Qwen3 has it
    model: Any = new_model(load_recipe(hostile(rope_parameters=theta)))
    assert model.config.rope_parameters == theta


@pytest.mark.parametrize("text", ["", "[]", "{", "x" * 40_000, "[" * 20_000])
def test_what_is_no_configuration_is_refused(text: str) -> None:
    shown = published(spec("causal-lm", data=TEXT))
    with pytest.raises(ConfigurationError):
        new_model(load_recipe(shown.with_recipe_settings({**shown.recipe_settings, "config": text or "null"})))


def test_memory_is_bounded_by_that_of_the_machine() -> None:
    check_memory(torch.nn.Linear(30, 30))
    with torch.device("meta"):
        large, tables = torch.nn.Linear(10**7, 10**6), torch.nn.Module()
        tables.register_buffer("mask", torch.ones(10**7, 10**7, dtype=torch.bool))
    for model in (large, tables):
        with pytest.raises(ConfigurationError, match="parameters and its tables take"):
            check_memory(model)


@pytest.mark.parametrize(
    ("recipe", "values", "words"),
    [
        ("causal-lm", {"model_type": "gpt_neo", "max_position_embeddings": 1 << 19}, "its tables take"),
        (
            "masked-lm",
            {"model_type": "albert", "num_attention_heads": 1, "inner_group_num": 1 << 20},
            "more than 500 modules",
        ),
        ("masked-lm", {"model_type": "funnel", "block_sizes": [1 << 20]}, "more than 500 modules"),
        ("masked-lm", {"model_type": "distilbert", "sinusoidal_pos_embds": True}, "can only say false"),
    ],
)
def test_shapes_whose_settings_repeat_parts_without_end_are_refused(
    recipe: str, values: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_guard, "MOST_MODULES", 500)
    config = {"vocab_size": 64, "hidden_size": 16, **values}
    with pytest.raises(ConfigurationError, match=words):
        new_model(load_recipe(spec(recipe, config=json.dumps(config), tokenizer="from:run", data=TEXT)))


def test_the_shape_of_what_a_run_begins_from(tmp_path: Path) -> None:
    source = tmp_path / "model"
    begun = language_recipe("llama")
    begun.export(new_model(begun), prepared(begun, tmp_path / "files"), source, begun.provenance(1))
    values = {"recipe": "causal-lm", "init_from": str(source)}
    new = RunSpec.from_mapping({"name": "x", "model": values, "recipe": {"causal-lm": {"data": TEXT}}})
    settings = published(new).recipe_settings
    assert json.loads(settings["config"])["hidden_size"] == AutoConfig.from_pretrained(source).hidden_size == 32
    assert (settings["vocabulary_size"], settings["tokenizer"]) == (400, "from:run")
    said = RunSpec.from_mapping(
        {**new.model_dump(mode="json"), "recipe": {"causal-lm": {"size": "tiny", "data": TEXT}}}
    )
    assert json.loads(published(said).recipe_settings["config"])["hidden_size"] == 128


def test_a_folder_without_a_shape_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="names no model_type"):
        published(spec("causal-lm", config_from=str(tmp_path), data=TEXT))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigurationError, match="is no JSON"):
        published(spec("causal-lm", config_from=str(tmp_path), data=TEXT))
    with pytest.raises(ConfigurationError, match=r"there is no tokenizer\.json"):
        published(spec("causal-lm", tokenizer=f"from:{tmp_path}", data={**TEXT, "files": [str(GENESIS)]}))


@pytest.mark.parametrize("settings", [{"tokenizer": "from:owner/name"}, {"config_from": "owner/name"}, {}])
def test_nothing_that_a_received_spec_names_is_looked_up(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(*_: object) -> None:
        raise AssertionError("a peer looked something up")

    monkeypatch.setattr(resolution, "given_content", look_up)
    monkeypatch.setattr(shape, "given_content", look_up)
    received = spec("causal-lm", **settings)
    with pytest.raises(ConfigurationError, match="spell out the shape"):
        check_published(received)
    assert model_of(received) is None


def test_members_who_verify_each_other_draw_nothing_on_any_level() -> None:
    text = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
    values = {"model_type": "gemma3", "text_config": {**text, "attention_dropout": 0.1}}
    said = shape.published_shape(values, {}, FAMILY)
    assert json.loads(said)["text_config"]["attention_dropout"] == 0.1
    assert json.loads(shape.without_chance(said, FAMILY))["text_config"]["attention_dropout"] == 0.0
