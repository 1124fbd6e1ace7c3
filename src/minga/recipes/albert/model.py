"""What the recipe does with `transformers.AlbertForPreTraining`, which it uses as it comes."""

from __future__ import annotations

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor, nn
from transformers import AlbertForPreTraining

from minga.recipes.interface import Batch
from minga.recipes.masked_lm.heads import at_places, bare_outputs

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
