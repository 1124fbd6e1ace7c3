"""The sizes in which the ALBERT recipe builds its model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from huggingface_hub.errors import StrictDataclassError
from transformers import AlbertConfig

from minga.core._errors import ConfigurationError
from minga.core._run_spec import RunSpec
from minga.recipes._tokenizer import CLS, PAD, SEP

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
    "tiny": AlbertSize(128, 2, 2, 512, classifier_dropout_prob=0.0),
    "small": AlbertSize(384, 6, 6, 1536),
    "base": AlbertSize(768, 12, 12, 3072),
    # The shape of albert-large-v2: 17.8 million parameters with a vocabulary of 30,000.
    "large": AlbertSize(1024, 24, 16, 4096),
}
_FIXED = ("vocab_size", "max_position_embeddings", "pad_token_id", "bos_token_id", "eos_token_id", "model_type")
_FULL_POSITIONS = 512


def albert_config(spec: RunSpec) -> AlbertConfig:
    """The model's configuration: the preset of `model.size` with `model.overrides` on top.

    Positions are those of `model.max_length`, and at least the usual 512 for the sizes base and large. Raises
    `ConfigurationError` for an override that the configuration does not know, or does not accept.
    """
    model = spec.model
    values = {
        **asdict(SIZES[model.size]),
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    known = set(AlbertConfig().to_dict()) - set(_FIXED)
    for name, value in model.overrides.items():
        if name not in values and name not in known:
            raise ConfigurationError(f"model.overrides.{name}: AlbertConfig has no such setting that a run may change")
        values[name] = value
    positions = max(model.max_length, _FULL_POSITIONS if model.size in ("base", "large") else 0)
    try:
        config = AlbertConfig(
            vocab_size=spec.data.vocabulary_size,
            max_position_embeddings=positions,
            pad_token_id=PAD,
            bos_token_id=CLS,
            eos_token_id=SEP,
            **values,
        )
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise ConfigurationError(f"model.overrides: {str(error)[:300]}") from error
    if config.hidden_size % config.num_attention_heads:
        raise ConfigurationError(
            f"model.overrides: hidden_size = {config.hidden_size} is no multiple of "
            f"num_attention_heads = {config.num_attention_heads}"
        )
    return config
