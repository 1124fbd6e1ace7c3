"""What a run spec may say to the recipe for masked language models, in `[recipe.masked-lm]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from minga.core.spec.fields import Printable, Real, choice, described, real
from minga.recipes.language.settings import LanguageSettings


class MaskedLmSettings(LanguageSettings):
    """A model that guesses masked tokens, of any architecture that transformers has for that."""

    size: Literal["tiny", "small", "base", "large"] = choice(
        "tiny", "preset of the model", "tiny", "small", "base", "large"
    )
    objective: Literal["mlm", "mlm+sop"] = choice(
        "mlm", "mlm: guess masked tokens; mlm+sop: also whether two segments changed places", "mlm", "mlm+sop"
    )
    packing: Literal["stream", "pairs"] = choice(
        "stream", "how samples are cut: one document after the other, or pairs of segments of one", "stream", "pairs"
    )
    masked_fraction: Real = real(0.15, 0.0, 0.9, "share of the tokens that the model has to guess", above_low=True)
    tokenizer: Annotated[Printable, Field(pattern=r"^(train:(bpe|wordpiece|unigram)|from:.{1,1000})$")] = described(
        "train:wordpiece",
        "tokenizer, which comes with the run",
        '"train:bpe", "train:wordpiece", "train:unigram", or "from:" and a folder or OWNER/NAME of the hub',
    )

    @model_validator(mode="after")
    def _check_pairs(self) -> MaskedLmSettings:
        if self.objective == "mlm+sop" and self.packing != "pairs":
            raise ValueError('objective = "mlm+sop" needs packing = "pairs": only pairs have an order')
        return self
