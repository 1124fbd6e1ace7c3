"""The shape of a language model: out of a size, a configuration from elsewhere, and overrides, one JSON object.

    size + architecture ─┐
    config_from ─────────┼─▶ + overrides ─▶ a configuration of transformers ─▶ JSON, which the run publishes
    model.init_from ─────┘

Only the published JSON object makes a model, by the class that transformers has for its `model_type`: what another
version of minga or of transformers takes for usual cannot change it, and code from elsewhere never runs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING, PretrainedConfig

from minga.core.errors import ConfigurationError
from minga.core.spec.problems import probably_meant
from minga.recipes.language.config_guard import (
    BYTES_PER_PARAMETER,
    bounded_modules,
    check_bounds,
    check_memory,
    read_config,
    without_foreign,
)
from minga.recipes.language.settings import LanguageSettings
from minga.recipes.text.tokenizer import (
    MAX_TOKENIZER_BYTES,
    TOKENIZER_FILE,
    SpecialTokens,
    find_special_tokens,
    given_content,
    read_tokenizer,
    tokens_needed,
    trained_special_tokens,
)

CONFIG_FILE: Final = "config.json"
MAX_FOREIGN_BYTES: Final = 1 << 20
_SEES_ALL: Final = ("cpmant", "xlm", "xlnet")
_NUMBERED_FROM_PADDING: Final = ("roberta", "camembert", "xmod", "data2vec-text", "longformer", "mpnet")

logger = logging.getLogger("minga.recipes")


@dataclass(frozen=True)
class Preset:
    """A size: the numbers of its usual architecture, by the names of transformers' configurations."""

    architecture: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocabulary_size: int
    max_length: int
    positions: int = 0
    """At least so many, whatever the length of a sample."""

    activation: str | None = None
    """None: the usual one of the architecture."""


@dataclass(frozen=True)
class ModelFamily:
    """What transformers has for one kind of language model.

    `auto` makes a model of a configuration; `types` are the architectures that it knows; `presets` by size; `special`
    says which special token a setting of the configuration names; `always` are settings that every model needs.
    """

    recipe: str
    auto: Any
    types: Collection[str]
    presets: Mapping[str, Preset]
    special: Mapping[str, str]
    always: Mapping[str, Any]


def shape_of_size(settings: LanguageSettings, family: ModelFamily, special: SpecialTokens) -> dict[str, Any]:
    """The configuration of a preset, for the architecture that the settings name; no dropout, since devices draw it
    differently.
    """
    preset = family.presets[settings.size]
    architecture = settings.architecture or preset.architecture
    check_type(architecture, family, f"recipe.{family.recipe}.architecture")
    usual = CONFIG_MAPPING[architecture]()
    numbers = special_settings(architecture, family, special)
    heads = preset.num_attention_heads
    wanted: dict[str, int | None] = {
        "hidden_size": preset.hidden_size,
        "num_hidden_layers": preset.num_hidden_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": preset.hidden_size // heads,
        "intermediate_size": preset.intermediate_size,
        "vocab_size": settings.vocabulary_size,
        "max_position_embeddings": max(settings.max_length, preset.positions)
        + positions_before(architecture, numbers.get("pad_token_id")),
        "tie_word_embeddings": True,
    }
    values: dict[str, Any] = {name: value for name, value in wanted.items() if _can_say(usual, name)}
    if preset.activation is not None:
        values["hidden_act"] = preset.activation
    values |= {name: 0.0 for name, value in usual.to_dict().items() if "drop" in name and isinstance(value, float)}
    return {"model_type": architecture, **values, **numbers}


def special_settings(architecture: str, family: ModelFamily, special: SpecialTokens) -> dict[str, int | None]:
    """The settings of a configuration that number special tokens, by those of the run's tokenizer."""
    usual = CONFIG_MAPPING[architecture]()
    values = {name: special.ids.get(role) for name, role in family.special.items() if hasattr(usual, name)}
    if is_numbered_from_padding(architecture) and values.get("pad_token_id") is None:
        values["pad_token_id"] = special.ids.get("unknown", 0)  # positions are numbered from some token on
    return values


