"""What a run spec may say to the ALBERT recipe, in `[recipe.albert]`."""

from __future__ import annotations

from typing import Any, Literal

from minga.core.spec.fields import Real, choice, real
from minga.recipes.language.settings import TextSettings

_IN_DATA = ("masked_fraction", "tokenizer", "vocabulary_size")
"""Settings that stood among those of the data in run specs of version 2."""


class AlbertSettings(TextSettings):
    """Masked language model and sentence order, by one block of weights for all layers."""

    size: Literal["tiny", "small", "base", "large"] = choice(
        "tiny", "preset of the model", "tiny", "small", "base", "large"
    )
    masked_fraction: Real = real(0.15, 0.0, 0.9, "share of the tokens that the model has to guess", above_low=True)
    tokenizer: Literal["wordpiece", "unigram"] = choice("wordpiece", "kind of tokenizer", "wordpiece", "unigram")


def from_version_2(table: dict[str, Any]) -> dict[str, Any]:
    """`[recipe.albert]` out of `[model]` and `[data]` of a run spec of version 2; see `Recipe.from_version_2`."""
    data = dict(table["data"])
    moved = {name: data.pop(name) for name in _IN_DATA}
    for name in ("name", "config"):  # today an empty text says that there is none
        data[name] = "" if data[name] is None else data[name]
    return {**table, **moved, "data": data}
