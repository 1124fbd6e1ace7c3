"""What a run spec may say to the recipe for causal language models, in `[recipe.causal-lm]`."""

from __future__ import annotations

from typing import Final, Literal

from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from minga.core.spec.fields import choice
from minga.recipes.language.settings import LanguageSettings
from minga.recipes.language.shape import ModelFamily, Preset


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


# ---- The sizes in which causal language models come, and what transformers has for them.


SIZES: Final = {
    # Learns to write whole words within a minute on one CPU core.
    "tiny": Preset("llama", 128, 4, 4, 352, 4_096, 128),
    "small": Preset("llama", 384, 6, 6, 1_024, 8_192, 256),
    "base": Preset("llama", 768, 12, 12, 2_048, 50_304, 1_024),
    "large": Preset("llama", 1_024, 24, 16, 2_752, 50_304, 1_024),
    # Radford et al. 2019, "Language Models are Unsupervised Multitask Learners": the smallest of its four.
    "paper": Preset("gpt2", 768, 12, 12, 3_072, 50_257, 1_024),
}


FAMILY: Final = ModelFamily(
    recipe="causal-lm",
    auto=AutoModelForCausalLM,
    types=MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys(),
    presets=SIZES,
    # No token pads: an embedding that did would never be trained, and the end of a text is one to be learned.
    special={"bos_token_id": "end", "eos_token_id": "end", "pad_token_id": "none"},
    always={"is_decoder": True},
)