def shape_from(source: str, key: str, family: ModelFamily) -> dict[str, Any]:
    """The configuration in `config.json` of a folder, or of a model of the hub."""
    content = given_content(source, CONFIG_FILE, key, MAX_FOREIGN_BYTES)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{key} = {source!r}: {CONFIG_FILE} is no JSON: {str(error)[:200]}") from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise ConfigurationError(f"{key} = {source!r}: {CONFIG_FILE} names no model_type")
    check_type(values["model_type"], family, f"{key} = {source!r}: model_type")
    return without_foreign(values)


def has_shape(source: str) -> bool:
    """Whether a folder, or a name of the hub, is one of a model rather than of a run."""
    folder = Path(source).expanduser()
    return (folder / CONFIG_FILE).is_file() if folder.exists() else "/" in source


def published_shape(values: Mapping[str, Any], overrides: Mapping[str, Any], family: ModelFamily) -> str:
    """The JSON object that a run publishes. Raises `ConfigurationError` for what no such model can be made of."""
    usual = CONFIG_MAPPING[values["model_type"]]()
    known = sorted(name for name in {*usual.to_dict(), *usual.attribute_map} if name != "model_type")
    for name in overrides:
        if name not in known:
            raise ConfigurationError(
                f"recipe.{family.recipe}.overrides.{name}: {values['model_type']} has no such setting"
                f"{probably_meant(name, known)}"
            )
    always = {name: value for name, value in family.always.items() if hasattr(usual, name)}
    merged = {**_by_own_names(values, usual), **_by_own_names(overrides, usual), **always}
    check_bounds(merged)
    complete = without_foreign(_configuration(merged).to_dict())
    text = json.dumps(complete, sort_keys=True, separators=(",", ":"))
    parameters_of(text, family)
    return text


def without_chance(text: str, family: ModelFamily) -> str:
    """A published shape without what its model draws at random in training, such as dropout: devices draw otherwise, so
    that members who compute each other's gradients again would come to others.
    """
    drawn: list[str] = []
    values = _undrawn(read_config(text), drawn)
    if not drawn:
        return text
    logger.warning("members of this run verify each other, so it trains without %s", ", ".join(drawn))
    return published_shape(values, {}, family)


