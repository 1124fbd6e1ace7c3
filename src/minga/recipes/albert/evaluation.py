"""How well a model does on held-out text: the same instances and the same masks for everyone, every time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

from minga.recipes.albert.batching import make_batch
from minga.recipes.albert.model import albert_logits
from minga.recipes.interface import Batch
from minga.recipes.text.sentence_pairs import encode_documents, make_instances

EVALUATION_SEED = 20_210_618
EVALUATION_BATCH_SIZE = 32
MAX_EVALUATION_SAMPLES = 512


def heldout_batches(
    documents: Sequence[str], tokenizer: Tokenizer, max_length: int, masked_fraction: float
) -> list[Batch]:
    """The batches that every evaluation uses: at most 512 samples, masked and split by a fixed seed."""
    random = np.random.default_rng(EVALUATION_SEED)
    encoded = encode_documents(tokenizer, documents)
    samples = list(make_instances(encoded, max_length, random, vary_start=False))
    if len(samples) > MAX_EVALUATION_SAMPLES:
        places = np.sort(random.choice(len(samples), MAX_EVALUATION_SAMPLES, replace=False))
        samples = [samples[place] for place in places]
    return [
        make_batch(
            samples[start : start + EVALUATION_BATCH_SIZE],
            random,
            masked_fraction=masked_fraction,
            vocabulary_size=tokenizer.get_vocab_size(),
        )
        for start in range(0, len(samples), EVALUATION_BATCH_SIZE)
    ]


def evaluate_model(model: nn.Module, batches: Sequence[Batch]) -> dict[str, float]:
    """`heldout_mlm_loss`: nats per masked token, all tokens alike; `heldout_sop_accuracy`: share of pairs put right."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    loss, tokens, right, pairs = 0.0, 0, 0, 0
    try:
        with torch.no_grad():
            for cpu_batch in batches:
                batch = {name: tensor.to(device) for name, tensor in cpu_batch.items()}
                masked_logits, sop_logits = albert_logits(model, batch)
                loss += functional.cross_entropy(masked_logits.float(), batch["labels"], reduction="sum").item()
                tokens += batch["labels"].numel()
                right += int((sop_logits.argmax(dim=1) == batch["sop_labels"]).sum().item())
                pairs += batch["sop_labels"].numel()
    finally:
        model.train(was_training)
    return {"heldout_mlm_loss": loss / max(1, tokens), "heldout_sop_accuracy": right / max(1, pairs)}
