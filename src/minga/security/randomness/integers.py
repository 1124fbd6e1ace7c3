"""Uniform integers from a stream of random bytes, without favourites and the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from minga.security.randomness.coin import expand

LARGEST_BOUND: Final = 2**62
_WORD_BYTES: Final = 8

T = TypeVar("T")


class UniformIntegers:
    """The integers that the stream of `key` (32 bytes) gives, one after another.

    The stream is read as little-endian 64-bit words. A word w below the largest multiple of the bound gives
    w mod bound; the few others, which would favour small numbers, are left out. How many integers are asked for at
    once does not change which come.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._words_used = 0

    def below(self, bound: int, count: int) -> npt.NDArray[np.int64]:
        """Return the next `count` integers from 0 to below `bound`, with repetition, as int64 [count].

        Raises `ValueError` for a bound outside 1 to 2**62 or a negative count.
        """
        if not 1 <= bound <= LARGEST_BOUND:
            raise ValueError(f"the bound of random integers must be from 1 to 2**62, not {bound}")
        if count < 0:
            raise ValueError(f"the count of random integers must not be negative: {count}")
        largest_fair = np.uint64(2**64 - 2**64 % bound - 1)
        found: list[npt.NDArray[np.int64]] = []
        missing = count
        while missing:
            words = self._next_words(missing)
            fair = words[words <= largest_fair]
            found.append((fair % np.uint64(bound)).astype(np.int64))
            missing -= len(fair)
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def sample(self, population: Sequence[T], count: int) -> list[T]:
        """Return `count` different items of `population` in random order (the first places of a Fisher-Yates shuffle).

        Raises `ValueError` if there are fewer.
        """
        if not 0 <= count <= len(population):
            raise ValueError(f"cannot draw {count} of {len(population)}")
        items = list(population)
        for place in range(count):
            other = place + int(self.below(len(items) - place, 1)[0])
            items[place], items[other] = items[other], items[place]
        return items[:count]

    def _next_words(self, count: int) -> npt.NDArray[np.uint64]:
        data = expand(self._key, self._words_used * _WORD_BYTES, count * _WORD_BYTES)
        self._words_used += count
        return np.frombuffer(data, "<u8").astype(np.uint64)
