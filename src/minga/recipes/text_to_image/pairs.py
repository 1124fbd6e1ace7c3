"""Captions and pictures as whole numbers: token ids and codes, as a batch and as a file of a run.

Captions travel as ids, so that no version of a tokenizer matters: 0 is padding, and longer captions are cut.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save
from tokenizers import Tokenizer

from minga.core.errors import ConfigurationError
from minga.recipes.data.files import stored_tensors
from minga.recipes.interface import Batch
from minga.recipes.text.tokenizer import (
    MAX_TOKENIZER_BYTES,
    TOKENIZER_FILE,
    encoded_texts,
    given_content,
    train_tokenizer,
)
from minga.recipes.text_to_image.decoder import PAD, DecoderShape

Ids = npt.NDArray[np.int64]
CodedRow = tuple[str, Ids]
"""A caption, and codes int64 [S²]."""

_TYPES = (torch.uint16, torch.uint32)

logger = logging.getLogger("minga.recipes")


def caption_tokenizer(setting: str, captions: Sequence[str], vocabulary: int) -> bytes:
    """The content of `tokenizer.json`, trained on captions or from elsewhere, as the setting `tokenizer` says.

    Raises `ConfigurationError` if that cannot be done.
    """
    how, _, what = setting.partition(":")
    if how == "train":
        return train_tokenizer(captions, vocabulary, "unigram" if what == "unigram" else "wordpiece")
    return given_content(what, TOKENIZER_FILE, "tokenizer", MAX_TOKENIZER_BYTES)


def warn_of_cut_captions(tokenizer: Tokenizer, captions: Sequence[str], length: int) -> None:
    """Log a warning if captions have more tokens than the model reads: what they say at their ends is lost."""
    cut = sum(len(encoding.ids) > length for encoding in encoded_texts(tokenizer, captions))
    if cut:
        share = 100 * cut / len(captions)
        logger.warning("captions: %.0f%% are cut at %d tokens; overrides.text_length allows more", share, length)


def encode_captions(tokenizer: Tokenizer, captions: Sequence[str], length: int) -> Ids:
    """int64 [n, length]: the first tokens of each caption, then 0. Where 0 is a special token, captions have none."""
    added = tokenizer.get_added_tokens_decoder().get(PAD)
    is_special = added is not None and added.special
    found = np.full((len(captions), length), PAD, dtype=np.int64)
    for row, encoding in enumerate(encoded_texts(tokenizer, captions)):
        ids = [each for each in encoding.ids if each != PAD or not is_special][:length]
        found[row, : len(ids)] = ids
    return found


@dataclass(frozen=True)
class Pairs:
    """Token ids of n captions [n, T], 0 where padded, and the codes of their pictures [n, S²]; whole numbers."""

    captions: npt.NDArray[np.integer]
    codes: npt.NDArray[np.integer]

    @classmethod
    def of(cls, rows: Sequence[CodedRow], words: Tokenizer, shape: DecoderShape) -> Pairs:
        """Captions and codes, with token ids instead of the captions."""
        captions = encode_captions(words, [caption for caption, _ in rows], shape.text_length)
        return cls(captions, np.stack([codes for _, codes in rows]))

    def __len__(self) -> int:
        return len(self.captions)

    def batch(self, rows: Ids, without_caption: npt.NDArray[np.bool_] | None = None) -> Batch:
        """`captions` int64 [m, T] and `codes` int64 [m, S²] of those rows, some without their captions."""
        captions = self.captions[rows].astype(np.int64)
        if without_caption is not None:
            captions[without_caption] = PAD
        return {"captions": torch.from_numpy(captions), "codes": torch.from_numpy(self.codes[rows].astype(np.int64))}


def pack_pairs(pairs: Pairs, shape: DecoderShape) -> bytes:
    """The pairs as a safetensors file, in the smallest type that holds the ids of that shape."""
    small = shape.vocabulary <= 1 << 16
    captions = pairs.captions.astype(np.uint16 if small else np.uint32)
    return save({"captions": np.ascontiguousarray(captions), "codes": pairs.codes.astype(np.uint16)})


def read_pairs(path: Path, shape: DecoderShape) -> Pairs:
    """What `pack_pairs` made, checked against the shape; memory-mapped.

    Raises `ConfigurationError` for anything else and `StorageError` if the file cannot be read.
    """
    found = []
    for tensor, width, most in zip(
        stored_tensors(path, "pairs", "captions", "codes"),
        (shape.text_length, shape.image_length),
        (shape.vocabulary, shape.codes),
        strict=True,
    ):
        if tensor.dtype not in _TYPES or tensor.ndim != 2 or tensor.shape[1] != width or not len(tensor):
            raise ConfigurationError(f"{path}: not the pairs of this run: they need {width} ids each")
        found.append(tensor.numpy())
        if int(found[-1].max()) >= most:
            raise ConfigurationError(f"{path}: holds ids of {most} and above")
    captions, codes = found
    if len(captions) != len(codes):
        raise ConfigurationError(f"{path}: has not as many captions as pictures")
    return Pairs(captions, codes)
