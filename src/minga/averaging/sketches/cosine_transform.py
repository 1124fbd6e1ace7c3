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

import torch

SIZE: Final = 64

_PI: Final = Decimal("3.14159265358979323846264338327950288419716939937510")


def to_coefficients(numbers: torch.Tensor) -> torch.Tensor:
    """The transforms of the columns of `numbers`, float64 [64, m]."""
    columns = numbers
    for size in _HALVINGS:
        first, last = columns[: size // 2], columns[size // 2 :].flip(0)
        columns = torch.cat([first + last, (first - last) * _halved_secants(size)], 1)
    for size in reversed(_HALVINGS):
        even, odd = columns.chunk(2, 1)
        columns = even.new_empty(size, even.shape[1])
        columns[0::2] = even
        columns[1::2] = odd
        columns[1:-1:2] += odd[1:]
    return columns.mul_(_scales())


def to_numbers(coefficients: torch.Tensor) -> torch.Tensor:
    """The columns, float64 [64, m], whose transforms are those of `coefficients`."""
    columns = coefficients * _scales()
    for _ in _HALVINGS:
        even, odd = columns[0::2], columns[1::2].clone()
        odd[1:] += columns[1:-1:2]
        columns = torch.cat([even, odd], 1)
    for size in reversed(_HALVINGS):
        sums, differences = columns.chunk(2, 1)
        differences = differences * _halved_secants(size)
        columns = torch.cat([sums + differences, (sums - differences).flip(0)])
    return columns


_HALVINGS: Final = (64, 32, 16, 8, 4, 2)


@cache
def _halved_secants(size: int) -> torch.Tensor:
    """1 / (2 cos((2 i + 1) pi / (2 size))) for each i below size / 2, float64 [size / 2, 1]."""
    values = [1.0 / (2.0 * _cosine(2 * i + 1, 2 * size)) for i in range(size // 2)]
    return torch.tensor(values, dtype=torch.float64, device="cpu")[:, None]


@cache
def _scales() -> torch.Tensor:
    """What makes the basis orthonormal, float64 [64, 1]."""
    values = [math.sqrt(1 / SIZE)] + [math.sqrt(2 / SIZE)] * (SIZE - 1)
    return torch.tensor(values, dtype=torch.float64, device="cpu")[:, None]


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
