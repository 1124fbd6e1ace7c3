"""Settings that name places, as settings that say everything: what the organiser looks up, peers only read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from minga.core.errors import ConfigurationError
from minga.recipes.language.settings import LanguageSettings
from minga.recipes.language.shape import (
    ModelFamily,
    has_shape,
    published_shape,
    shape_from,
    shape_of_size,
    sizes_of,
    special_settings,
)
from minga.recipes.text.given_tokenizer import MAX_TOKENIZER_BYTES, TOKENIZER_FILE, given_content
from minga.recipes.text.special_tokens import (
    SpecialTokens,
    find_special_tokens,
    tokens_needed,
    trained_special_tokens,
)
from minga.recipes.text.tokenizer import read_tokenizer

L = TypeVar("L", bound=LanguageSettings)
GIVEN: Final = "from:"
OF_THE_RUN: Final = "from:run"
"""What a run publishes of a tokenizer from elsewhere: it comes with the run."""

LONGEST_USUAL: Final = 1024
_SHAPES: Final = frozenset({"size", "architecture", "config_from", "overrides"})
_MOST_ENTRIES: Final = 1 << 20


def resolve(settings: L, family: ModelFamily, trained_tokens: tuple[str, ...], init_from: str | None) -> L:
    """Settings with `config` as the run publishes it, a vocabulary and a length.

    Where the run begins with parameters of a model from elsewhere, and nothing else is said of the shape, the shape is
    that model's; so is the tokenizer, if nothing else is said of it. Raises `ConfigurationError`.
    """
    if settings.config:
        return settings
    settings = _with_model_of(settings, init_from)
    given, special = _given_tokenizer(settings.tokenizer, trained_tokens)
    preset = family.presets[settings.size]
    if settings.config_from:
        values = shape_from(settings.config_from, f"recipe.{family.recipe}.config_from", family)
        values |= {name: value for name, value in settings.overrides.items() if name == "vocab_size"}
        settings = _sized(settings, values, given, family)
        if not given:  # its numbers are those of the tokenizer that the model was made for
            values |= special_settings(str(values["model_type"]), family, special)
    else:
        wanted = settings.vocabulary_size or (0 if given else preset.vocabulary_size)
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
    tokenizer = OF_THE_RUN if settings.tokenizer.startswith(GIVEN) else settings.tokenizer
    return settings.model_copy(update={"config": shape, "tokenizer": tokenizer})


def _with_model_of(settings: L, init_from: str | None) -> L:
    """Where nothing else is said: the shape and the tokenizer of the model whose parameters the run begins with."""
    if init_from is None or not has_shape(init_from):
        return settings
    said = settings.model_fields_set
    changes: dict[str, Any] = {}
    if not said & _SHAPES:
        changes["config_from"] = init_from
    if "tokenizer" not in said:
        changes["tokenizer"] = GIVEN + init_from
    return settings.model_copy(update=changes)


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
