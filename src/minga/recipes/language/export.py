"""Writing a model for the rest of the world: a directory that `transformers` loads by its Auto classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer
from torch import nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from minga.recipes.exported import Exported, Provenance
from minga.recipes.text.tokenizer import find_special_tokens

CAUSAL: Final = "AutoModelForCausalLM"
_ROLES: Final = {
    "pad": "pad_token",
    "unknown": "unk_token",
    "cls": "cls_token",
    "sep": "sep_token",
    "mask": "mask_token",
}
_FACTS: Final = {
    "hidden size": "hidden_size",
    "layers": "num_hidden_layers",
    "attention heads": "num_attention_heads",
    "vocabulary": "vocab_size",
    "longest sequence, in tokens": "max_position_embeddings",
}
"""Of a configuration, by words for people."""

_LOADING: Final = """from transformers import {auto}, AutoTokenizer

model = {auto}.from_pretrained("PATH OF THIS DIRECTORY")
tokenizer = AutoTokenizer.from_pretrained("PATH OF THIS DIRECTORY")"""


def export_model(
    model: nn.Module,
    tokenizer: Tokenizer,
    directory: Path,
    provenance: Provenance,
    *,
    title: str,
    figures: dict[str, float],
    text: str,
    auto: str,
) -> None:
    """Write configuration, weights (safetensors), tokenizer and a README to a new or empty `directory`.

    `figures` are those on held-out text, and `text` says which it was trained on. `auto` is the Auto class that loads
    the model; one that generates gets a generation configuration, too. All or nothing; see `Exported.to` for what is
    raised.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"not a model of this recipe: {type(model).__name__}")
    config, parameters = model.config, sum(parameter.numel() for parameter in model.parameters())
    with Exported.to(directory, provenance) as exported:
        with _without_progress_bars():
            model.save_pretrained(exported.folder)
        if auto == CAUSAL:
            _generation(tokenizer).save_pretrained(exported.folder)
        wrap_tokenizer(tokenizer, model, generates=auto == CAUSAL).save_pretrained(exported.folder)
        exported.card(
            title,
            f"A model of the architecture {config.model_type} with {parameters:,} parameters, trained with minga by "
            f"peers that pooled their machines (recipe {provenance.recipe}).",
            {words: getattr(config, name) for words, name in _FACTS.items() if hasattr(config, name)} | figures,
            _LOADING.format(auto=auto),
            tags=[config.model_type],
            library="transformers",
            notes=f"The text: {text}. No licence is stated here: that of the model is for the organiser of the run to "
            "say.",
        )


def wrap_tokenizer(tokenizer: Tokenizer, model: PreTrainedModel, *, generates: bool) -> PreTrainedTokenizerFast:
    """The tokenizer as `transformers` uses it, with its special tokens named."""
    config = model.config
    names = find_special_tokens(tokenizer).names
    if generates:
        roles = {"bos_token": names["end"], "eos_token": names["end"], "pad_token": names["end"]}
    else:
        roles = {word: names[role] for role, word in _ROLES.items() if role in names}
    types = ["token_type_ids"] if not generates and getattr(config, "type_vocab_size", 0) > 1 else []
    longest = getattr(config, "max_position_embeddings", None)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", *types, "attention_mask"],
        **({"model_max_length": longest} if isinstance(longest, int) else {}),
        **roles,
    )


def _generation(tokenizer: Tokenizer) -> GenerationConfig:
    end = find_special_tokens(tokenizer)["end"]
    return GenerationConfig(bos_token_id=end, eos_token_id=end, pad_token_id=end, do_sample=True)


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Keep the library from drawing over the displays of minga."""
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
