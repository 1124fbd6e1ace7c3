"""How long a vector is, in few digits, which are the same on every machine although none of them adds in a fixed order.

A sum in a fixed order takes several passes over the memory, see `exact_sum`; a library's own takes one, but its last
bits depend on the processor. Where only the order of magnitude matters, these can be rounded away: a sum of squares is
off by a bounded share whatever the order is. If the least and the largest number that it may stand for are rounded to
the same one, then every machine finds that one. If not, which happens with two vectors of a hundred, all of them see
that, or come to the same without, and who sees it adds up in a fixed order.
"""

from __future__ import annotations

import math
from typing import Final

import torch

from minga.security.verification.exact_sum import norm

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
