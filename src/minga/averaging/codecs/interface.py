"""The codec seam: what averaging may ask of any way to turn slices of a float32 vector into bytes.

Bytes of other peers are hostile until checked: `decode` and `decode_add` look at all of them before the first element
is written. The check is one pass (minimum and maximum, which propagate NaN) and is never skipped.
How many bytes a slice takes at most is known beforehand, so a receiver has the memory before the first byte comes; how
many came is what the frame says. `minga.testing` has the suite that each codec must pass, and the entry points
"minga.codecs" of installed packages bring further ones (`registry.py`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final

import torch

from minga.averaging.codecs.tensor_bytes import Buffer, bytes_of
from minga.core.errors import NonFiniteError
from minga.core.spec.choices import spelled
from minga.core.spec.fields import Section
from minga.network.meta_bytes import is_meta

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
    """One way to turn float32 slices into bytes: a pure function, the same on all machines. Threads share instances.

    Vectors are contiguous 1-D float32 CPU tensors; buffers are contiguous bytes, writable where they are written to
    (read-only sources are copied once), or 1-D uint8 CPU tensors. Of a vector on the device `meta`, which goes with
    meta bytes, only sizes are checked: it has no numbers.
    """

    Settings: ClassVar[type[Section]] = Section
    """What a run may write in the parentheses of its choice, all with defaults; none here. A class with settings takes
    an instance of them as its only argument, and keeps it as `settings`."""
    settings: Section = Section()
    name: str
    version: int = 1
    """Raised when the same name begins to stand for other bytes: peers with another version are refused."""
    block_elements: int = 1
    """Slices cut at multiples of this many elements take no extra bytes."""
    is_identity: bool = False
    """Whether the bytes are the float32 values themselves: then no memory is needed to encode into."""
    has_fixed_size: bool = True
    """Whether all slices of one length take exactly `max_encoded_bytes`."""
    draws: bool = False
    """Whether the bytes depend on the seed. Runs with checks refuse that: members make the bytes again from values."""
    differs_by_peer: bool = False
    """Whether each peer has seeds of its own, so that their errors are independent; see `seeds.py`."""
    needs_residual: bool = False
    """Whether what it leaves out has to be kept for the next round, since it would leave out the same again and again.
    Such a codec is for uploads only: what reduces has no residual. `max_error` may then be as large as the element."""
    is_sparse: bool = False
    """Whether most decoded elements are exactly 0."""
    returns: bool = False
    """Whether senders take back what they sent to a mean that travels by this codec, where it decodes to exactly 0.
    Such a codec is for downloads: with it a mean leaves out what it has no room for, and no mass is lost."""
    usual_download: str | None = None
    """How means of what it sends travel where a run says nothing; None is by itself."""
    fewest_elements: int = 1
    """Tensors of fewer elements travel as float16: of so few it would send too little."""

    @property
    def of_sites(self) -> Codec:
        """How the mean of a site travels on to the root where means travel by this codec: one that returns nothing."""
        return self

    @property
    def choice(self) -> str:
        """The canonical spelling of this codec with its settings."""
        return spelled(self.name, self.settings)

    @abstractmethod
    def max_encoded_bytes(self, numel: int) -> int:
        """What `numel` encoded elements take at most; additive over multiples of `block_elements`."""

    @abstractmethod
    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """Per element of the finite float32 `source`, the documented bound of |decoded - source|, in float64."""

    def delta(self, numel: int) -> float | None:  # noqa: ARG002
        """The constant with E |decoded - x|**2 <= (1 - 1 / delta) |x|**2 for all slices x of at most `numel` elements,
        but for what magnitudes below 2**-120 add; None if there is none. Source: class B3 of Beznosikov et al. 2020.
        """
        return None

    def zeta(self, numel: int) -> float | None:  # noqa: ARG002
        """The constant with E decoded = x and E |decoded|**2 <= zeta |x|**2, over all seeds; None if it has a bias."""
        return None

    def encode(self, source: torch.Tensor, target: Buffer, *, seed: int = 0, limit: float = FLOAT32_MAX) -> int:
        """Write `source` to the beginning of `target`, which has exactly `max_encoded_bytes(source.numel())` bytes.

        What a codec draws is a function of `seed`, a number of 64 bits; decoding needs none. Returns how many bytes it
        took. Raises `NonFiniteError`, with `target` untouched, if an element is NaN or has a magnitude above `limit`;
        `ValueError` for a wrong kind of tensor or a wrong size.
        """
        _require_vector(source)
        if source.is_meta and _is_meta_of(target, self.max_encoded_bytes(source.numel())):
            return self.max_encoded_bytes(source.numel())
        raw = bytes_of(target, writable=True)
        if raw.numel() != self.max_encoded_bytes(source.numel()):
            raise ValueError(
                f"{source.numel()} elements take {self.max_encoded_bytes(source.numel())} bytes as {self.choice}; "
                f"the target has {raw.numel()}"
            )
        if source.numel() and _has_numbers(source, raw):
            return self._encode(source.detach(), raw, limit, seed)
        return raw.numel()

    def decode(self, source: Buffer, target: torch.Tensor, *, limit: float = FLOAT32_MAX) -> None:
        """Write the elements encoded in `source` into `target`.

        Raises `InvalidEncodingError`, with `target` untouched, if `source` has not a size that `target` allows,
        is not what an encoder can produce, or holds NaN, infinity or a magnitude above `limit`.
        """
        raw = self._checked(source, target, limit)
        if raw is not None and raw.numel() and _has_numbers(target, raw):
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
        if raw is not None and raw.numel() and _has_numbers(accumulator, raw):
            self._decode_add(raw, accumulator.detach(), weight)

    def _checked(self, source: Buffer, target: torch.Tensor, limit: float) -> torch.Tensor | None:
        """The bytes of a valid encoding; None of one without content."""
        _require_vector(target)
        most = self.max_encoded_bytes(target.numel())
        if target.is_meta and _is_meta_of(source, most):
            return None
        raw = bytes_of(source, writable=False)
        if raw.numel() > most or (raw.numel() != most and (self.has_fixed_size or not raw.numel())):
            words = "instead of the" if self.has_fixed_size else "where there must be some, and at most the"
            raise InvalidEncodingError(
                f"{raw.numel()} bytes {words} {most} that {target.numel()} elements take as {self.choice}"
            )
        if raw.numel() and _has_numbers(target, raw):
            self._check(raw, target.numel(), limit)
        return raw

    @abstractmethod
    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int: ...

    @abstractmethod
    def _check(self, raw: torch.Tensor, numel: int, limit: float) -> None: ...

    @abstractmethod
    def _decode(self, raw: torch.Tensor, target: torch.Tensor) -> None: ...

    @abstractmethod
    def _decode_add(self, raw: torch.Tensor, accumulator: torch.Tensor, weight: float) -> None: ...

    def __repr__(self) -> str:
        return f"<codec {self.choice}>"


@dataclass(frozen=True, slots=True)
class CodecPair:
    """How elements travel to the member that reduces them, and how their mean travels back."""

    upload: Codec
    download: Codec

    @property
    def relay(self) -> Codec:
        """How the mean of a site travels on to the root: a relay has no residual that it could keep."""
        return self.download.of_sites if self.upload.needs_residual else self.upload

    @property
    def encodes_own(self) -> bool:
        """Whether the member that reduces a chunk counts its own as it would have sent it, and not as it is.

        Whole, it would be exact; but the mean would have a value wherever that member has one, which a codec for the
        means of sparse vectors has no room for.
        """
        return self.upload.is_sparse and self.download.is_sparse


def _require_vector(tensor: torch.Tensor) -> None:
    here = tensor.is_cpu or tensor.is_meta
    if tensor.dtype != torch.float32 or tensor.dim() != 1 or not tensor.is_contiguous() or not here:
        raise ValueError(
            f"codecs take contiguous 1-D float32 CPU tensors, not {tensor.dtype} {tuple(tensor.shape)} on "
            f"{tensor.device}{'' if tensor.is_contiguous() else ', not contiguous'}"
        )


def _is_meta_of(buffer: Buffer, size: int) -> bool:
    """Whether a buffer is `size` bytes without content: so much is seen without a tensor for it."""
    return isinstance(buffer, memoryview) and is_meta(buffer) and len(buffer) == size


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
