"""Batches of masked language models: padding, an exact share of masks, weights that make the loss a mean of samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minga.recipes.masked_lm.batching import pairs_batch, rows_batch
from minga.recipes.text.samples import Instance
from minga.recipes.text.tokenizer import MASKED_TOKENS, trained_special_tokens

SPECIAL = replace(trained_special_tokens(MASKED_TOKENS), ordinary=np.arange(5, 500))


def random_instances(number: int, seed: int, low: int = 2, high: int = 30) -> list[Instance]:
    random = np.random.default_rng(seed)
    return [
        Instance(*(random.integers(5, 500, random.integers(low, high), dtype=np.int32) for _ in "ab"), i % 2 == 0)
        for i in range(number)
    ]


@given(number=st.integers(1, 6), seed=st.integers(0, 100), fraction=st.floats(0.01, 0.9))
def test_batches(number, seed, fraction):
    samples = random_instances(number, seed, low=1)
    batch = pairs_batch(samples, np.random.default_rng(seed), masked_fraction=fraction, special=SPECIAL)
    ids, flat = batch["input_ids"], batch["input_ids"].flatten()
    restored = flat.clone()
    restored[batch["masked_positions"]] = batch["labels"]
    counts = torch.zeros(number, dtype=torch.int64)
    counts.index_add_(0, batch["masked_positions"] // ids.shape[1], torch.ones_like(batch["labels"]))
    for row, one in enumerate(samples):
        a, b = len(one.first), len(one.second)
        length = a + b + 3
        expected = [2, *one.first, 3, *one.second, 3, *[0] * (ids.shape[1] - length)]
        assert restored.view_as(ids)[row].tolist() == expected
        assert batch["token_type_ids"][row].tolist() == [0] * (a + 2) + [1] * (b + 1) + [0] * (ids.shape[1] - length)
        assert batch["attention_mask"][row].sum() == length
        assert counts[row] == max(1, round(fraction * (a + b)))
    assert batch["labels"].min() >= 5  # never a special token
    assert batch["sop_labels"].tolist() == [int(one.swapped) for one in samples]
    weights = torch.zeros(number).index_add_(0, batch["masked_positions"] // ids.shape[1], batch["label_weights"])
    torch.testing.assert_close(weights, torch.full((number,), 1 / number))


def test_masks_are_eighty_ten_ten():
    samples = random_instances(300, 1, low=60, high=61)
    batch = pairs_batch(samples, np.random.default_rng(0), masked_fraction=0.15, special=SPECIAL)
    shown = batch["input_ids"].flatten()[batch["masked_positions"]]
    share = {
        "masked": (shown == 4).float().mean().item(),
        "kept": (shown == batch["labels"]).float().mean().item(),
    }
    assert share["masked"] == pytest.approx(0.8, abs=0.02)
    assert share["kept"] == pytest.approx(0.1, abs=0.02)
    assert len(batch["labels"]) == 300 * 18


def test_rows_stand_between_their_ends_and_no_end_is_masked() -> None:
    rows = np.random.default_rng(0).integers(5, 500, (4, 30)).astype(np.int32)
    rows[:, 10] = SPECIAL["sep"]  # where a document ended
    batch = rows_batch(list(rows), np.random.default_rng(1), masked_fraction=0.2, special=SPECIAL)
    restored = batch["input_ids"].flatten().clone()
    restored[batch["masked_positions"]] = batch["labels"]
    assert restored.view(4, 32)[:, 1:-1].tolist() == rows.tolist()
    assert restored.view(4, 32)[:, 0].tolist() == [2] * 4
    assert restored.view(4, 32)[:, -1].tolist() == [3] * 4
    assert len(batch["labels"]) == 4 * round(0.2 * 29)
    assert SPECIAL["sep"] not in batch["labels"]
    assert batch["label_weights"].sum().item() == pytest.approx(1.0)
