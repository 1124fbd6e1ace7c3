"""What a run spec may say to the recipe for causal language models, in `[recipe.causal-lm]`."""

from __future__ import annotations

from typing import Literal

from minga.core.spec.fields import choice
from minga.recipes.language.settings import LanguageSettings


class CausalLmSettings(LanguageSettings):
    """A model that guesses each next token, of any architecture that transformers has for that."""

    size: Literal["tiny", "small", "base", "large", "paper"] = choice(
        "tiny",
        "preset of the model; paper is GPT-2 as it was published, with 124 million parameters",
        "tiny",
        "small",
        "base",
        "large",
        "paper",
    )
    packing: Literal["stream", "best-fit", "document"] = choice(
        "stream",
        "how samples are cut: one document after the other; each begins with a document, the last is cropped; or none "
        "holds two documents",
        "stream",
        "best-fit",
        "document",
    )
