"""What a run spec may say to the recipe for masked language models, in `[recipe.masked-lm]`; sizes, and the scores of
masked tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from pydantic import field_validator, model_validator
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from minga.core.spec.fields import Real, choice, real
from minga.recipes.interface import Batch
from minga.recipes.language.settings import LanguageSettings, TokenizerSource, tokenizer_field
from minga.recipes.language.shape import ModelFamily, Preset

LEAST_LENGTH: Final = 16


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
    tokenizer: TokenizerSource = tokenizer_field("train:wordpiece")

    @field_validator("max_length")
    @classmethod
    def _check_length(cls, length: int) -> int:
        if 0 < length < LEAST_LENGTH:
            raise ValueError(f"it must be 0, or at least {LEAST_LENGTH}: a sample has tokens around the text")
        return length

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


# ---- Scores of masked tokens: the last layers run on the masked places only, about a seventh of all.
#
# The vocabulary layer is by far the largest product of tokens and weights. Which modules it consists of, transformers
# does not say; it is known here for some architectures, the values are those that `forward` gives at these places, and
# other architectures run as a whole.


Head = Callable[[Any, Tensor], Tensor]
"""Scores of the vocabulary for hidden states [m, width] of a model."""

_INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")


def _lm_head(model: Any, hidden: Tensor) -> Tensor:
    scores: Tensor = model.lm_head(hidden)
    return scores


def _predictions_of_cls(model: Any, hidden: Tensor) -> Tensor:
    scores: Tensor = model.cls.predictions(hidden)
    return scores


def _decoder_after_head(model: Any, hidden: Tensor) -> Tensor:
    scores: Tensor = model.decoder(model.head(hidden))
    return scores


HEADS: Final[Mapping[str, Head]] = {
    "bert": _predictions_of_cls,
    "roberta": _lm_head,
    "xlm-roberta": _lm_head,
    "camembert": _lm_head,
    "modernbert": _decoder_after_head,
}


def bare_outputs(model: Any, batch: Batch) -> Any:
    """What the layers below the heads give."""
    return model.base_model(**{name: batch[name] for name in _INPUTS if name in batch})


def at_places(states: Tensor, batch: Batch) -> Tensor:
    """The rows [m, …] of [n, length, …] at the masked places."""
    return states.flatten(0, 1).index_select(0, batch["masked_positions"])


def masked_scores(model: Any, batch: Batch) -> Tensor:
    """Scores of the vocabulary at the m masked places, [m, vocabulary]."""
    head = HEADS.get(model.config.model_type)
    if head is None:
        return at_places(model(**{name: batch[name] for name in _INPUTS if name in batch}).logits, batch)
    return head(model, at_places(bare_outputs(model, batch).last_hidden_state, batch))


def masked_and_order_scores(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The same of a model that was made for pretraining, and its scores of the order of segments, [n, 2]."""
    outputs = bare_outputs(model, batch)
    hidden = at_places(outputs.last_hidden_state, batch)
    return model.cls.predictions(hidden), model.cls.seq_relationship(outputs.pooler_output)
