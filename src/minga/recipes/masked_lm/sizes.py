"""The sizes in which masked language models come, and what transformers has for them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from transformers import AutoModelForMaskedLM, AutoModelForPreTraining
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from minga.recipes.language.shape import ModelFamily, Preset

SIZES: Final = {
    "tiny": Preset("bert", 128, 2, 2, 512, 8_192, 128, positions=512),
    "small": Preset("bert", 384, 6, 6, 1_536, 8_192, 128, positions=512),
    # Devlin et al. 2018, arXiv:1810.04805: its two sizes.
    "base": Preset("bert", 768, 12, 12, 3_072, 30_522, 512, positions=512),
    "large": Preset("bert", 1_024, 24, 16, 4_096, 30_522, 512, positions=512),
}


def _types() -> Collection[str]:
    names: Collection[str] = MODEL_FOR_MASKED_LM_MAPPING_NAMES.keys()
    return names


def _types_with_order() -> Collection[str]:
    """Of those that transformers makes for pretraining, the ones with a head for the order of segments."""
    return ("bert",)


FAMILY: Final = ModelFamily(
    recipe="masked-lm",
    auto=AutoModelForMaskedLM,
    types=_types,
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
FAMILY_WITH_ORDER: Final = replace(FAMILY, auto=AutoModelForPreTraining, types=_types_with_order)
