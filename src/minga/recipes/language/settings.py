"""What run specs say to recipes of language models: the shape of the model, its tokenizer and its text."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StrictBool, StrictInt, field_validator

from minga.core.spec.fields import Printable, Real, Section, described, whole
from minga.recipes.text.settings import TextData

MAX_CONFIG_CHARACTERS = 32 << 10
_KEY = r"^[a-z][a-z0-9_]{0,63}$"
_ARCHITECTURE = r"^$|^[a-z0-9][a-z0-9_.-]{0,63}$"
_TOKENIZER = r"^(train:(bpe|wordpiece|unigram)|from:.{1,1000})$"

Scalar = StrictBool | StrictInt | Annotated[Real, Field(strict=True)] | Annotated[Printable, Field(max_length=200)]
Overrides = dict[Annotated[str, Field(pattern=_KEY)], Annotated[Scalar, Field(union_mode="left_to_right")]]


def overrides_field() -> Any:
    """Settings of the model's configuration by name; to be checked by `within_64_bits`."""
    return described(
        {},
        "settings of the model's configuration that replace those of the preset",
        "at most 32 names (a-z, 0-9, _) with numbers, texts or true/false",
        max_length=32,
    )


class TextSettings(Section):
    """What every recipe on text has."""

    max_length: int = whole(128, 16, 8192, "longest sequence, in tokens")
    overrides: Overrides = overrides_field()
    vocabulary_size: int = whole(8192, 64, 1_000_000, "entries of the tokenizer's vocabulary")
    data: TextData = TextData()

    @field_validator("overrides")
    @classmethod
    def _bound_overrides(cls, overrides: dict[str, Scalar]) -> dict[str, Scalar]:
        for name, value in overrides.items():
            if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**63 - 1:
                raise ValueError(f"{name} is not within 64 bits")
        return overrides


class LanguageSettings(TextSettings):
    """What recipes for any architecture of `transformers` have."""

    size: str = described("tiny", "preset of the model", "the name of a preset")
    architecture: Annotated[str, Field(pattern=_ARCHITECTURE)] = described(
        "", "kind of model; empty: the usual one of the size", "a model_type of transformers, such as gpt2 or bert"
    )
    config_from: Annotated[Printable, Field(max_length=1024)] = described(
        "",
        "where the shape of the model comes from instead; its parameters do not",
        "a folder with config.json, or OWNER/NAME of the Hugging Face hub",
        private=True,
    )
    config: Annotated[str, Field(max_length=MAX_CONFIG_CHARACTERS)] = described(
        "",
        "shape of the model, written by the peer that starts the run; it replaces size, architecture and overrides",
        f"a JSON object of at most {MAX_CONFIG_CHARACTERS >> 10} Ki characters",
    )
    max_length: int = whole(0, 0, 1 << 17, "tokens of a sample", special="; 0 is what is usual for the size")
    vocabulary_size: int = whole(
        0,
        0,
        1 << 20,
        "entries of the model's vocabulary; a tokenizer that is trained has as many",
        special="; 0 is what is usual for the size, and at least 64 otherwise",
    )
    tokenizer: Annotated[Printable, Field(pattern=_TOKENIZER)] = described(
        "train:bpe",
        "tokenizer, which comes with the run",
        '"train:bpe", "train:wordpiece", "train:unigram", or "from:" and a folder or OWNER/NAME of the hub',
    )
