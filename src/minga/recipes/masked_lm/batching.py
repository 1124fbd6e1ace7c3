"""From pairs of segments, or rows of tokens, to batches: padding, and masking for the language model.

Of the tokens that are not special, an exact share is chosen at random in each sample (at least one); of the chosen,
80 % become [MASK], 10 % a random token and 10 % stay as they are. The model has to guess all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from minga.recipes.interface import Batch
from minga.recipes.text.samples import SPECIAL_PER_PAIR, Instance, Tokens
from minga.recipes.text.tokenizer import MASKED_TOKENS, SpecialTokens

MASKED_SHARE = 0.8
RANDOM_SHARE = 0.1


def pairs_batch(
    instances: Sequence[Instance], random: np.random.Generator, *, masked_fraction: float, special: SpecialTokens
) -> Batch:
    """A batch of n pairs of segments, padded to the longest one, of length s, with m masked tokens in all.

    * `input_ids`, `token_type_ids`, `attention_mask`: int64 [n, s];
    * `masked_positions`: int64 [m], places of the tokens to guess in the flattened [n * s], ascending;
    * `labels`: int64 [m], what stood there; `label_weights`: float32 [m], sum 1: each sample counts 1/n, whatever its
      number of masked tokens, so that the loss is a mean over samples;
    * `sop_labels`: int64 [n], 1 where the segments changed places.
    """
    lengths = [len(one.first) + len(one.second) + SPECIAL_PER_PAIR for one in instances]
    shape = (len(instances), max(lengths))
    ids = np.full(shape, special["pad"], dtype=np.int64)
    types = np.zeros(shape, dtype=np.int64)
    attention = np.zeros(shape, dtype=np.int64)
    maskable = np.zeros(shape, dtype=bool)
    for row, (one, length) in enumerate(zip(instances, lengths, strict=True)):
        middle = len(one.first) + 1
        ids[row, 0], ids[row, middle], ids[row, length - 1] = special["cls"], special["sep"], special["sep"]
        ids[row, 1:middle], ids[row, middle + 1 : length - 1] = one.first, one.second
        types[row, middle + 1 : length] = 1
        attention[row, :length] = 1
        maskable[row, 1:middle] = maskable[row, middle + 1 : length - 1] = True
    masked = _mask(ids, maskable, random, masked_fraction, special)
    arrays = {
        "input_ids": ids,
        "token_type_ids": types,
        "attention_mask": attention,
        **masked,
        "sop_labels": np.array([one.swapped for one in instances], dtype=np.int64),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def rows_batch(
    rows: Sequence[Tokens], random: np.random.Generator, *, masked_fraction: float, special: SpecialTokens
) -> Batch:
    """A batch of n rows of equal length, each between [CLS] and [SEP]: as `pairs_batch` describes it, without types,
    attention mask (there is no padding) and the order of segments.
    """
    text = np.stack(rows).astype(np.int64)
    ids = np.pad(text, ((0, 0), (1, 1)))
    ids[:, 0], ids[:, -1] = special["cls"], special["sep"]
    maskable = ~np.isin(ids, [special["pad"], special["cls"], special["sep"]])
    arrays = {"input_ids": ids, **_mask(ids, maskable, random, masked_fraction, special)}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _mask(
    ids: np.ndarray, maskable: np.ndarray, random: np.random.Generator, fraction: float, special: SpecialTokens
) -> dict[str, np.ndarray]:
    """Mask `ids` where they stand; the places, what stood there, and what each counts."""
    chosen = _choose(maskable, fraction, random)
    counts = chosen.sum(axis=1)
    positions = np.flatnonzero(chosen)
    labels = ids.reshape(-1)[positions]
    ids.reshape(-1)[positions] = _corrupt(labels, special, random)
    weights = np.repeat(1.0 / (len(ids) * np.maximum(1, counts)), counts).astype(np.float32)
    return {"masked_positions": positions, "labels": labels, "label_weights": weights}


def synthetic_batch(size: int, length: int, vocabulary_size: int, masked_fraction: float, *, pairs: bool) -> Batch:
    """A batch of random tokens, all samples of `length`; the same each time, with the names of `pairs_batch`, or
    those of `rows_batch`.
    """
    random = np.random.default_rng(0)
    masked = max(1, round(masked_fraction * length))
    places = np.concatenate([row * length + np.sort(random.permutation(length)[:masked]) for row in range(size)])
    ids = random.integers(len(MASKED_TOKENS), vocabulary_size, size=(size, length))
    types = np.broadcast_to((np.arange(length) >= length // 2).astype(np.int64), (size, length)).copy()
    arrays = {
        "input_ids": ids,
        "token_type_ids": types,
        "attention_mask": np.ones((size, length), dtype=np.int64),
        "masked_positions": places,
        "labels": ids.reshape(-1)[places],
        "label_weights": np.full(len(places), 1.0 / len(places), dtype=np.float32),
        "sop_labels": random.integers(0, 2, size=size),
    }
    if not pairs:
        arrays = {name: arrays[name] for name in ("input_ids", "masked_positions", "labels", "label_weights")}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _choose(maskable: np.ndarray, fraction: float, random: np.random.Generator) -> np.ndarray:
    """In each row the exact share of the maskable places, uniformly: those with the smallest random numbers."""
    numbers = np.where(maskable, random.random(maskable.shape), 2.0)
    available = maskable.sum(axis=1)
    wanted = np.maximum(1, np.rint(fraction * available).astype(np.int64))
    ranks = numbers.argsort(axis=1).argsort(axis=1)
    chosen: np.ndarray = (ranks < wanted[:, None]) & maskable
    return chosen


def _corrupt(tokens: np.ndarray, special: SpecialTokens, random: np.random.Generator) -> np.ndarray:
    numbers = random.random(tokens.shape)
    strangers = special.ordinary[random.integers(0, len(special.ordinary), size=tokens.shape)]
    kept = np.where(numbers < MASKED_SHARE + RANDOM_SHARE, strangers, tokens)
    corrupted: np.ndarray = np.where(numbers < MASKED_SHARE, special["mask"], kept)
    return corrupted
