"""What ALBERT has of its own: settings, sizes, how its parameters begin, and what planning asks. The model is
`transformers.AlbertForPreTraining` as it comes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertForPreTraining

from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Real, choice, real
from minga.recipes.interface import Batch, RecipeFacts
from minga.recipes.language.settings import TextSettings
from minga.recipes.masked_lm.model import at_places, bare_outputs
from minga.recipes.text.tokenizer import MASKED_TOKENS

_INIT_CONTEXT = "minga v1 initial parameters"


def albert_logits(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Scores of the vocabulary at the m masked positions, [m, vocabulary], and of the sentence order, [n, 2]."""
    if not isinstance(model, AlbertForPreTraining):
        raise TypeError(f"not a model of this recipe: {type(model).__name__}")
    output = bare_outputs(model, batch)
    return model.predictions(at_places(output.last_hidden_state, batch)), model.sop_classifier(output.pooler_output)


def initialize(model: AlbertForPreTraining, seed: int) -> None:
    """Draw the weights anew: normal with the configured deviation for matrices; the rest stays as it was built.

    Each tensor has a generator seeded by the BLAKE3 digest of the seed and its name. NumPy's generator, other than
    torch's, gives the same numbers on every kind of processor, so peers begin with equal parameters.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                continue
            digest = blake3(f"{seed}/{name}".encode(), derive_key_context=_INIT_CONTEXT).digest(length=16)
            random = np.random.default_rng(int.from_bytes(digest, "big"))
            values = random.standard_normal(tuple(parameter.shape)) * model.config.initializer_range
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))
        model.albert.embeddings.word_embeddings.weight[model.config.pad_token_id].zero_()


# ---- What a run spec may say to the ALBERT recipe, in `[recipe.albert]`.


class AlbertSettings(TextSettings):
    """Masked language model and sentence order, by one block of weights for all layers."""

    size: Literal["tiny", "small", "base", "large"] = choice(
        "tiny", "preset of the model", "tiny", "small", "base", "large"
    )
    masked_fraction: Real = real(0.15, 0.0, 0.9, "share of the tokens that the model has to guess", above_low=True)
    tokenizer: Literal["wordpiece", "unigram"] = choice("wordpiece", "kind of tokenizer", "wordpiece", "unigram")


# ---- The sizes in which the ALBERT recipe builds its model.


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


def albert_config(settings: AlbertSettings, *, is_public: bool = False) -> AlbertConfig:
    """The model's configuration: the preset of `size` with `overrides` on top; without dropout in a run whose members
    compute each other's gradients again, since devices draw otherwise.

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
    if is_public:
        values |= dict.fromkeys(_SHARES, 0.0)
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


# ---- What plans have to know of ALBERT: operations and memory of a sample, by the shape of the model.
#
# Operations of a sample of n tokens, forward and backward, with L passes through a block of width h:
#
#     6 n (P_used + masked head) + 12 L h n²
#
# P_used are the parameters that each token meets: one block counts L times. The second term is attention. Activations
# kept for the backward pass are 34 h bytes for each token and layer in half precision (Korthikanti et al. 2022,
# arXiv:2205.05198, without dropout masks and with attention that keeps no scores), twice that in float32.


def albert_facts(settings: AlbertSettings) -> RecipeFacts:
    """The facts of the model that these settings describe, counted without making it."""
    config = albert_config(settings)
    with torch.device("meta"):
        model = AlbertForPreTraining(config)
    sizes = tuple(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    tokens = settings.max_length
    # 4 h² of attention, and two matrices of the intermediate width: 12 h² where that is 4 h.
    layer = 4.0 * config.hidden_size**2 + 2.0 * config.hidden_size * config.intermediate_size
    masked = config.embedding_size * (config.vocab_size + config.hidden_size)
    head = config.embedding_size * config.hidden_size + settings.masked_fraction * masked
    attention = 12.0 * config.num_hidden_layers * config.hidden_size * tokens**2
    operations = 6.0 * tokens * (config.num_hidden_layers * layer + head) + attention
    kept = 2.0 * (18.0 * config.hidden_size + 4.0 * config.intermediate_size) * config.num_hidden_layers * tokens
    origin = f"the ALBERT recipe, vocabulary of {config.vocab_size}, {tokens} tokens"
    return RecipeFacts(f"albert-{settings.size}", sizes, operations, tokens, kept, origin)
