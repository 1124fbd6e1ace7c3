"""What a run spec may say to the recipe for causal language models, in `[recipe.causal-lm]`; sizes, and the loss."""

from __future__ import annotations

from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
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


# ---- Cross-entropy of each next token, in bounded memory.
#
# Scores of the vocabulary are by far the largest tensor of a language model: 8 rows of 1,024 tokens and a vocabulary
# of 50,304 take 1.6 GiB. Where they exceed 2²⁶ elements, the layers below run once, and the last layer and the
# cross-entropy in slices of at most 2²⁴ elements, 64 MiB, which the backward pass computes again.


MOST_SCORES: Final = 1 << 26
SLICE_SCORES: Final = 1 << 24
PLAIN_HEADS: Final = frozenset({"gpt2", "llama", "qwen2", "qwen3", "mistral", "olmo2"})
"""Architectures that do nothing but multiply hidden states by the last layer's weights; others run as a whole."""


def token_losses(
    model: Any, inputs: Tensor, targets: Tensor, *, positions: Tensor | None = None, most_scores: int = MOST_SCORES
) -> Tensor:
    """Cross-entropy in nats, float32 [n, length], of `targets` int64 [n, length] after `inputs` of the same shape.

    `positions`, int64 of that shape, are those of the inputs; where they do not go on, another text begins.
    """
    config = model.config
    given = {"input_ids": inputs, "use_cache": False} | ({} if positions is None else {"position_ids": positions})
    if targets.numel() * config.vocab_size > most_scores and config.model_type in PLAIN_HEADS:
        hidden = model.base_model(**given).last_hidden_state
        head = model.get_output_embeddings()
        losses = _in_slices(hidden.flatten(0, 1), head, targets.flatten(), config.vocab_size)
    else:
        scores = model(**given).logits
        losses = functional.cross_entropy(scores.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return losses.view(targets.shape)


def _in_slices(hidden: Tensor, head: nn.Module, targets: Tensor, vocabulary: int) -> Tensor:
    size = max(1, SLICE_SCORES // vocabulary)
    parts = [
        checkpoint(_slice, hidden[start : start + size], head, targets[start : start + size], use_reentrant=False)
        for start in range(0, len(targets), size)
    ]
    return torch.cat(parts)


def _slice(hidden: Tensor, head: nn.Module, targets: Tensor) -> Tensor:
    return functional.cross_entropy(head(hidden).float(), targets, reduction="none")
