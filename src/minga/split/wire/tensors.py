"""Tensors as checked headers and encoded bytes, and back.

What arrives is hostile until checked: `check` looks at headers before any memory is reserved for what they announce,
and `decode` at every byte before a tensor is made of it. NaN and infinity never pass, in either direction.

Codecs know float32. Other floating-point tensors are rounded to it on the way, and have their own type again where they
arrive; whole numbers and truth values travel exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

import torch
from blake3 import blake3

from minga.averaging.codecs.interface import InvalidEncodingError
from minga.averaging.codecs.layout import codec_of, returns
from minga.averaging.codecs.registry import canonical_codec
from minga.averaging.codecs.tensor_bytes import as_bytes, bytes_of, load
from minga.core.errors import ConfigurationError
from minga.split.wire.messages import MAX_AXES, MAX_TENSORS, BatchReply, DtypeName, TensorHeader

FLOATING: Final = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
WHOLE: Final = {
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
_NAMES: Final = {dtype: name for name, dtype in (FLOATING | WHOLE).items()}

Body = bytes | bytearray | memoryview


class InvalidTensorsError(ValueError):
    """Headers or bytes are not acceptable; who sent them is known to the caller, who names the peer."""


@dataclass(frozen=True)
class EncodedTensors:
    """Tensors as they travel: a header and a body for each."""

    headers: tuple[TensorHeader, ...] = ()
    bodies: tuple[Body, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The bytes of all bodies."""
        return sum(header.size_bytes for header in self.headers)


@dataclass(frozen=True)
class EncodedReply:
    """An answer as it travels."""

    message: BatchReply
    bodies: tuple[Body, ...] = ()

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, roughly."""
        return sum(each.size_bytes for each in self.message.tensors) + 256

    @property
    def encoded(self) -> EncodedTensors:
        """Its tensors."""
        return EncodedTensors(self.message.tensors, self.bodies)


class TensorWire:
    """How tensors travel in one direction: by a codec, and at most `max_elements` elements in one message.

    Raises `ConfigurationError` for a codec that cannot be made here, or one whose senders take something back.
    """

    def __init__(self, choice: str, max_elements: int) -> None:
        self.choice, self.max_elements = canonical_codec(choice), max_elements
        if returns(self.choice):
            raise ConfigurationError(f'the codec "{self.choice}" leaves out what senders take back: it is for means')

    def encode(self, tensors: Sequence[torch.Tensor], label: str) -> EncodedTensors:
        """The tensors, of any device and layout; what a codec draws follows from the `label`.

        Raises `NonFiniteError` for NaN and infinity, `ConfigurationError` for what no message can carry.
        """
        headers, bodies = [], []
        for index, tensor in enumerate(tensors):
            body = self._encode(tensor.detach(), f"{label} {index}")
            shape = tuple(tensor.shape)
            headers.append(TensorHeader(_name_of(tensor), shape, memoryview(body).nbytes))
            bodies.append(body)
        encoded = EncodedTensors(tuple(headers), tuple(bodies))
        try:
            self.check(encoded.headers)
        except InvalidTensorsError as error:
            raise ConfigurationError(f"this batch cannot be sent: {error}") from error
        return encoded

    def check(self, headers: Sequence[TensorHeader]) -> None:
        """Raise `InvalidTensorsError` unless such tensors are within the limits, and take so many bytes."""
        if len(headers) > MAX_TENSORS or any(len(header.shape) > MAX_AXES for header in headers):
            raise InvalidTensorsError(f"more than {MAX_TENSORS} tensors, or a tensor of more than {MAX_AXES} axes")
        numels = [math.prod(header.shape) for header in headers]
        if sum(numels) > self.max_elements:
            raise InvalidTensorsError(
                f"{sum(numels)} elements in one message, where split.max_elements = {self.max_elements}"
            )
        for header, numel in zip(headers, numels, strict=True):
            if not numel:
                raise InvalidTensorsError("a tensor without elements")
            self._check_size(header, numel)

    def decode(self, encoded: EncodedTensors) -> tuple[torch.Tensor, ...]:
        """The tensors, in CPU memory; their headers have passed `check`.

        Raises `InvalidTensorsError` unless the bytes are what an encoder can produce, and finite.
        """
        pairs = zip(encoded.headers, encoded.bodies, strict=True)
        return tuple(self._decode(header, body) for header, body in pairs)

    def _encode(self, tensor: torch.Tensor, label: str) -> Body:
        if not tensor.is_floating_point():
            return as_bytes(tensor.cpu().contiguous().flatten().clone().view(torch.uint8))
        flat = tensor.to("cpu", torch.float32).contiguous().flatten()
        codec = codec_of(self.choice, flat.numel())
        body = bytearray(codec.max_encoded_bytes(flat.numel()))
        seed = int.from_bytes(blake3(label.encode("utf-8")).digest(length=8), "little")
        return memoryview(body)[: codec.encode(flat, body, seed=seed)]

    def _check_size(self, header: TensorHeader, numel: int) -> None:
        if header.dtype in WHOLE:
            most, is_fixed = numel * WHOLE[header.dtype].itemsize, True
        else:
            codec = codec_of(self.choice, numel)
            most, is_fixed = codec.max_encoded_bytes(numel), codec.has_fixed_size
        if header.size_bytes > most or (is_fixed and header.size_bytes != most):
            raise InvalidTensorsError(
                f"{header.size_bytes} bytes for {numel} elements of {header.dtype}, which take {most}"
            )

    def _decode(self, header: TensorHeader, body: Body) -> torch.Tensor:
        numel = math.prod(header.shape)
        if memoryview(body).nbytes != header.size_bytes:
            raise InvalidTensorsError(f"{memoryview(body).nbytes} bytes where {header.size_bytes} were announced")
        if header.dtype in WHOLE:
            return _whole(bytes_of(body, writable=False), WHOLE[header.dtype]).view(header.shape)
        values = torch.empty(numel, dtype=torch.float32)
        try:
            codec_of(self.choice, numel).decode(body, values)
        except InvalidEncodingError as error:
            raise InvalidTensorsError(str(error)) from error
        tensor = values.to(FLOATING[header.dtype]).view(header.shape)
        if not bool(torch.isfinite(tensor).all()):
            raise InvalidTensorsError(f"a value that is not finite as {header.dtype}")
        return tensor


def _whole(raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype != torch.bool:
        return load(raw, dtype).clone()
    if int(raw.max()) > 1:
        raise InvalidTensorsError("a truth value that is neither 0 nor 1")
    return raw != 0


def _name_of(tensor: torch.Tensor) -> DtypeName:
    if tensor.dtype not in _NAMES:
        known = ", ".join(_NAMES.values())
        raise ConfigurationError(f"tensors of {tensor.dtype} cannot be sent; convert them to one of {known}")
    return cast(DtypeName, _NAMES[tensor.dtype])
