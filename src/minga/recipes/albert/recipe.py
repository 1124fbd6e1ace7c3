"""The ALBERT recipe: masked language model plus sentence order, on text, with one block of weights for all layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AlbertForPreTraining

from minga.core.errors import ConfigurationError
from minga.recipes.albert.model import SIZES, AlbertSettings, albert_config, albert_facts, albert_logits, initialize
from minga.recipes.interface import Batch, DemoGoal, RecipeFacts
from minga.recipes.masked_lm.recipe import MaskedLmRecipe
from minga.recipes.text.tokenizer import MASKED_TOKENS, SpecialTokens, trained_special_tokens

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

    @property
    def resolved(self) -> AlbertSettings:
        """The settings as they are: they say everything."""
        return self.settings

    @property
    def said_tokenizer(self) -> str:
        """One that is trained."""
        return f"train:{self.settings.tokenizer}"

    @property
    def packing(self) -> None:
        """Pairs of segments."""

    @property
    def has_order(self) -> bool:
        """The order of segments is an objective."""
        return True

    @property
    def masked_fraction(self) -> float:
        """Share of the tokens to guess."""
        return self.settings.masked_fraction

    def prepare(self) -> dict[str, bytes]:
        """`tokenizer.json`, the held-out documents, and the training documents unless peers stream them."""
        albert_config(self.settings)  # complain of the model before the text is read
        return super().prepare()

    def check_tokens(self, special: SpecialTokens) -> None:
        """The model's configuration takes the special tokens to have the first ids."""
        for role, number in trained_special_tokens(MASKED_TOKENS).ids.items():
            if special[role] != number:
                raise ConfigurationError(f"tokenizer.json: {MASKED_TOKENS[number]} must have the id {number}")

    def build_model(self) -> AlbertForPreTraining:
        """The model of `size` with parameters from the run's seed; see `initialize`."""
        with torch.random.fork_rng(devices=[]):
            model = AlbertForPreTraining(albert_config(self.settings, is_public=self.context.is_public))
        initialize(model, self.context.seed)
        return model.train()

    def scores(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Of masked tokens and of the order of segments; see `albert_logits`."""
        return albert_logits(model, batch)

    def facts(self) -> RecipeFacts:
        """Counted by the shape of the model."""
        return albert_facts(self.settings)
