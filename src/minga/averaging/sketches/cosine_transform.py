"""The orthonormal discrete cosine transform of 64 numbers (DCT-II), equal to the last bit on all machines.

Theory of operation. Lee's algorithm halves a transform of n numbers: even coefficients are the transform of the sums of
opposite numbers, odd ones follow from the transform of their differences, each divided by 2 cos((2 i + 1) pi / 2 n).
Six halvings take 6 additions and 3 multiplications a number, where the matrix takes 64 of each. All are elementwise
operations in float64, one a call, which IEEE 754 defines to the last bit; a product of matrices would be added up in an
order that the machine chooses. The cosines are computed with decimals, because libraries of mathematics differ in the
last bit. The inverse is the transpose of each step, in the reverse order.

Source: B. G. Lee, "A New Algorithm to Compute the Discrete Cosine Transform" (1984).
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

SIZE: Final = 64

Columns = npt.NDArray[np.float64]

_PI: Final = Decimal("3.14159265358979323846264338327950288419716939937510")
_HALVINGS: Final = (64, 32, 16, 8, 4, 2)


def to_coefficients(numbers: Columns) -> Columns:
    """The transforms of the columns of `numbers`, contiguous float64 [64, m], which are used up."""
    whole, room = numbers, np.empty_like(numbers)
    for size in _HALVINGS:
        half, width = size // 2, whole.shape[1]
        parts = room.reshape(half, 2 * width)
        first, last = whole[:half], whole[: half - 1 : -1]
        np.add(first, last, out=parts[:, :width])
        np.subtract(first, last, out=parts[:, width:])
        parts[:, width:] *= _halved_secants(size)
        whole, room = parts, whole
    for size in reversed(_HALVINGS):
        width = whole.shape[1] // 2
        even, odd = whole[:, :width], whole[:, width:]
        merged = room.reshape(size, width)
        merged[0::2] = even
        merged[-1] = odd[-1]
        np.add(odd[:-1], odd[1:], out=merged[1:-1:2])
        whole, room = merged, whole
    whole *= _scales()
    return whole


def to_numbers(coefficients: Columns) -> Columns:
    """The columns, float64 [64, m], with these contiguous `coefficients`, which are used up."""
    whole, room = coefficients, np.empty_like(coefficients)
    whole *= _scales()
    for size in _HALVINGS:
        width = whole.shape[1]
        parts = room.reshape(size // 2, 2 * width)
        parts[:, :width] = whole[0::2]
        parts[0, width:] = whole[1]
        np.add(whole[1:-2:2], whole[3::2], out=parts[1:, width:])
        whole, room = parts, whole
    for size in reversed(_HALVINGS):
        half, width = size // 2, whole.shape[1] // 2
        sums, differences = whole[:, :width], whole[:, width:]
        differences *= _halved_secants(size)
        merged = room.reshape(size, width)
        np.add(sums, differences, out=merged[:half])
        np.subtract(sums, differences, out=merged[: half - 1 : -1])
        whole, room = merged, whole
    return whole


@cache
def _halved_secants(size: int) -> Columns:
    """1 / (2 cos((2 i + 1) pi / (2 size))) for each i below size / 2, float64 [size / 2, 1]."""
    return np.array([[1.0 / (2.0 * _cosine(2 * i + 1, 2 * size))] for i in range(size // 2)])


@cache
def _scales() -> Columns:
    """What makes the basis orthonormal, float64 [64, 1]."""
    return np.array([[math.sqrt(1 / SIZE)]] + [[math.sqrt(2 / SIZE)]] * (SIZE - 1))


def _cosine(part: int, whole: int) -> float:
    """cos(pi part / whole), for an angle below pi / 2, rounded once: the sum of its Taylor series."""
    with localcontext(prec=50):
        square = (_PI * part / whole) ** 2
        term, total, number = Decimal(1), Decimal(1), 0
        while abs(term) > Decimal("1e-45"):
            number += 2
            term *= -square / (number * (number - 1))
            total += term
        return float(total)
