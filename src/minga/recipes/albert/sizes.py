"""The sizes in which the ALBERT recipe builds its model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from transformers import AlbertConfig

from minga.core.errors import ConfigurationError
from minga.recipes.albert.settings import AlbertSettings
from minga.recipes.text.tokenizer import MASKED_TOKENS

Size = Literal["tiny", "small", "base", "large"]


@dataclass(frozen=True)
class AlbertSize:
    """What distinguishes the sizes; the names are those of `transformers.AlbertConfig`."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    embedding_size: int = 128
    classifier_dropout_prob: float = 0.1


SIZES: dict[Size, AlbertSize] = {
    # Learns to guess common words within minutes on one CPU core.
    "tiny": AlbertSize(128, 2, 4, 256, classifier_dropout_prob=0.0),
    "small": AlbertSize(384, 6, 6, 1536),
    "base": AlbertSize(768, 12, 12, 3072),
    # The shape of albert-large-v2: 17.8 million parameters with a vocabulary of 30,000.
    "large": AlbertSize(1024, 24, 16, 4096),
}
_FULL_POSITIONS = 512
# What a run may override, and how far: the spec comes from another person, and must not make a peer run out of memory.
_WHOLE = {
    "hidden_size": 16_384,
    "embedding_size": 16_384,
    "intermediate_size": 65_536,
    "num_attention_heads": 1024,
    "num_hidden_layers": 1024,
    "num_hidden_groups": 64,
    "inner_group_num": 64,
}
_SHARES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob")
_SMALL = ("initializer_range", "layer_norm_eps")
_ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")


def albert_config(settings: AlbertSettings) -> AlbertConfig:
    """The model's configuration: the preset of `size` with `overrides` on top.

    Positions are those of `max_length`, and at least the usual 512 for the sizes base and large. Raises
    `ConfigurationError` for an override that does not exist or is out of range.
    """
    values: dict[str, Any] = {
        **asdict(SIZES[settings.size]),
        "hidden_act": "gelu_pytorch_tanh",  # the function of "gelu_new", computed in one piece
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    for name, value in settings.overrides.items():
        allowed = _allowed(name)
        if allowed is None:
            known = ", ".join([*_WHOLE, *_SHARES, *_SMALL, "hidden_act"])
            raise ConfigurationError(f"recipe.albert.overrides.{name}: there is no such setting; there are: {known}")
        if not _is_allowed(name, value):
            raise ConfigurationError(f"recipe.albert.overrides.{name} = {value!r}: must be {allowed}")
        values[name] = value
    if values["hidden_size"] % values["num_attention_heads"]:
        raise ConfigurationError(
            f"recipe.albert.overrides: hidden_size = {values['hidden_size']} is no multiple of "
            f"num_attention_heads = {values['num_attention_heads']}"
        )
    return AlbertConfig(
        vocab_size=settings.vocabulary_size,
        max_position_embeddings=max(settings.max_length, _FULL_POSITIONS if settings.size in ("base", "large") else 0),
        pad_token_id=MASKED_TOKENS.index("<pad>"),
        bos_token_id=MASKED_TOKENS.index("[CLS]"),
        eos_token_id=MASKED_TOKENS.index("[SEP]"),
        **values,
    )


def _allowed(name: str) -> str | None:
    """What an override may be, in words; None if there is no such override."""
    if name in _WHOLE:
        return f"a whole number from 1 to {_WHOLE[name]}"
    if name in _SHARES:
        return "a number from 0 to below 1"
    if name in _SMALL:
        return "a number above 0, at most 1"
    return f"one of {', '.join(_ACTIVATIONS)}" if name == "hidden_act" else None


def _is_allowed(name: str, value: object) -> bool:
    if name == "hidden_act":
        return value in _ACTIVATIONS
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if name in _WHOLE:
        return isinstance(value, int) and 1 <= value <= _WHOLE[name]
    return 0 <= value < 1 if name in _SHARES else 0 < value <= 1
