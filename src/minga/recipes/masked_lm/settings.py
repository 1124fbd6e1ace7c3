"""What a run spec may say to the recipe for masked language models, in `[recipe.masked-lm]`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from minga.core.spec.fields import Printable, Real, choice, described, real
from minga.recipes.language.settings import LanguageSettings
from minga.recipes.language.shape import ModelFamily, Preset


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


# ---- The sizes in which masked language models come, and what transformers has for them.


SIZES: Final = {
    "tiny": Preset("bert", 128, 2, 2, 512, 8_192, 128, positions=512),
    "small": Preset("bert", 384, 6, 6, 1_536, 8_192, 128, positions=512),
    # Devlin et al. 2018, arXiv:1810.04805: its two sizes.
    "base": Preset("bert", 768, 12, 12, 3_072, 30_522, 512, positions=512),
    "large": Preset("bert", 1_024, 24, 16, 4_096, 30_522, 512, positions=512),
}


FAMILY: Final = ModelFamily(
    recipe="masked-lm",
    auto=AutoModelForMaskedLM,
    types=MODEL_FOR_MASKED_LM_MAPPING_NAMES.keys(),
    presets=SIZES,
    special={
        "pad_token_id": "pad",
        "bos_token_id": "cls",
        "eos_token_id": "sep",
        "cls_token_id": "cls",
        "sep_token_id": "sep",
    },
    always={"is_decoder": False},
)
FAMILY_WITH_ORDER: Final = replace(FAMILY, auto=AutoModelForPreTraining, types=("bert",))
"""Of those that transformers makes for pretraining, the ones with a head for the order of segments."""
