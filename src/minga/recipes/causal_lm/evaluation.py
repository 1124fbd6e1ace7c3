"""How well a causal model guesses held-out text: nats a token, perplexity, and bits a byte, which tokenizers share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn

from minga.recipes.causal_lm.token_losses import token_losses
from minga.recipes.text.foreign_tokenizer import encoded_texts
from minga.recipes.text.tokens import DOCUMENTS_AT_A_TIME

EVALUATION_BATCH_SIZE = 16
MAX_EVALUATION_ROWS = 512


class HeldOutRows(NamedTuple):
    """Rows of held-out text, the same for everyone: `ids` int64 [rows, length + 1]; of each target, `counts` bool
    [rows, length] whether there is one, `is_text` whether it is no special token, `sizes` int64 its bytes in UTF-8.
    """

    ids: NDArray[np.int64]
    counts: NDArray[np.bool_]
    is_text: NDArray[np.bool_]
    sizes: NDArray[np.int64]


def heldout_rows(documents: Sequence[str], tokenizer: Tokenizer, end: int, length: int) -> HeldOutRows:
    """The first 512 rows of `length` targets of the documents, one after the other, the last row filled up."""
    most = MAX_EVALUATION_ROWS * (length + 1)
    ids: list[int] = []
    sizes: list[int] = []
    for start in range(0, len(documents), DOCUMENTS_AT_A_TIME):
        if len(ids) >= most:
            break
        some = documents[start : start + DOCUMENTS_AT_A_TIME]
        for document, encoding in zip(some, encoded_texts(tokenizer, some, with_places=True), strict=True):
            ids += [*encoding.ids, end]
            sizes += [*_bytes_of(document, (stop for _, stop in encoding.offsets)), 0]
    total = min(len(ids), most)
    rows = -(-total // (length + 1))
    filled = np.full(rows * (length + 1), end, dtype=np.int64)
    filled[:total] = ids[:total]
    padded = np.zeros(rows * (length + 1), dtype=np.int64)
    padded[:total] = sizes[:total]
    there = np.arange(rows * (length + 1)) < total
    shape = (rows, length + 1)
    targets = filled.reshape(shape)[:, 1:]
    counts = there.reshape(shape)[:, 1:]
    return HeldOutRows(filled.reshape(shape), counts, counts & (targets != end), padded.reshape(shape)[:, 1:])


def _bytes_of(document: str, ends: Iterable[int]) -> list[int]:
    """The bytes that each token stands for: from the end of the one before it, blanks between them included."""
    places = [0, *accumulate(len(character.encode()) for character in document)]
    sizes, before = [], 0
    for end in ends:
        here = max(before, places[end])
        sizes.append(here - before)
        before = here
    return sizes


def evaluate_model(model: nn.Module, rows: HeldOutRows) -> dict[str, float]:
    """`heldout_loss`: nats a token, all tokens alike; `heldout_perplexity`: its exponential; `heldout_bits_per_byte`:
    bits for each byte of the text, without what special tokens cost.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    nats, text_nats = 0.0, 0.0
    try:
        with torch.no_grad():
            for start in range(0, len(rows.ids), EVALUATION_BATCH_SIZE):
                part = slice(start, start + EVALUATION_BATCH_SIZE)
                ids = torch.from_numpy(rows.ids[part]).to(device)
                losses = token_losses(model, ids[:, :-1], ids[:, 1:]).double().cpu().numpy()
                nats += float(losses[rows.counts[part]].sum())
                text_nats += float(losses[rows.is_text[part]].sum())
    finally:
        model.train(was_training)
    loss = nats / max(1, int(rows.counts.sum()))
    size = int(rows.sizes[rows.is_text].sum())
    return {
        "heldout_loss": loss,
        "heldout_perplexity": math.exp(min(loss, 700.0)),
        "heldout_bits_per_byte": text_nats / (math.log(2.0) * max(1, size)),
    }
