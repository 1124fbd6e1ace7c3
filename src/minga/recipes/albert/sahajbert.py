"""sahajBERT: ALBERT on Bengali text of several sources (DeDLOC, https://arxiv.org/abs/2106.10207, section 4.3).

The paper trained the size "large" with 512 tokens, a vocabulary of 32,000 and 0.23 of Bengali Wikipedia to 0.77 of
OSCAR. The default are sentences made by rules, which need no download.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minga.core.spec.fields import described
from minga.recipes.albert.model import AlbertSettings
from minga.recipes.albert.recipe import AlbertRecipe
from minga.recipes.interface import DemoGoal
from minga.recipes.language.settings import TokenizerSource, tokenizer_field
from minga.recipes.text.settings import TextData

BENGALI_SENTENCES = TextData(source="sentences", language="bn")
PAPER_VOCABULARY, PAPER_TOKENS = 32_000, 512


class SahajbertSettings(AlbertSettings):
    """Masked language model and sentence order on Bengali."""

    tokenizer: TokenizerSource = tokenizer_field("train:unigram")
    data: TextData = described(BENGALI_SENTENCES, "what it is trained on", "a table [recipe.sahajbert.data]")


class SahajbertRecipe(AlbertRecipe):
    """ALBERT on a mixture of Bengali texts; see `Recipe` for what each method promises."""

    Settings = SahajbertSettings
    demo_goal = DemoGoal(1.4, steps=60)

    @classmethod
    def size_settings(cls, size: str, tokens: int | None) -> dict[str, Any]:
        """The sizes of ALBERT with the paper's vocabulary, and 512 tokens a sample unless told otherwise."""
        return {"size": size, "max_length": tokens or PAPER_TOKENS, "vocabulary_size": PAPER_VOCABULARY}

    @classmethod
    def demo_spec(cls) -> Mapping[str, Any]:
        """The tiny model on plain sentences in Bengali, whose words WordPiece leaves whole: each can be a gap."""
        settings = {**cls.demo_settings(), "tokenizer": "train:wordpiece"}
        data = {**settings["data"], "language": "bn"}
        return {**super().demo_spec(), "recipe": {"sahajbert": {**settings, "data": data}}}
