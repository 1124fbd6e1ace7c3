"""Codecs that send only some elements of each block of 4096: what all of them share, and `union` and `gaussiank`.

How many of a block are sent is given for a whole block; a shorter one at the end of a slice gives as large a share, and
at least one element. Tensors of less than a block travel as float16: the share would be of too few.

Bytes are read a few blocks at a time, so that what lies between them and the vector stays small and in the cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from minga.averaging.codecs.interface import Codec, InvalidEncodingError, largest_magnitude, require_magnitude
from minga.averaging.codecs.tensor_bytes import CACHED_ELEMENTS
from minga.core.spec.fields import Section, whole

BLOCK_ELEMENTS: Final = 4096
ROWS: Final = CACHED_ELEMENTS // BLOCK_ELEMENTS
"""Blocks that are worked on at once."""

Numbers = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def elements_of_block(default: int, meaning: str) -> Any:
    """A setting that says how many elements of a block of 4096 are sent."""
    return whole(default, 1, BLOCK_ELEMENTS, meaning)


class UploadSettings(Section):
    """How much is sent of a contribution."""

    k: int = elements_of_block(64, "elements that are sent of each block of 4096")


class SparseCodec(Codec):
    """Some elements of each block of 4096."""

    block_elements = BLOCK_ELEMENTS
    fewest_elements = BLOCK_ELEMENTS
    is_sparse = True
    needs_residual = True

    def max_encoded_bytes(self, numel: int) -> int:
        """What whole blocks take at most, and a short last one."""
        whole, rest = divmod(numel, BLOCK_ELEMENTS)
        return whole * self._block_bytes(BLOCK_ELEMENTS) + (self._block_bytes(rest) if rest else 0)

    @abstractmethod
    def _block_bytes(self, elements: int) -> int:
        """Bytes that a block of so many elements takes at most."""

    @abstractmethod
    def _sent(self, raw: Bytes, numel: int, limit: float) -> Iterator[tuple[Numbers, Values]]:
        """The elements that a slice of `numel` elements has values for, in parts, each element once.

        Raises `InvalidEncodingError` for bytes that no encoder makes of values up to `limit`.
        """

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """An element that is not sent is off by all of it."""
        return source.abs().double()

    def _check(self, raw: torch.Tensor, numel: int, limit: float) -> None:
        for _ in self._sent(raw.numpy(), numel, limit):
            pass

    def _decode(self, raw: torch.Tensor, target: torch.Tensor) -> None:
        target.zero_()
        values_of = target.numpy()
        for elements, values in self._sent(raw.numpy(), target.numel(), np.inf):
            values_of[elements] = values

    def _decode_add(self, raw: torch.Tensor, accumulator: torch.Tensor, weight: float) -> None:
        values_of, factor = accumulator.numpy(), np.float32(weight)
        for elements, values in self._sent(raw.numpy(), accumulator.numel(), np.inf):
            values_of[elements] += values * factor


def share_of_block(whole: int, numel: int) -> int:
    """How many elements a block of `numel` has of what a whole block has `whole` of; at least one."""
    return whole if numel == BLOCK_ELEMENTS else max(1, round(whole * numel / BLOCK_ELEMENTS))


def blocks_of(numel: int) -> Iterator[tuple[int, int, int]]:
    """The first element, the number of blocks and their length: of parts of whole blocks, then of a short last one."""
    whole, rest = divmod(numel, BLOCK_ELEMENTS)
    for first in range(0, whole, ROWS):
        yield first * BLOCK_ELEMENTS, min(ROWS, whole - first), BLOCK_ELEMENTS
    if rest:
        yield whole * BLOCK_ELEMENTS, 1, rest


def largest_of(rows: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.bool_]:
    """Which `count` elements of each row [rows, elements] are the largest; of equal ones those of lower index."""
    if count == rows.shape[1]:
        return np.ones(rows.shape, np.bool_)
    least = np.partition(rows, -count, axis=1)[:, -count, None]
    chosen = rows >= least
    for row in np.flatnonzero(np.count_nonzero(chosen, axis=1) > count):  # more than one is as large as the least
        larger = rows[row] > least[row]
        equal = np.flatnonzero(rows[row] == least[row])[: count - np.count_nonzero(larger)]
        chosen[row] = larger
        chosen[row, equal] = True
    return chosen


def magnitudes_of(source: torch.Tensor) -> npt.NDArray[np.int32]:
    """Whole numbers in the order of the magnitudes of finite float32 elements: their bits without the sign."""
    return source.numpy().view(np.int32) & np.int32(0x7FFF_FFFF)


# ---- The values of the elements that a sparse codec sends: as float16, or two bits each and two levels for a block.
#
# **float16** clamps to +-65504; what the clamp cuts off stays in the residual, as all that is not sent.
#
# **2bit** sends the sign of each value and whether its magnitude is one of the larger or one of the smaller of its
# block. Each of both halves is decoded as the mean magnitude of its own values, a bfloat16. The cut between them is
# where the squared error is least, which a median misses on heavy tails. There is one codebook for both signs: of
# values that are the largest of their block few lie near 0, so that levels spread over the whole range from - to +
# would fall in between.
#
# With magnitudes of sum S and number n in a half, its error is Q - S**2 / n where the sum of their squares is Q. So
# the best cut is the one with the largest sum of S**2 / n over both halves. Decoded values are cut at the same place
# again.


FLOAT16_MAX: Final = 65504.0
_BFLOAT16_MAX: Final = float(torch.finfo(torch.bfloat16).max)


class KeptValues(ABC):
    """A way to write rows of values; a pure function of each row."""

    @abstractmethod
    def encoded_bytes(self, count: int) -> int:
        """What a row of `count` values takes."""

    @abstractmethod
    def encode(self, rows: Values) -> Bytes:
        """The bytes [rows, encoded_bytes(count)] of `rows` [rows, count], which are finite."""

    @abstractmethod
    def decode(self, encoded: Bytes, count: int, limit: float) -> Values:
        """The rows of `count` values each.

        Raises `InvalidEncodingError` for bytes that no encoder makes of values up to `limit`.
        """

    @abstractmethod
    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """A bound of the error of each element of a block of which the largest are sent, in float64."""


class Float16Values(KeptValues):
    """Each value for itself."""

    def encoded_bytes(self, count: int) -> int:
        """Two for each."""
        return 2 * count

    def encode(self, rows: Values) -> Bytes:
        """The nearest float16 of each."""
        return np.clip(rows, -FLOAT16_MAX, FLOAT16_MAX).astype("<f2", order="C").view(np.uint8)

    def decode(self, encoded: Bytes, count: int, limit: float) -> Values:
        """As they are."""
        rows = np.ascontiguousarray(encoded).view("<f2").astype(np.float32).reshape(-1, count)
        most = float(np.float16(min(limit, FLOAT16_MAX)))
        if not float(np.abs(rows).max(initial=0.0)) <= max(most, limit):  # also true for NaN
            raise InvalidEncodingError(f"a value is no number within +-{limit:g}")
        return rows

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """An element that is not sent is off by all of it."""
        return source.abs().double()


class TwoBitValues(KeptValues):
    """A sign and one of two levels for each value."""

    def encoded_bytes(self, count: int) -> int:
        """Two bits for each, and two levels."""
        return -(-2 * count // 8) + 4

    def encode(self, rows: Values) -> Bytes:
        """Signs, halves and then the levels of each row."""
        magnitudes = np.abs(rows).astype(np.float64)
        ordered = np.sort(magnitudes, axis=1)
        count, sums = rows.shape[1], np.cumsum(ordered, axis=1)
        below = np.arange(count)  # how many are in the lower half
        lower = np.concatenate([np.zeros((len(rows), 1)), sums[:, :-1]], axis=1)
        upper = sums[:, -1:] - lower
        cut = np.argmax(lower**2 / np.maximum(below, 1) + upper**2 / (count - below), axis=1)[:, None]
        first = np.take_along_axis(ordered, cut, axis=1)
        halves = magnitudes >= first
        least = np.take_along_axis(lower, cut, axis=1) / np.maximum(cut, 1)
        most = np.maximum(np.take_along_axis(upper, cut, axis=1) / (count - cut), least)  # not less by its rounding
        levels = torch.from_numpy(np.concatenate([least, most], axis=1)).clamp(max=_BFLOAT16_MAX).bfloat16()
        bits = np.concatenate([rows < 0, halves], axis=1)
        written = levels.view(torch.int16).numpy().astype("<i2").view(np.uint8)
        return np.concatenate([np.packbits(bits, axis=1, bitorder="little"), written], axis=1)

    def decode(self, encoded: Bytes, count: int, limit: float) -> Values:
        """The level of each value with its sign."""
        size = -(-2 * count // 8)
        bits = np.unpackbits(encoded[:, :size], axis=1, bitorder="little")
        written = np.ascontiguousarray(encoded[:, size:]).view("<i2").astype(np.int16)
        levels = torch.from_numpy(written).view(torch.bfloat16).float().numpy()
        most = float(torch.tensor(min(limit, _BFLOAT16_MAX), dtype=torch.float32, device="cpu").bfloat16())
        if not (levels[:, 0] >= 0).all() or not (levels[:, 1] >= levels[:, 0]).all() or not (levels <= most).all():
            raise InvalidEncodingError(f"the levels of a block are no increasing numbers from 0 to {limit:g}")
        if bits[:, 2 * count :].any():
            raise InvalidEncodingError("a block has more values than elements")
        magnitudes = np.where(bits[:, count : 2 * count], levels[:, 1:], levels[:, :1])
        return np.where(bits[:, :count], -magnitudes, magnitudes)

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """A level is no larger than the largest magnitude, but for its rounding."""
        return (source.abs().double().amax() * (1 + 2.0**-8)).expand(source.shape)


KEPT_VALUES: Final[dict[str, KeptValues]] = {"float16": Float16Values(), "2bit": TwoBitValues()}


# ---- Which elements of a block are meant, as Elias and Fano write increasing numbers: 2 to 3 bits above the entropy
# each.
#
# Of `count` numbers below `universe`, each has l = floor(log2(universe / count)) low bits, which are written as they
# are. The rest of number i, its high part h, is a one at bit h + i of a field of count + ceil(universe / 2**l) bits:
# unary, so that the ones come in order, and the zeros between them count the high parts up. Together with the low bits
# that is count * (l + 1) + ceil(universe / 2**l) bits, whichever numbers they are: 64 of 4096 take 64 bytes.
#
# Source: Elias 1974, Fano 1971; "Quasi-succinct indices" (Vigna 2013) has this form of it.


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


# ---- Codecs that send as many elements of a block as there are: `union` for means, `gaussiank` for uploads.
#
# A block of 4096 is how many elements it has values for, in two bytes, their indices and their values as float16; or
# all values, where that takes no more bytes. So a slice takes as many bytes as it needs, and never more than as
# float16 but for the counts.
#
# `union` sends all elements of a mean that are not 0: those that any peer sent. With a share r of the elements from
# each of N peers, elsewhere each, that is 1 - (1 - r)**N of all.
#
# `gaussiank` sends the elements beyond a threshold, which is quicker to find than the largest k where nothing sorts
# fast. It begins with the one that normal values would have and corrects it at most three times:
#
#     |mean| + sigma |quantile(k / 8192)|;    times 1/2 below 2/3 k elements, times 3/2 above 4/3 k of them
#
# How many there are is not certain, so at most 4/3 k of a block are sent, those of lower index; and the largest where
# none is beyond.
#
# Source: "Understanding Top-k Sparsification in Distributed Deep Learning" (Shi et al. 2019).


_COUNT_BYTES: Final = 2
_VALUES: Final = Float16Values()
_CORRECTIONS: Final = 3


class CountedBlocksCodec(SparseCodec):
    """As many elements of each block as a subclass chooses."""

    has_fixed_size = False

    @abstractmethod
    def _most(self, elements: int) -> int:
        """How many of a block of so many elements are sent at most."""

    @abstractmethod
    def _chosen(self, rows: Values) -> npt.NDArray[np.bool_]:
        """Which elements of blocks [blocks, elements] are sent."""

    def _block_bytes(self, elements: int) -> int:
        return _COUNT_BYTES + _body_bytes(self._most(elements), elements)

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:  # noqa: ARG002
        require_magnitude(largest_magnitude(source), limit)
        written, values, at = raw.numpy(), source.numpy(), 0
        for first, blocks, elements in blocks_of(source.numel()):
            rows = values[first : first + blocks * elements].reshape(blocks, elements)
            for row, chosen in zip(rows, self._chosen(rows), strict=True):
                body = _block(row, chosen)
                written[at : at + len(body)] = body
                at += len(body)
        return at

    def _sent(self, raw: Bytes, numel: int, limit: float) -> Iterator[tuple[Numbers, Values]]:
        at = 0
        for first, blocks, elements in blocks_of(numel):
            for begin in range(first, first + blocks * elements, elements):
                if len(raw) < at + _COUNT_BYTES:
                    raise InvalidEncodingError("a block is missing")
                count = int(raw[at]) | int(raw[at + 1]) << 8
                if count > self._most(elements):
                    raise InvalidEncodingError(f"a block has {count} elements; {self._most(elements)} are accepted")
                at, size = at + _COUNT_BYTES, _body_bytes(count, elements)
                if len(raw) < at + size:
                    raise InvalidEncodingError("the bytes end within a block")
                yield _read(raw[at : at + size], count, elements, begin, limit)
                at += size
        if at != len(raw):
            raise InvalidEncodingError(f"{len(raw) - at} bytes follow the last block")


class UnionCodec(CountedBlocksCodec):
    """All elements that are not 0."""

    name = "union"
    needs_residual = False

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """That of float16: half a unit in the last place, and what the clamp cuts off."""
        magnitude = source.abs().double()
        return torch.maximum((magnitude * 2.0**-11).clamp(min=2.0**-25), magnitude - 65504.0)

    def _most(self, elements: int) -> int:
        return elements

    def _chosen(self, rows: Values) -> npt.NDArray[np.bool_]:
        return np.abs(rows) > np.float32(2.0**-25)  # what is nearer to 0 is 0 as float16


class GaussianKCodec(CountedBlocksCodec):
    """The elements of a block of 4096 beyond a threshold that about `k` of normal values are beyond."""

    name = "gaussiank"
    usual_download = "gtopk"
    Settings = UploadSettings

    def __init__(self, settings: UploadSettings) -> None:
        self.settings, self.k = settings, settings.k

    def _most(self, elements: int) -> int:
        return min(elements, 4 * share_of_block(self.k, elements) // 3)

    def _chosen(self, rows: Values) -> npt.NDArray[np.bool_]:
        count = share_of_block(self.k, rows.shape[1])
        threshold = _thresholds(rows, count)
        magnitudes = np.abs(rows)
        for _ in range(_CORRECTIONS):
            found = np.count_nonzero(magnitudes > threshold, axis=1)[:, None]
            factor = np.where(3 * found < 2 * count, 0.5, np.where(3 * found > 4 * count, 1.5, 1.0))
            if (factor == 1.0).all():
                break
            threshold *= factor
        chosen = magnitudes > threshold
        none = ~chosen.any(axis=1)  # as if all were alike: no block may send nothing for ever
        chosen[none] = (magnitudes[none] == magnitudes[none].max(axis=1, keepdims=True)) & (magnitudes[none] > 0)
        for row in np.flatnonzero(np.count_nonzero(chosen, axis=1) > self._most(rows.shape[1])):
            chosen[row, np.flatnonzero(chosen[row])[self._most(rows.shape[1]) :]] = False
        return chosen


def _thresholds(rows: Values, count: int) -> npt.NDArray[np.float64]:
    """Beyond what `count` elements of each row would be if they were normal values: the same on all machines."""
    numel = rows.shape[1]
    wide = rows.astype(np.float64)
    mean = np.cumsum(wide, axis=1)[:, -1:] / numel  # in their order, which a sum need not keep
    variance = np.cumsum((wide - mean) ** 2, axis=1)[:, -1:] / numel
    beyond = -NormalDist().inv_cdf(count / (2 * numel)) if count < numel else 0.0
    return np.asarray(np.abs(mean) + beyond * np.sqrt(variance))


def _body_bytes(count: int, elements: int) -> int:
    """What a block with values for `count` of its elements takes after the count."""
    if count == 0:
        return 0
    return min(increasing(count, elements).encoded_bytes + 2 * count, 2 * elements)


def _block(row: Values, chosen: npt.NDArray[np.bool_]) -> Bytes:
    indices = np.flatnonzero(chosen)
    count, elements = len(indices), len(row)
    head = np.array([count], "<u2").view(np.uint8)
    if count == 0:
        return head
    if _body_bytes(count, elements) == 2 * elements:
        return np.concatenate([head, _VALUES.encode(np.where(chosen, row, np.float32(0)))])
    return np.concatenate([head, increasing(count, elements).encode(indices[None])[0], _VALUES.encode(row[indices])])


def _read(body: Bytes, count: int, elements: int, begin: int, limit: float) -> tuple[Numbers, Values]:
    """The elements of one block that begins with element `begin`, and their values."""
    if count == 0:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    if len(body) == 2 * elements:
        return np.arange(begin, begin + elements), _VALUES.decode(body, elements, limit)[0]
    numbers = increasing(count, elements)
    indices = numbers.decode(body[None, : numbers.encoded_bytes])[0] + begin
    return indices, _VALUES.decode(body[numbers.encoded_bytes :], count, limit)[0]
