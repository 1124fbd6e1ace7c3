"""Cross-entropy of each next token, in bounded memory.

Scores of the vocabulary are by far the largest tensor of a language model: 8 rows of 1,024 tokens and a vocabulary of
50,304 take 1.6 GiB. Where they exceed 2²⁶ elements, the layers below run once, and the last layer and the cross-entropy
in slices of at most 2²⁴ elements, 64 MiB, which the backward pass computes again.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

MOST_SCORES: Final = 1 << 26
SLICE_SCORES: Final = 1 << 24
PLAIN_HEADS: Final = frozenset({"gpt2", "llama", "qwen2", "qwen3", "mistral", "olmo2"})
"""Architectures that do nothing but multiply hidden states by the last layer's weights; others run as a whole."""


def token_losses(model: Any, inputs: Tensor, targets: Tensor, *, most_scores: int = MOST_SCORES) -> Tensor:
    """Cross-entropy in nats, float32 [n, length], of `targets` int64 [n, length] after `inputs` of the same shape."""
    config = model.config
    if targets.numel() * config.vocab_size > most_scores and config.model_type in PLAIN_HEADS:
        hidden = model.base_model(input_ids=inputs, use_cache=False).last_hidden_state
        head = model.get_output_embeddings()
        losses = _in_slices(hidden.flatten(0, 1), head, targets.flatten(), config.vocab_size)
    else:
        scores = model(input_ids=inputs, use_cache=False).logits
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
