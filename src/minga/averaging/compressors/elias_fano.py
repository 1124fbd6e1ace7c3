"""Which elements of a block are meant, as Elias and Fano write increasing numbers: 2 to 3 bits above the entropy each.

Of `count` numbers below `universe`, each has l = floor(log2(universe / count)) low bits, which are written as they are.
The rest of number i, its high part h, is a one at bit h + i of a field of count + ceil(universe / 2**l) bits: unary, so
that the ones come in order, and the zeros between them count the high parts up. Together with the low bits that is
count * (l + 1) + ceil(universe / 2**l) bits, whichever numbers they are: 64 of 4096 take 64 bytes.

Source: Elias 1974, Fano 1971; "Quasi-succinct indices" (Vigna 2013) has this form of it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from minga.averaging.codecs.interface import InvalidEncodingError

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

LARGEST_UNIVERSE: Final = 1 << 16
_PLACES: Final = np.arange(LARGEST_UNIVERSE)


class IncreasingNumbers:
    """The encoding of rows of `count` strictly increasing numbers from 0 to below `universe`, at most 65 536.

    Raises `ValueError` for other sizes.
    """

    def __init__(self, count: int, universe: int) -> None:
        if not 1 <= count <= universe <= LARGEST_UNIVERSE:
            raise ValueError(f"{count} numbers below {universe} cannot be written in two bytes each")
        self.count, self.universe = count, universe
        self._low = (universe // count).bit_length() - 1
        self._unary = count + -(-universe // (1 << self._low))
        self._bits = self._unary + count * self._low
        self.encoded_bytes = -(-self._bits // 8)
        """What one row takes."""
        self._places = _PLACES[:count]

    def encode(self, rows: Numbers) -> Bytes:
        """The bytes [rows, encoded_bytes] of `rows` [rows, count]."""
        bits = np.zeros((len(rows), self._bits), np.uint8)
        ones = (rows >> self._low) + self._places + self._bits * np.arange(len(rows))[:, None]
        bits.reshape(-1)[ones] = 1
        if self._low:
            low = (rows & ((1 << self._low) - 1)).astype("<u2").view(np.uint8).reshape(len(rows), self.count, 2)
            written = np.unpackbits(low, axis=2, count=self._low, bitorder="little")
            bits[:, self._unary :] = written.reshape(len(rows), -1)
        return np.packbits(bits, axis=1, bitorder="little")

    def decode(self, encoded: Bytes) -> Numbers:
        """The rows [rows, count] of bytes [rows, encoded_bytes].

        Raises `InvalidEncodingError` if these are not the bytes of any increasing numbers.
        """
        bits = np.unpackbits(encoded, axis=1, bitorder="little")
        unary = bits[:, : self._unary]
        if not (np.count_nonzero(unary, axis=1) == self.count).all() or bits[:, self._bits :].any():
            raise InvalidEncodingError(f"a block does not name {self.count} elements")
        rows = (np.flatnonzero(unary) % self._unary).reshape(-1, self.count) - self._places
        if self._low:
            low = bits[:, self._unary : self._bits].reshape(-1, self.count, self._low)
            packed = np.packbits(low, axis=2, bitorder="little").astype(np.int64)
            rows = rows << self._low | (packed << 8 * np.arange(packed.shape[2])).sum(axis=2)
        if not (rows[:, -1] < self.universe).all() or not (rows[:, 1:] > rows[:, :-1]).all():
            raise InvalidEncodingError("the elements of a block do not increase, or there are not as many")
        return rows


@lru_cache(maxsize=8192)
def increasing(count: int, universe: int) -> IncreasingNumbers:
    """The encoding of rows of such numbers."""
    return IncreasingNumbers(count, universe)
