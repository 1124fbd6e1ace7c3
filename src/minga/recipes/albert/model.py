"""What ALBERT has of its own: settings, sizes, and how its parameters begin. The model is
`transformers.AlbertForPreTraining` as it comes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor, nn
from transformers import AlbertForPreTraining, AutoModelForPreTraining

from minga.core.spec.fields import choice
from minga.recipes.interface import Batch
from minga.recipes.language.shape import ModelFamily, Preset
from minga.recipes.masked_lm.model import FAMILY as MASKED
from minga.recipes.masked_lm.model import MaskedLmSettings, at_places, bare_outputs

_INIT_CONTEXT = "minga v1 initial parameters"


class AlbertSettings(MaskedLmSettings):
    """Masked language model and sentence order, by one block of weights for all layers."""

    objective: Literal["mlm+sop"] = choice(
        "mlm+sop", "guess masked tokens, and whether two segments changed places", "mlm+sop"
    )
    packing: Literal["pairs"] = choice("pairs", "how samples are cut: pairs of segments of one document", "pairs")


_TANH: Final = "gelu_pytorch_tanh"
"""The function of "gelu_new", computed in one piece."""

SIZES: Final = {
    # Learns to guess common words within minutes on one CPU core.
    "tiny": Preset("albert", 128, 2, 4, 256, 8_192, 128, activation=_TANH),
    "small": Preset("albert", 384, 6, 6, 1_536, 8_192, 128, activation=_TANH),
    "base": Preset("albert", 768, 12, 12, 3_072, 8_192, 128, positions=512, activation=_TANH),
    # The shape of albert-large-v2: 17.8 million parameters with a vocabulary of 30,000.
    "large": Preset("albert", 1_024, 24, 16, 4_096, 8_192, 128, positions=512, activation=_TANH),
}
FAMILY: Final[ModelFamily] = replace(
    MASKED, recipe="albert", auto=AutoModelForPreTraining, types=("albert",), presets=SIZES
)


def albert_logits(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Scores of the vocabulary at the m masked positions, [m, vocabulary], and of the sentence order, [n, 2]."""
    if not isinstance(model, AlbertForPreTraining):
        raise TypeError(f"not a model of this recipe: {type(model).__name__}")
    output = bare_outputs(model, batch)
    return model.predictions(at_places(output.last_hidden_state, batch)), model.sop_classifier(output.pooler_output)


def initialize(model: Any, seed: int) -> None:
    """Draw the weights anew: normal with the configured deviation for matrices; the rest stays as it was built.

    Each tensor has a generator seeded by the BLAKE3 digest of the seed and its name. NumPy's generator, other than
    torch's, gives the same numbers on every kind of processor, so peers begin with equal parameters.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2 or parameter.is_meta:
                continue
            digest = blake3(f"{seed}/{name}".encode(), derive_key_context=_INIT_CONTEXT).digest(length=16)
            random = np.random.default_rng(int.from_bytes(digest, "big"))
            values = random.standard_normal(tuple(parameter.shape)) * model.config.initializer_range
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))
        words = model.albert.embeddings.word_embeddings
        if words.padding_idx is not None:
            words.weight[words.padding_idx].zero_()