def _undrawn(values: Mapping[str, Any], drawn: list[str], where: str = "") -> dict[str, Any]:
    """The configuration with 0 for what is drawn, on every level; the names of it are added to `drawn`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        is_drawn = ("drop" in name or "jitter" in name) and isinstance(value, float) and value != 0.0
        if is_drawn:
            drawn.append(where + name)
        found[name] = 0.0 if is_drawn else value
        if isinstance(value, Mapping):
            found[name] = _undrawn(value, drawn, f"{where}{name}.")
    return found


def sizes_of(values: Mapping[str, Any]) -> tuple[int, int | None]:
    """Entries of the vocabulary, and the longest sequence (None: any) of a configuration."""
    usual = CONFIG_MAPPING[values["model_type"]]().to_dict()
    # Those that number tokens are the tokenizer's of the run; transformers would warn of them.
    config = _configuration({**values, **{name: None for name in usual if name.endswith("_token_id")}})
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int):
        padding = values.get("pad_token_id", usual.get("pad_token_id"))
        return int(config.vocab_size), positions - positions_before(config.model_type, padding)
    return int(config.vocab_size), None


def parameters_of(text: str, family: ModelFamily) -> int:
    """How many parameters a model of this shape trains, counted without making it."""
    return sum(parameter.numel() for parameter in _without_memory(read_config(text), family).parameters())


def build(text: str, family: ModelFamily, frozen: torch.dtype | None = None) -> nn.Module:
    """A new float32 model, in training mode; or one that is not to be trained, whose parameters are of the type
    `frozen`. Raises `ConfigurationError` if it cannot be made or is too large here.
    """
    values = read_config(text)
    if torch.get_default_device().type != "meta":
        check_memory(_without_memory(values, family), BYTES_PER_PARAMETER if frozen is None else frozen.itemsize)
    return _model(values, family, frozen or torch.float32).train()


def check_type(architecture: str, family: ModelFamily, key: str) -> None:
    """Raise `ConfigurationError` if transformers has no model of this type, which `key` names, and kind, or only one
    that cannot be used: with an encoder beside the decoder (sizes of a run name the layers of one stack), with
    positions of its own, or with each token in sight of all others where it is to guess the next one.
    """
    where = f"{key} = {architecture[:64]!r}"
    if architecture not in family.types or architecture not in CONFIG_MAPPING:
        raise ConfigurationError(
            f"{where}: transformers {transformers.__version__} has no such model for {family.recipe}"
            f"{probably_meant(architecture, sorted(family.types))}"
        )
    if family.always.get("is_decoder") and is_numbered_from_padding(architecture):
        raise ConfigurationError(
            f"{where}: numbers positions from the padding on, and generates with others than it is trained with"
        )
    if family.always.get("is_decoder") and architecture in _SEES_ALL:
        raise ConfigurationError(f"{where}: sees the tokens that it is to guess")
    if CONFIG_MAPPING[architecture]().is_encoder_decoder:
        raise ConfigurationError(f"{where}: is an encoder and a decoder; {family.recipe} trains models of one stack")


def _without_memory(values: Mapping[str, Any], family: ModelFamily) -> nn.Module:
    with torch.device("meta"):
        return _model(values, family)


def _model(values: Mapping[str, Any], family: ModelFamily, dtype: torch.dtype = torch.float32) -> nn.Module:
    check_type(values["model_type"], family, "config.model_type")
    try:
        with bounded_modules():
            model = family.auto.from_config(_configuration(values), dtype=dtype)
        # Transformers lets it pass where embeddings have a width of their own, as in ALBERT.
        if hasattr(model.config, "embedding_size") and model.config.hidden_size % model.config.num_attention_heads:
            raise ValueError("hidden_size is no multiple of num_attention_heads")
    except (NotImplementedError, ConfigurationError):  # the first: a draw that would differ between machines
        raise
    except Exception as error:  # each architecture has errors of its own
        raise ConfigurationError(
            f"transformers makes no {values['model_type']} of these settings: {reason_of(error)}"
        ) from error
    if not isinstance(model, nn.Module):
        raise TypeError(f"not a model: {type(model).__name__}")
    return model


def _configuration(values: Mapping[str, Any]) -> PretrainedConfig:
    given = {name: value for name, value in values.items() if name not in ("model_type", "transformers_version")}
    try:
        return CONFIG_MAPPING[values["model_type"]](**given)
    except Exception as error:  # each architecture has errors of its own
        raise ConfigurationError(
            f"transformers takes no {values['model_type']} with these settings: {reason_of(error)}"
        ) from error


def reason_of(error: Exception) -> str:
    """What an error that a model's settings cause says of them."""
    if isinstance(error, ZeroDivisionError):
        return "one of them is 0, and another is divided by it"
    return str(error).strip()[:200]


def _by_own_names(overrides: Mapping[str, Any], usual: PretrainedConfig) -> dict[str, Any]:
    """Overrides by the names that the architecture itself has: GPT-2 calls `hidden_size` `n_embd`."""
    return {usual.attribute_map.get(name, name): value for name, value in overrides.items()}


def _can_say(usual: PretrainedConfig, name: str) -> bool:
    """Whether a configuration has a setting, and not only computes it of others."""
    computed = getattr(type(usual), name, None)
    try:
        is_there = hasattr(usual, name)
    except Exception:  # of an architecture whose layers differ in it
        return False
    return is_there and not (isinstance(computed, property) and computed.fset is None)


def is_numbered_from_padding(architecture: str) -> bool:
    """Whether positions are numbered from the token that pads on, as in RoBERTa and the architectures after it."""
    return any(word in architecture for word in _NUMBERED_FROM_PADDING)


def positions_before(architecture: str, padding: int | None) -> int:
    """How many positions no token of a sample has, if `padding` is the token that pads."""
    return (padding or 0) + 1 if is_numbered_from_padding(architecture) else 0


# ---- Settings that name places, as settings that say everything: what the organiser looks up, peers only read.


L = TypeVar("L", bound=LanguageSettings)
GIVEN: Final = "from:"
OF_THE_RUN: Final = "from:run"
"""What a run publishes of a tokenizer from elsewhere: it comes with the run."""

