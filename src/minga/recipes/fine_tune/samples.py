"""Conversations as tokens, in a file that travels with the run, and how samples are cut from them.

A sample is a row of `max_length` tokens. With packing as many conversations share it as fit; positions begin anew with
each of them, by which models of `PACKED` keep them apart. Without packing it is one conversation.

Every token that carries loss counts alike, in whichever sample and at whichever peer: the loss of a sample is the sum
over its tokens, divided by how many the samples of the run carry on the average. So the mean over samples, which
training weighs contributions by, is the mean over tokens up to a factor that is the same for all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.numpy import save

from minga.core.errors import ConfigurationError
from minga.recipes.data.files import stored_tensors
from minga.recipes.interface import Batch
from minga.recipes.text.samples import StoredTokens, Tokens

CHATS_FILE: Final = "chats.safetensors"
HELDOUT_FILE: Final = "heldout.safetensors"
PACKED: Final = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2", "phi3", "granite", "smollm3", "gpt2"}
)
"""Architectures that attend to the tokens of one conversation alone where positions say so."""


class Chat(NamedTuple):
    """A conversation: its tokens, and for each of them 1 if it carries loss, else 0 (uint8)."""

    ids: Tokens
    carries: NDArray[np.uint8]


def pack_chats(chats: Sequence[Chat]) -> bytes:
    """The content of a file of conversations: equal ones give equal bytes."""
    return save(
        {
            "tokens": np.concatenate([each.ids for each in chats]),
            "carries": np.concatenate([each.carries for each in chats]),
            "starts": np.cumsum([0, *(len(each.ids) for each in chats)], dtype=np.int64),
        }
    )


def stored_chats(path: Path, vocabulary_size: int) -> list[Chat]:
    """The conversations in such a file, memory-mapped. Raises as `StoredTokens`."""
    stored = StoredTokens(path, vocabulary_size)
    (carries,) = stored_tensors(path, "conversations", "carries")
    if carries.dtype != torch.uint8 or carries.shape != stored.tokens.shape or carries.max() > 1:
        raise ConfigurationError(f"{path}: not a file of conversations: it does not say which tokens carry loss")
    marks, start, found = carries.numpy(), 0, []
    for ids in stored.documents():
        found.append(Chat(ids, marks[start : start + len(ids)]))
        start += len(ids)
    return found


def is_learnable(chat: Chat, length: int) -> bool:
    """Whether a sample of `length` tokens, each guessed from those before it, reaches what carries loss."""
    return bool(chat.carries[1 : length + 1].any())


class Samples:
    """The samples of a run by number, the same on every machine: of `length` tokens at most, each guessed from those
    before it; `padding` fills them up. Of `left_out` conversations nothing can be learned.

    Raises `ConfigurationError` if no token carries loss, and for `packing` with a version of transformers that does not
    keep conversations apart.
    """

    def __init__(self, chats: Sequence[Chat], length: int, padding: int, *, packing: bool) -> None:
        if packing:
            check_packing()
        self._length, self._padding, self._packing = length, padding, packing
        learnable = [each for each in chats if is_learnable(each, length)]
        cut = [Chat(each.ids[: length + 1], each.carries[: length + 1]) for each in learnable]
        if not cut:
            raise ConfigurationError("data: of no conversation anything can be learned; raise max_length")
        self.left_out = len(chats) - len(cut)
        self._rows = _rows(cut, length) if packing else [[each] for each in cut]
        self._usual = np.float32(sum(int(each.carries[1:].sum()) for each in cut) / len(self._rows))

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """A batch of n samples, as long as the longest of them, with packing as `length`:

        * `input_ids`, `labels`: int64 [n, length], the tokens and what comes after each;
        * `label_weights`: float32 [n, length], 0 where that carries no loss;
        * `position_ids` with packing: int64 [n, length], from 0 on in each conversation.
        """
        rows = [self._rows[number] for number in numbers]
        longest = self._length if self._packing else max(len(each.ids) - 1 for (each,) in rows)
        ids = np.full((len(rows), longest), self._padding, dtype=np.int64)
        labels, positions = ids.copy(), np.zeros((len(rows), longest), dtype=np.int64)
        weights = np.zeros((len(rows), longest), dtype=np.float32)
        for number, row in enumerate(rows):
            start = 0
            for chat in row:
                end = start + len(chat.ids) - 1
                ids[number, start:end], labels[number, start:end] = chat.ids[:-1], chat.ids[1:]
                weights[number, start:end] = chat.carries[1:] / self._usual
                positions[number, start:end] = np.arange(end - start)
                start = end
            positions[number, start:] = np.arange(longest - start)
        return named_tensors(ids, labels, weights, positions if self._packing else None)


def named_tensors(
    ids: NDArray[np.int64], labels: NDArray[np.int64], weights: NDArray[np.float32], positions: NDArray[np.int64] | None
) -> Batch:
    """A batch, as `Samples.batch` describes it."""
    arrays = {"input_ids": ids, "labels": labels, "label_weights": weights}
    if positions is not None:
        arrays["position_ids"] = positions
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def check_packing() -> None:
    """Raise `ConfigurationError` where this transformers would let conversations of a row attend to each other."""
    try:
        from transformers.masking_utils import find_packed_sequence_indices  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"packing = true in this run needs transformers 5, and {transformers.__version__} is installed here: "
            "pip install -U transformers"
        ) from error


def _rows(chats: Sequence[Chat], length: int) -> list[list[Chat]]:
    """Each conversation in the fullest row that has room for it, the longest ones first."""
    rows: list[list[Chat]] = []
    rooms: list[int] = []
    """Each of them once, ascending; `with_room` has the rows."""
    with_room: dict[int, list[int]] = {}
    for number in sorted(range(len(chats)), key=lambda each: (-len(chats[each].ids), each)):
        size = len(chats[number].ids) - 1
        place = bisect_left(rooms, size)
        if place < len(rooms):
            room = rooms[place]
            row = with_room[room].pop()
            if not with_room[room]:
                del rooms[place]
        else:
            room, row = length, len(rows)
            rows.append([])
        rows[row].append(chats[number])
        if left := room - size:
            if not with_room.setdefault(left, []):
                insort(rooms, left)
            with_room[left].append(row)
    return rows
