"""Training text as tokens, in a file that travels with the run: all peers have the same, and no peer tokenises.

`tokens.safetensors` holds one int32 array, the documents in their order with a token for the end after each, and the
places where they begin. It is memory-mapped, so a text may be larger than a peer's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from tokenizers import Tokenizer

from minga.core.errors import ConfigurationError, StorageError
from minga.core.spec.sections import MAX_FILE_BYTES
from minga.recipes.text.foreign_tokenizer import encoded_texts

TOKENS_FILE = "tokens.safetensors"
DOCUMENTS_AT_A_TIME = 256
Tokens = NDArray[np.int32]


def encoded(documents: Iterable[str], tokenizer: Tokenizer, end: int) -> Iterator[Tokens]:
    """Each document as tokens, `end` after it; those that come to nothing are left out."""
    rest = iter(documents)
    while some := list(islice(rest, DOCUMENTS_AT_A_TIME)):
        for encoding in encoded_texts(tokenizer, some):
            if encoding.ids:
                yield np.array([*encoding.ids, end], dtype=np.int32)


def pack_tokens(documents: Sequence[Tokens]) -> bytes:
    """The content of `tokens.safetensors`. Raises `ConfigurationError` if it is too much to travel with a run."""
    size = 4 * sum(len(document) for document in documents)
    if size > MAX_FILE_BYTES:
        raise ConfigurationError(
            f"data: {size >> 20} MiB of tokens, too much to travel with a run; publish the text as a data set and use "
            'source = "datasets"'
        )
    tokens = np.concatenate(documents) if documents else np.empty(0, dtype=np.int32)
    starts = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    return save({"tokens": tokens, "starts": starts})


class StoredTokens:
    """The documents of `tokens.safetensors`, memory-mapped.

    Raises `ConfigurationError` if the file is no such file or has tokens outside of a vocabulary of `vocabulary_size`,
    and `StorageError` if it cannot be read.
    """

    def __init__(self, path: Path, vocabulary_size: int) -> None:
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                tokens, starts = file.get_tensor("tokens"), file.get_tensor("starts")
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error.strerror or error}") from error
        except SafetensorError as error:
            raise ConfigurationError(f"{path}: not a file of tokens: {str(error)[:200]}") from error
        if (tokens.dtype, starts.dtype) != (torch.int32, torch.int64) or (tokens.ndim, starts.ndim) != (1, 1):
            raise ConfigurationError(f"{path}: not a file of tokens: other types or shapes")
        self.tokens: Tokens = tokens.numpy()
        self._starts: NDArray[np.int64] = starts.numpy()
        bounds = self._starts
        if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != len(self.tokens) or (np.diff(bounds) < 1).any():
            raise ConfigurationError(f"{path}: not a file of tokens: its documents do not follow each other")
        if self.tokens.min() < 0 or self.tokens.max() >= vocabulary_size:
            raise ConfigurationError(f"{path}: tokens outside of the vocabulary of {vocabulary_size}")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def documents(self, order: Iterable[int] | None = None) -> Iterator[Tokens]:
        """All documents in their order, or some in another."""
        for place in range(len(self)) if order is None else order:
            yield self.tokens[self._starts[place] : self._starts[place + 1]]
