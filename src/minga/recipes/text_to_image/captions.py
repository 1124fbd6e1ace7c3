"""Captions as token ids: 0 is padding, and longer captions are cut."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from minga.core.errors import ConfigurationError, reason_of
from minga.recipes.text.tokenizer import encoded_texts, parsed, train_tokenizer
from minga.recipes.text_to_image.decoder.model import PAD

logger = logging.getLogger("minga.recipes")


def caption_tokenizer(setting: str, captions: Sequence[str], vocabulary: int) -> bytes:
    """The content of `tokenizer.json`, trained on captions or read from a file, as the setting `tokenizer` says.

    Raises `ConfigurationError` if that cannot be done.
    """
    how, _, what = setting.partition(":")
    if how == "train":
        return train_tokenizer(captions, vocabulary, "unigram" if what == "unigram" else "wordpiece")
    path = Path(what).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"tokenizer = {setting!r}: {path} cannot be read: {reason_of(error)}") from error
    read_caption_tokenizer(data, vocabulary)
    return data


def read_caption_tokenizer(data: bytes, vocabulary: int) -> Tokenizer:
    """The tokenizer in the content of a `tokenizer.json`, with ids below `vocabulary`. Raises `ConfigurationError`."""
    tokenizer = parsed(data)
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= vocabulary:
        raise ConfigurationError(f"tokenizer.json: has an id {largest}; the model's vocabulary has {vocabulary}")
    return tokenizer


def warn_of_cut_captions(tokenizer: Tokenizer, captions: Sequence[str], length: int) -> None:
    """Log a warning if captions have more tokens than the model reads: what they say at their ends is lost."""
    cut = sum(len(encoding.ids) > length for encoding in encoded_texts(tokenizer, captions))
    if cut:
        share = 100 * cut / len(captions)
        logger.warning("captions: %.0f%% are cut at %d tokens; overrides.text_length allows more", share, length)


def encode_captions(tokenizer: Tokenizer, captions: Sequence[str], length: int) -> npt.NDArray[np.int64]:
    """int64 [n, length]: the first tokens of each caption, then 0."""
    found = np.full((len(captions), length), PAD, dtype=np.int64)
    for row, encoding in enumerate(encoded_texts(tokenizer, captions)):
        ids = [each for each in encoding.ids if each != PAD][:length]
        found[row, : len(ids)] = ids
    return found
