"""The codec seam: what averaging may ask of any way to turn slices of a float32 vector into bytes.

Bytes of other peers are hostile until checked: `decode` and `decode_add` look at all of them before the first element
is written. The check is one pass (minimum and maximum, which propagate NaN) and is never skipped.
`minga.testing` has the suite that each codec must pass.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Final

import torch

from minga.averaging._wire_tensors import Buffer, bytes_of
from minga.core._errors import NonFiniteError

FLOAT32_MAX: Final = torch.finfo(torch.float32).max
CONTRIBUTION_LIMIT: Final = 2.0**96
"""Largest magnitude that an aggregator accepts: sums with a total weight up to 2**31 cannot overflow float32."""
WEIGHT_LIMIT: Final = 2.0**31


class InvalidEncodingError(ValueError):
    """Bytes are not an acceptable encoding; who sent them is known to the caller, who names the peer."""


def is_finite(tensor: torch.Tensor, limit: float = FLOAT32_MAX) -> bool:
    """Whether no element is NaN or has a magnitude above `limit`; any shape, dtype and device; one pass, no copy."""
    return largest_magnitude(tensor) <= limit


def largest_magnitude(tensor: torch.Tensor) -> float:
    """Return the largest magnitude, 0 for no elements (or none with a number), NaN if there is any NaN."""
    if tensor.numel() == 0 or tensor.is_meta:
        return 0.0
    low, high = torch.aminmax(tensor.detach())
    return float(max(-low.item(), high.item()))  # both are NaN if any element is


class Codec(ABC):
    """One way to turn float32 slices into bytes; see the module for the formats. Instances may be shared by threads.

    Vectors are contiguous 1-D float32 CPU tensors; buffers are contiguous bytes, writable where they are written to
    (read-only sources are copied once), or 1-D uint8 CPU tensors. Of a vector on the device `meta`, which goes with
    hollow bytes, only sizes are checked: it has no numbers.
    """

    name: str
    block_elements: int = 1
    """Slices cut at multiples of this many elements take no extra bytes."""

    @abstractmethod
    def encoded_bytes(self, numel: int) -> int:
        """The exact size of `numel` encoded elements; additive over multiples of `block_elements`."""

    @abstractmethod
    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """Per element of the finite float32 `source`, the documented bound of |decoded - source|, in float64."""

    def encode(self, source: torch.Tensor, target: Buffer, *, limit: float = FLOAT32_MAX) -> None:
        """Write `source` into `target`, which must have exactly `encoded_bytes(source.numel())` bytes.

        Raises `NonFiniteError`, with `target` untouched, if an element is NaN or has a magnitude above `limit`;
        `ValueError` for a wrong kind of tensor or a wrong size.
        """
        _require_vector(source)
        raw = bytes_of(target, writable=True)
        if raw.numel() != self.encoded_bytes(source.numel()):
            raise ValueError(
                f"{source.numel()} elements take {self.encoded_bytes(source.numel())} bytes as {self.name}; "
                f"the target has {raw.numel()}"
            )
        if source.numel() and _has_numbers(source, raw):
            self._encode(source.detach(), raw, limit)

    def decode(self, source: Buffer, target: torch.Tensor, *, limit: float = FLOAT32_MAX) -> None:
        """Write the elements encoded in `source` into `target`.

        Raises `InvalidEncodingError`, with `target` untouched, if `source` has not the size that `target` asks for,
        is not what an encoder can produce, or holds NaN, infinity or a magnitude above `limit`.
        """
        raw = self._checked(source, target, limit)
        if raw.numel() and _has_numbers(target, raw):
            self._decode(raw, target.detach())

    def decode_add(
        self, source: Buffer, accumulator: torch.Tensor, weight: float, *, limit: float = CONTRIBUTION_LIMIT
    ) -> None:
        """Add `weight` times the decoded elements to `accumulator`, in float32.

        Raises as `decode` does, with `accumulator` untouched, and `ValueError` for a weight that is not finite or
        beyond +-2**31.
        """
        if not abs(weight) <= WEIGHT_LIMIT:
            raise ValueError(f"weight {weight} is not a number within +-{WEIGHT_LIMIT:.0f}")
        raw = self._checked(source, accumulator, limit)
        if raw.numel() and _has_numbers(accumulator, raw):
            self._decode_add(raw, accumulator.detach(), weight)

    def _checked(self, source: Buffer, target: torch.Tensor, limit: float) -> torch.Tensor:
        _require_vector(target)
        raw = bytes_of(source, writable=False)
        if raw.numel() != self.encoded_bytes(target.numel()):
            raise InvalidEncodingError(
                f"{raw.numel()} bytes instead of the {self.encoded_bytes(target.numel())} that "
                f"{target.numel()} elements take as {self.name}"
            )
        if raw.numel() and _has_numbers(target, raw):
            self._check(raw, target.numel(), limit)
        return raw

    @abstractmethod
    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float) -> None: ...

    @abstractmethod
    def _check(self, raw: torch.Tensor, numel: int, limit: float) -> None: ...

    @abstractmethod
    def _decode(self, raw: torch.Tensor, target: torch.Tensor) -> None: ...

    @abstractmethod
    def _decode_add(self, raw: torch.Tensor, accumulator: torch.Tensor, weight: float) -> None: ...

    def __repr__(self) -> str:
        return f"<codec {self.name}>"


def _require_vector(tensor: torch.Tensor) -> None:
    here = tensor.device.type in ("cpu", "meta")
    if tensor.dtype != torch.float32 or tensor.dim() != 1 or not tensor.is_contiguous() or not here:
        raise ValueError(
            f"codecs take contiguous 1-D float32 CPU tensors, not {tensor.dtype} {tuple(tensor.shape)} on "
            f"{tensor.device}{'' if tensor.is_contiguous() else ', not contiguous'}"
        )


def _has_numbers(vector: torch.Tensor, raw: torch.Tensor) -> bool:
    """Whether there is anything to compute. Raises `InvalidEncodingError` if only one of both has content."""
    if vector.is_meta != raw.is_meta:
        raise InvalidEncodingError("a vector without numbers goes with bytes without content, and only with them")
    return not vector.is_meta


def require_magnitude(largest: float, limit: float) -> None:
    """Raise `NonFiniteError` if `largest` is NaN or above `limit`."""
    if not largest <= limit:  # also true for NaN
        what = "NaN" if math.isnan(largest) else f"the magnitude {largest:g}"
        raise NonFiniteError(f"the vector holds {what}; at most {limit:g} can be sent")
