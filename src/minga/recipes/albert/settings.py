"""What a run spec may say to the ALBERT recipe, in `[recipe.albert]`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt, field_validator

from minga.core.spec.fields import Printable, Real, Section, choice, described, real, whole
from minga.recipes.text.settings import TextData

_KEY = r"^[a-z][a-z0-9_]{0,63}$"
_IN_DATA = ("masked_fraction", "tokenizer", "vocabulary_size")
"""Settings that stood among those of the data in run specs of version 2."""

Scalar = StrictBool | StrictInt | Annotated[Real, Field(strict=True)] | Annotated[Printable, Field(max_length=200)]


class AlbertSettings(Section):
    """Masked language model and sentence order, by one block of weights for all layers."""

    size: Literal["tiny", "small", "base", "large"] = choice(
        "tiny", "preset of the model", "tiny", "small", "base", "large"
    )
    max_length: int = whole(128, 16, 8192, "longest sequence, in tokens")
    overrides: dict[Annotated[str, Field(pattern=_KEY)], Annotated[Scalar, Field(union_mode="left_to_right")]] = (
        described(
            {},
            "settings of the model's configuration that replace those of the preset",
            "at most 32 names (a-z, 0-9, _) with numbers, texts or true/false",
            max_length=32,
        )
    )
    masked_fraction: Real = real(0.15, 0.0, 0.9, "share of the tokens that the model has to guess", above_low=True)
    tokenizer: Literal["wordpiece", "unigram"] = choice("wordpiece", "kind of tokenizer", "wordpiece", "unigram")
    vocabulary_size: int = whole(8192, 64, 1_000_000, "entries of the tokenizer's vocabulary")
    data: TextData = TextData()

    @field_validator("overrides")
    @classmethod
    def _bound_overrides(cls, overrides: dict[str, Scalar]) -> dict[str, Scalar]:
        for name, value in overrides.items():
            if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**63 - 1:
                raise ValueError(f"{name} is not within 64 bits")
        return overrides


def from_version_2(table: dict[str, Any]) -> dict[str, Any]:
    """`[recipe.albert]` out of `[model]` and `[data]` of a run spec of version 2; see `Recipe.from_version_2`."""
    data = dict(table["data"])
    moved = {name: data.pop(name) for name in _IN_DATA}
    for name in ("name", "config"):  # today an empty text says that there is none
        data[name] = "" if data[name] is None else data[name]
    return {**table, **moved, "data": data}
