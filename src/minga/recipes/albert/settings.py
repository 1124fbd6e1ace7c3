"""What a run spec may say to the ALBERT recipe, in `[recipe.albert]`."""

from __future__ import annotations

from typing import Literal

from minga.core.spec.fields import Real, choice, real
from minga.recipes.language.settings import TextSettings


class AlbertSettings(TextSettings):
    """Masked language model and sentence order, by one block of weights for all layers."""

    size: Literal["tiny", "small", "base", "large"] = choice(
        "tiny", "preset of the model", "tiny", "small", "base", "large"
    )
    masked_fraction: Real = real(0.15, 0.0, 0.9, "share of the tokens that the model has to guess", above_low=True)
    tokenizer: Literal["wordpiece", "unigram"] = choice("wordpiece", "kind of tokenizer", "wordpiece", "unigram")
