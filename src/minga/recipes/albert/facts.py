"""What plans have to know of ALBERT: operations and memory of a sample, by the shape of the model.

Operations of a sample of n tokens, forward and backward, with L passes through a block of width h:

    6 n (P_used + masked head) + 12 L h n²

P_used are the parameters that each token meets: one block counts L times. The second term is attention. Activations
kept for the backward pass are 34 h bytes for each token and layer in half precision (Korthikanti et al. 2022,
arXiv:2205.05198, without dropout masks and with attention that keeps no scores), twice that in float32.
"""

from __future__ import annotations

import torch
from transformers import AlbertForPreTraining

from minga.recipes.albert.settings import AlbertSettings
from minga.recipes.albert.sizes import albert_config
from minga.recipes.interface import RecipeFacts


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
