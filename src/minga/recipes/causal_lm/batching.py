"""From rows of tokens to batches: each row one token longer than a sample, which is guessed from the ones before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from minga.recipes.interface import Batch
from minga.recipes.text.tokens import Tokens


def make_batch(rows: Sequence[Tokens], length: int, padding: int) -> Batch:
    """A batch of n rows of at most `length` + 1 tokens:

    * `input_ids`: int64 [n, length], the first tokens of each row, filled up by `padding`;
    * `labels`: int64 [n, length], the token after each;
    * `label_weights`: float32 [n, length], sum 1 in each row, 0 where the row has ended.
    """
    ids = np.full((len(rows), length + 1), padding, dtype=np.int64)
    weights = np.zeros((len(rows), length), dtype=np.float32)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        weights[place, : len(row) - 1] = np.float32(1.0 / (len(row) - 1))
    arrays = {"input_ids": ids[:, :-1].copy(), "labels": ids[:, 1:].copy(), "label_weights": weights}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
