"""Captions and codes as a file of a run: token ids, so that no version of a tokenizer matters, and image codes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.recipes.interface import Batch
from minga.recipes.text_to_image.decoder.model import PAD
from minga.recipes.text_to_image.decoder.shape import DecoderShape

Ids = npt.NDArray[np.int64]
_TYPES = (np.uint16, np.uint32, np.int32)


@dataclass(frozen=True)
class Pairs:
    """Token ids of n captions [n, T], 0 where padded, and the codes of their pictures [n, S²]; whole numbers."""

    captions: npt.NDArray[np.integer]
    codes: npt.NDArray[np.integer]

    def __len__(self) -> int:
        return len(self.captions)

    def batch(self, rows: Ids, without_caption: npt.NDArray[np.bool_] | None = None) -> Batch:
        """`captions` int64 [m, T] and `codes` int64 [m, S²] of those rows, some without their captions."""
        captions = self.captions[rows].astype(np.int64)
        if without_caption is not None:
            captions[without_caption] = PAD
        return {"captions": torch.from_numpy(captions), "codes": torch.from_numpy(self.codes[rows].astype(np.int64))}


CodedRow = tuple[str, Ids]
"""A caption, and codes int64 [S²]."""


def pack_pairs(pairs: Pairs, shape: DecoderShape) -> bytes:
    """The pairs as a safetensors file, in the smallest type that holds the ids of that shape."""
    small = shape.vocabulary <= 1 << 16
    captions = pairs.captions.astype(np.uint16 if small else np.uint32)
    return save({"captions": np.ascontiguousarray(captions), "codes": pairs.codes.astype(np.uint16)})


def read_pairs(path: Path, shape: DecoderShape) -> Pairs:
    """What `pack_pairs` made, checked against the shape.

    Raises `ConfigurationError` for anything else and `StorageError` if the file cannot be read.
    """
    try:
        arrays = load_file(path)
    except (SafetensorError, ValueError, TypeError, AttributeError) as error:  # the last: types that numpy lacks
        raise ConfigurationError(f"{path}: not a file of pairs: {str(error)[:200]}") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {reason_of(error)}") from error
    captions, codes = arrays.get("captions"), arrays.get("codes")
    for array, width, most in (
        (captions, shape.text_length, shape.vocabulary),
        (codes, shape.image_length, shape.codes),
    ):
        if array is None or array.dtype not in _TYPES or array.ndim != 2 or array.shape[1] != width or not len(array):
            raise ConfigurationError(f"{path}: not the pairs of this run: they need {width} ids each")
        if int(array.max()) >= most or int(array.min()) < 0:
            raise ConfigurationError(f"{path}: holds ids of {most} and above")
    if captions is None or codes is None or len(captions) != len(codes):
        raise ConfigurationError(f"{path}: has not as many captions as pictures")
    return Pairs(captions, codes)