LONGEST_USUAL: Final = 1024
_SHAPES: Final = frozenset({"size", "architecture", "config_from", "overrides"})
_MOST_ENTRIES: Final = 1 << 20


def resolve(
    settings: L, family: ModelFamily, trained_tokens: tuple[str, ...], tokenizer: str, init_from: str | None
) -> L:
    """Settings with `config` as the run publishes it, a vocabulary and a length; `tokenizer` is `train:` and a kind, or
    `from:` and a place.

    Where the run begins with parameters of a model from elsewhere, and nothing else is said of the shape, the shape is
    that model's. Raises `ConfigurationError`.
    """
    if settings.config:
        return settings
    is_elsewhere = init_from is not None and has_shape(init_from)
    if is_elsewhere and not settings.model_fields_set & _SHAPES:
        settings = settings.model_copy(update={"config_from": init_from})
    given, special = _given_tokenizer(tokenizer, trained_tokens)
    preset = family.presets[settings.size]
    # A shape from elsewhere has a vocabulary of its own, and its numbers of tokens where its tokenizer comes with it.
    said = () if settings.config_from and given else family.special
    for name in settings.overrides:
        if name in said or (name == "vocab_size" and not settings.config_from):
            raise ConfigurationError(
                f"recipe.{family.recipe}.overrides.{name}: the run's tokenizer and vocabulary_size say it"
            )
    if settings.config_from:
        values = shape_from(settings.config_from, f"recipe.{family.recipe}.config_from", family)
        values |= {name: value for name, value in settings.overrides.items() if name == "vocab_size"}
        if not given:  # its numbers are those of the tokenizer that the model was made for
            values |= special_settings(str(values["model_type"]), family, special)
        settings = _sized(settings, values, given, family)
    else:
        # A run that is begun from has the vocabulary of its size, though its tokenizer may have fewer entries.
        has_own = given and (is_elsewhere or settings.tokenizer.startswith(GIVEN))
        wanted = settings.vocabulary_size or (0 if has_own else preset.vocabulary_size)
        settings = settings.model_copy(
            update={
                "vocabulary_size": max(wanted, given),
                "max_length": settings.max_length or preset.max_length,
                "architecture": settings.architecture or preset.architecture,
            }
        )
        values = shape_of_size(settings, family, special)
    if settings.vocabulary_size < 64:
        raise ConfigurationError(f"recipe.{family.recipe}.vocabulary_size = {settings.vocabulary_size}: at least 64")
    shape = published_shape(values, settings.overrides, family)
    shown = OF_THE_RUN if tokenizer.startswith(GIVEN) else tokenizer
    return settings.model_copy(update={"config": shape, "tokenizer": shown})


def _given_tokenizer(source: str, trained_tokens: tuple[str, ...]) -> tuple[int, SpecialTokens]:
    """How many entries a tokenizer from elsewhere has, 0 for one that is trained; and its special tokens."""
    if not source.startswith(GIVEN):
        return 0, trained_special_tokens(trained_tokens)
    content = given_content(source.removeprefix(GIVEN), TOKENIZER_FILE, "tokenizer", MAX_TOKENIZER_BYTES)
    tokenizer = read_tokenizer(content, _MOST_ENTRIES)
    return tokens_needed(tokenizer), find_special_tokens(tokenizer)


def _sized(settings: L, values: Mapping[str, Any], given: int, family: ModelFamily) -> L:
    """Vocabulary and length of a configuration from elsewhere."""
    vocabulary, positions = sizes_of(values)
    where = f"recipe.{family.recipe}"
    if settings.vocabulary_size not in (0, vocabulary):
        raise ConfigurationError(
            f"{where}.vocabulary_size = {settings.vocabulary_size}: the model of config_from has {vocabulary} entries"
        )
    if given > vocabulary:
        raise ConfigurationError(f"{where}.tokenizer: {given} entries; the model of config_from has {vocabulary}")
    length = settings.max_length or min(positions or LONGEST_USUAL, LONGEST_USUAL)
    if positions is not None and length > positions:
        raise ConfigurationError(f"{where}.max_length = {length}: the model of config_from has {positions} positions")
    return settings.model_copy(update={"vocabulary_size": vocabulary, "max_length": length})
