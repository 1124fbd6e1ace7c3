"""What run specs say to recipes of language models: the shape of the model, its tokenizer and its text."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StrictBool, StrictInt

from minga.core.spec.fields import Printable, Real, Section, described, whole
from minga.recipes.text.settings import TextData

MAX_CONFIG_CHARACTERS = 32 << 10
_KEY = r"^[a-z][a-z0-9_]{0,63}$"
_ARCHITECTURE = r"^$|^[a-z0-9][a-z0-9_.-]{0,63}$"
_TOKENIZER = r"^(train:(bpe|wordpiece|unigram)|from:.{1,1000})$"

TokenizerSource = Annotated[Printable, Field(pattern=_TOKENIZER)]
Scalar = StrictBool | StrictInt | Annotated[Real, Field(strict=True)] | Annotated[Printable, Field(max_length=200)]
Overrides = dict[Annotated[str, Field(pattern=_KEY)], Annotated[Scalar, Field(union_mode="left_to_right")]]


def tokenizer_field(usual: str) -> Any:
    """From where a run's tokenizer comes."""
    return described(
        usual,
        "tokenizer, which comes with the run",
        '"train:bpe", "train:wordpiece", "train:unigram", or "from:" and a folder or OWNER/NAME of the hub',
    )


class LanguageSettings(Section):
    """What every recipe of language models has."""

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
    tokenizer: TokenizerSource = tokenizer_field("train:bpe")
    overrides: Overrides = described(
        {},
        "settings of the model's configuration that replace those of the preset",
        "at most 32 names (a-z, 0-9, _) with numbers, texts or true/false",
        max_length=32,
    )
    data: TextData = TextData()
