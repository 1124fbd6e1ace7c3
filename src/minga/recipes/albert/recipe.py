"""The ALBERT recipe: masked language model plus sentence order, on text, with one block of weights for all layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from minga.recipes.albert.model import FAMILY, SIZES, AlbertSettings, albert_logits, initialize
from minga.recipes.initial import Undrawn
from minga.recipes.interface import Batch, DemoGoal
from minga.recipes.language.shape import ModelFamily
from minga.recipes.masked_lm.recipe import MaskedLmRecipe

USUAL_VOCABULARY, USUAL_TOKENS = 30_000, 512


class AlbertRecipe(MaskedLmRecipe[AlbertSettings]):
    """ALBERT on the text that the settings name; see `Recipe` for what each method promises."""

    Settings = AlbertSettings
    demo_goal = DemoGoal(1.2, steps=60)
    sizes = tuple(SIZES)

    @classmethod
    def demo_spec(cls) -> Mapping[str, Any]:
        """The tiny model on plain sentences, which a few minutes on two cores suffice to learn."""
        return {**super().demo_spec(), "recipe": {"albert": cls.demo_settings()}}

    @classmethod
    def size_settings(cls, size: str, tokens: int | None) -> dict[str, Any]:
        """The published sizes, with a vocabulary of 30,000 and 512 tokens a sample unless told otherwise."""
        return {"size": size, "max_length": tokens or USUAL_TOKENS, "vocabulary_size": USUAL_VOCABULARY}

    def model_family(self) -> ModelFamily:
        """ALBERT alone, by the name of the recipe that trains it."""
        return replace(FAMILY, recipe=self.context.recipe)

    def build_model(self) -> nn.Module:
        """The model of the published shape, with parameters from the run's seed; see `initialize`."""
        with Undrawn():  # type: ignore[no-untyped-call]
            model = super().build_model()
        initialize(model, self.context.seed)
        return model

    def scores(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Of masked tokens and of the order of segments; see `albert_logits`."""
        return albert_logits(model, batch)
