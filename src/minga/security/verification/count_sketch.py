"""The random directions z on which differences are projected, and lengths with the same bits on every machine.

The directions are expanded from the shared random string. Any distribution with independent entries would do where the
difference is spread over many elements: the projection is then nearly Gaussian. The choice is made for the aggregator
that picks its error by hand, and for parts of millions of elements, which each sender projects in every step: a
multiply-add of each element for each direction is more than a step may cost. So all directions share one *sketch* of
the difference, which costs a single one:

    z[k] = sign[k] · c[bucket[k]]        sketch[b] = Σ of sign[k] · R[k] over the k with bucket[k] = b

A part is cut into blocks of `BLOCK` elements. A random sign goes with each element, from a table of random signs that
is entered at a random place for each block, and turned round as a whole for every other one. The elements of a block go
to different buckets, one after the other from a random bucket on; two elements of different blocks meet in one with
probability 1/`BLOCK`. This is a count sketch (Charikar, Chen, Farach-Colton 2002): E‖sketch‖² = ‖R‖², and as terms of
fourth order pair up only where two elements meet,

    Var ‖sketch‖² ≤ (2 / BLOCK + 4 / BLOCK) ‖R‖⁴,    so    P(‖sketch‖² < ‖R‖² / 2) ≤ 24 / BLOCK = 0.15 %.

Each direction has its own coefficients c of the buckets, **odd integers from -127 to 127** out of one byte each: they
are exact in every float format and come straight from a stream of bytes, hence are the same everywhere. Signs would
need fewer bits, but errors on two equal elements would vanish whenever their signs differ; with odd integers an error
on few elements, if it is well above the tolerance, escapes a direction with a probability of at most about 1/128,
however it was picked, and all of them with its power. For a given sketch, P(|<z, R>| > κ‖sketch‖) ≤ 2 exp(-κ²/2) once
z is scaled to unit variance, the bound that holds for signs and Gaussians too: the uniform distribution on equally
spaced points is strictly sub-Gaussian, since sinh(128t) / (128 sinh t) ≤ exp((128² - 1) t² / 6).

One direction leaves a small error undetected with a probability of some percent, q of them with its q-th power, and
the sketch with 0.15 % at most. In parts of a single block no elements meet, and directions are independent in all
entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from minga.security.randomness.coin import derive, expand
from minga.security.robust.rows import ordered_sum

DEFAULT_DIRECTIONS: Final = 3
MAX_DIRECTIONS: Final = 64
BLOCK: Final = 1 << 14
"""Elements of a block; part of the definition. Some of these in float64 stay in the cache of one core."""
ENTRY_DEVIATION: Final = math.sqrt((128**2 - 1) / 3)
"""Standard deviation of an entry: claims are divided by it."""

_WORD: Final = "<u4"
_PLACES: Final = BLOCK**2


class Block(NamedTuple):
    """Elements `part`, their signs (float32, 1 or -1) but for the common one, `turn`, and their first bucket."""

    part: slice
    signs: npt.NDArray[np.float32]
    turn: int
    bucket: int


@dataclass(frozen=True, slots=True)
class Directions:
    """`count` independent directions for the part of a vector that begins at its element `start`.

    `randomness`: the 32 bytes that the members made together, after the results were committed to.
    Raises `ValueError` for a count outside 1 to `MAX_DIRECTIONS` or a negative start.
    """

    randomness: bytes
    count: int = DEFAULT_DIRECTIONS
    start: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_DIRECTIONS or self.start < 0:
            raise ValueError(
                f"{self.count} directions from element {self.start}: "
                f"1 to {MAX_DIRECTIONS} are possible, from element 0 or later"
            )


class PartSketch:
    """How one part of `numel` elements is sketched, and what its directions make of a sketch."""

    def __init__(self, directions: Directions, numel: int) -> None:
        self.numel = numel
        key = derive(directions.randomness, "sketch", directions.start)
        blocks = -(-numel // BLOCK)
        self._is_long = blocks > 1
        self.width = 2 * BLOCK if self._is_long else numel
        """Buckets."""
        self._words = np.frombuffer(expand(key, 0, 4 * blocks), _WORD).tolist() if self._is_long else [0] * blocks
        self._signs = self._table(derive(key, "signs"))
        self.coefficients = self._coefficients(key, directions.count)
        """int8 [directions, buckets]."""

    def blocks(self) -> Iterator[Block]:
        """All blocks in their order."""
        signs, numel = self._signs, self.numel
        for start, word in zip(range(0, numel, BLOCK), self._words, strict=True):
            stop = min(start + BLOCK, numel)
            place, bucket, turn = word % BLOCK, word // BLOCK % BLOCK, word // _PLACES % 2
            yield Block(slice(start, stop), signs[place : place + stop - start], 1 - 2 * turn, bucket)

    def _table(self, key: bytes) -> npt.NDArray[np.float32]:
        length = 2 * BLOCK if self._is_long else self.numel
        bits = np.unpackbits(np.frombuffer(expand(key, 0, -(-length // 8)), np.uint8), count=length)
        return np.float32(1.0) - np.float32(2.0) * bits

    def _coefficients(self, key: bytes, count: int) -> npt.NDArray[np.int8]:
        streams = b"".join(expand(derive(key, "projection", index), 0, self.width) for index in range(count))
        return (np.frombuffer(streams, np.int8) | np.int8(1)).reshape(count, self.width)


# ---- Lengths of vectors, which come out with the same bits on every machine.
#
# Libraries sum in whatever order suits the processor, so two machines differ in the last bits. Here the order is
# fixed: a vector is taken in blocks of so many elements as there are lanes, the squares of each block are added to the
# lanes as a whole, one IEEE 754 addition for each lane, and in the end the lanes by `ordered_sum`. Memory is needed for
# one block.


LANES: Final = 4096
"""Elements of a block; part of the definition of every sum."""

_NORM_LANES: Final = 1 << 14

Vector = npt.NDArray[np.floating]


def blocks(numel: int) -> Iterator[slice]:
    """The blocks of a vector of `numel` elements, the last may be shorter."""
    for start in range(0, numel, LANES):
        yield slice(start, min(start + LANES, numel))


def difference(first: Vector, second: Vector) -> npt.NDArray[np.float64]:
    """`first` - `second`, each taken to float64 before."""
    return np.subtract(first, second, dtype=np.float64)


def length(pieces: Iterable[npt.NDArray[np.float64]]) -> float:
    """The Euclidean norm of a vector that comes by its `blocks`."""
    lanes = np.zeros(LANES)
    for piece in pieces:
        lanes[: len(piece)] += np.square(piece)
    return math.sqrt(ordered_sum(lanes))


def norm(vector: Vector) -> float:
    """The Euclidean norm of a 1-D array, whose elements are rounded to float32: their squares are exact in float64."""
    values = np.ascontiguousarray(vector, np.float32)
    lanes, wide = (np.zeros(min(len(values), _NORM_LANES)) for _ in range(2))
    torch_lanes, torch_wide = torch.from_numpy(lanes), torch.from_numpy(wide)  # only torch squares and adds in one go
    for start in range(0, len(values), _NORM_LANES):
        block = values[start : start + _NORM_LANES]  # a view costs less than one of torch's
        if len(block) < len(wide):
            wide, torch_lanes, torch_wide = wide[: len(block)], torch_lanes[: len(block)], torch_wide[: len(block)]
        np.copyto(wide, block)
        torch_lanes.addcmul_(torch_wide, torch_wide)
    return math.sqrt(ordered_sum(lanes))


def distance(first: Vector, second: Vector) -> float:
    """The Euclidean norm of the difference of two 1-D arrays; raises `ValueError` if their lengths differ."""
    if first.shape != second.shape:
        raise ValueError(f"arrays of {len(first)} and {len(second)} elements have no difference")
    return length(difference(first[block], second[block]) for block in blocks(len(first)))


# ---- Rounded lengths of vectors, the same on every machine although none of them adds in a fixed order.
#
# A sum in a fixed order takes several passes over the memory, see above; a library's own takes one, but its last
# bits depend on the processor. Where only the order of magnitude matters, these can be rounded away: a sum of squares
# is off by a bounded share whatever the order is. If the least and the largest number that it may stand for are
# rounded to the same one, then every machine finds that one. If not, which happens with two vectors of a hundred, all
# of them see that, or come to the same without, and who sees it adds up in a fixed order.


LENGTH_STEP: Final = 2.0**-8
"""A length is rounded down by less than this share of it."""
SQUARES_ERROR: Final = 2.0**-14
"""Share by which `squares` is off at most. A row of n elements in single precision gives (n + 3) 2^-24 in any order."""

_ROW: Final = 1 << 8
_MANTISSA: Final = 2.0 / LENGTH_STEP
_LEAST_SQUARE: Final = 2.0**-110
"""Below it on average, squares may have been lost to the range of float32."""


def squares(vector: torch.Tensor) -> float:
    """About the sum of the squares of a 1-D float32 vector, see `SQUARES_ERROR`; not finite where an element is not, or
    one is larger than 2^64.
    """
    whole = len(vector) // _ROW * _ROW
    rows = torch.linalg.vector_norm(vector[:whole].view(-1, _ROW), dim=1).double()
    return float(torch.dot(rows, rows)) + float(torch.linalg.vector_norm(vector[whole:])) ** 2


def rounded_length(vector: torch.Tensor, about: float | None = None) -> float:
    """The Euclidean norm of a 1-D float32 vector, in the same digits everywhere: less than `LENGTH_STEP` of it too
    small. `about`, the sum of `squares` over its pieces, may be known already.
    """
    if about is None:
        about = squares(vector)
    if len(vector) * _LEAST_SQUARE <= about < math.inf:
        least = _rounded(math.sqrt(about * (1.0 - SQUARES_ERROR)))
        if least == _rounded(math.sqrt(about * (1.0 + SQUARES_ERROR))):
            return least
    return _rounded(norm(vector.numpy()))


def _rounded(length: float) -> float:
    if not math.isfinite(length):
        return length
    mantissa, exponent = math.frexp(length)
    return math.ldexp(math.floor(mantissa * _MANTISSA) / _MANTISSA, exponent)
