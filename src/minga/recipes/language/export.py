"""Writing a model for the rest of the world: a directory that `transformers` loads by its Auto classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tokenizers import Tokenizer
from torch import nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from minga.recipes.exported import Exported, Provenance
from minga.recipes.text.tokenizer import beginning_of, find_special_tokens, frame_texts

CAUSAL: Final = "AutoModelForCausalLM"
_ROLES: Final = {
    "pad": "pad_token",
    "unknown": "unk_token",
    "cls": "cls_token",
    "sep": "sep_token",
    "mask": "mask_token",
}
_ENDS: Final = ("bos_token", "eos_token", "pad_token")
_FACTS: Final = {
    "hidden size": "hidden_size",
    "layers": "num_hidden_layers",
    "attention heads": "num_attention_heads",
    "vocabulary": "vocab_size",
}
"""Of a configuration, by words for people."""

_LOADING: Final = """from transformers import {auto}, PreTrainedTokenizerFast

model = {auto}.from_pretrained("PATH OF THIS DIRECTORY")
tokenizer = PreTrainedTokenizerFast.from_pretrained("PATH OF THIS DIRECTORY")"""


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
    length: int | None = None,
    apart: bool = False,
    special: Mapping[str, str] | None = None,
    chat_template: str | None = None,
) -> None:
    """Write configuration, weights (safetensors), tokenizer and a README to a new or empty `directory`.

    `figures` are those on held-out text, and `text` says which it was trained on. `auto` is the Auto class that loads
    the model; one that generates gets a generation configuration, too. `length` is that of the longest text it was
    trained on, in tokens; None for as many as it has positions. `apart`: whether no row of the training held two texts,
    so that each began behind an end. `special` names its special tokens, such as `eos_token`, where these are not the
    usual ones, and `chat_template` how it is talked to. All or nothing; see `Exported.to` for what is raised.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"not a model of this recipe: {type(model).__name__}")
    config, parameters = model.config, sum(parameter.numel() for parameter in model.parameters())
    with Exported.to(directory, provenance) as exported:
        with without_progress_bars():
            model.save_pretrained(exported.folder)
        longest = length or getattr(config, "max_position_embeddings", None)
        wrapped = wrap_tokenizer(
            tokenizer, model, longest, generates=auto == CAUSAL, apart=apart, special=special or {}
        )
        if auto == CAUSAL:
            ends = {f"{name}_id": getattr(wrapped, f"{name}_id") for name in _ENDS}
            GenerationConfig(**ends, do_sample=True).save_pretrained(exported.folder)
        wrapped.chat_template = chat_template
        wrapped.save_pretrained(exported.folder)
        exported.card(
            title,
            f"A model of the architecture {config.model_type} with {parameters:,} parameters, trained with minga by "
            f"peers that pooled their machines (recipe {provenance.recipe}).",
            {words: getattr(config, name) for words, name in _FACTS.items() if hasattr(config, name)}
            | ({} if longest is None else {"longest sequence, in tokens": longest})
            | figures,
            _LOADING.format(auto=auto),
            tags=[config.model_type],
            library="transformers",
            notes=f"The text: {text}. No licence is stated here: that of the model is for the organiser of the run to "
            "say.",
        )


def wrap_tokenizer(
    tokenizer: Tokenizer,
    model: PreTrainedModel,
    longest: int | None,
    *,
    generates: bool,
    apart: bool = False,
    special: Mapping[str, str] = MappingProxyType({}),
) -> PreTrainedTokenizerFast:
    """The tokenizer as `transformers` uses it, which cuts texts at `longest` tokens, with its special tokens named;
    those of `special` as it says. It begins and ends texts as training did, and leaves an end to what is generated.
    """
    config = model.config
    names = find_special_tokens(tokenizer).names
    if generates:
        before, after = [*beginning_of(tokenizer)], list[str]()
        if apart and not before:
            before = [names["end"]]
        roles = dict.fromkeys(_ENDS, special.get("eos_token") or names["end"])
        if before:
            roles["bos_token"] = before[0]
    else:
        before, after = [names["cls"]], [names["sep"]]
        roles = {word: names[role] for role, word in _ROLES.items() if role in names}
    types = ["token_type_ids"] if not generates and getattr(config, "type_vocab_size", 0) > 1 else []
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", *types, "attention_mask"],
        **({"model_max_length": longest} if isinstance(longest, int) else {}),
        **{**roles, **special},
    )
    frame_texts(wrapped.backend_tokenizer, before, after)
    return wrapped


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Keep the library from drawing over the displays of minga."""
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
