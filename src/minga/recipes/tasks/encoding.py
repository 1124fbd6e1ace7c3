"""Examples as tensors: tags stand on the first sub-token of their word, all other positions do not count.

Batches are dictionaries for `AutoModelForTokenClassification` and `AutoModelForSequenceClassification`: `input_ids` and
`attention_mask`, int64 [n, length], and `labels`, int64 [n, length] or [n].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from minga.recipes.tasks.examples import LabelledText, TaggedSentence

IGNORED: Final = -100
"""The label of positions that count neither in the loss nor in a score."""


def encode_tagged(
    tokenizer: Any, sentences: Sequence[TaggedSentence], labels: Mapping[str, int], max_length: int
) -> dict[str, Tensor]:
    """A batch of tagged sentences, padded to its longest, cut to `max_length` tokens."""
    encoded = _padded(tokenizer, [list(each.words) for each in sentences], max_length, is_split_into_words=True)
    rows = []
    for place, sentence in enumerate(sentences):
        row, before = [], None
        for word in encoded.word_ids(place):
            is_first = word is not None and word != before
            row.append(labels[sentence.tags[word]] if is_first else IGNORED)
            before = word
        rows.append(row)
    return {**_inputs(encoded), "labels": torch.tensor(rows)}


def encode_texts(
    tokenizer: Any, texts: Sequence[LabelledText], labels: Mapping[str, int], max_length: int
) -> dict[str, Tensor]:
    """A batch of labelled texts, padded to its longest, cut to `max_length` tokens."""
    encoded = _padded(tokenizer, [each.text for each in texts], max_length)
    return {**_inputs(encoded), "labels": torch.tensor([labels[each.label] for each in texts])}


def _padded(tokenizer: Any, rows: Sequence[Any], max_length: int, **options: Any) -> Any:
    return tokenizer(rows, truncation=True, max_length=max_length, padding=True, return_tensors="pt", **options)


def _inputs(encoded: Any) -> dict[str, Tensor]:
    return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}
