"""A codec whose encodings differ in length: which elements are not zero, and those."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from minga.averaging.codecs.interface import Codec, InvalidEncodingError, largest_magnitude, require_magnitude

ENTRY: Final = "tests.worlds.nonzero_codec:NonzeroCodec"


class NonzeroCodec(Codec):
    """One bit for each element, and a float32 for each that is not zero."""

    name, block_elements, has_fixed_size = "nonzero", 8, False

    def max_encoded_bytes(self, numel: int) -> int:
        """As if no element were zero."""
        return -(-numel // 8) + 4 * numel

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """It is exact."""
        return torch.zeros_like(source, dtype=torch.float64)

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:
        require_magnitude(largest_magnitude(source), limit)
        values = source.numpy()
        body = np.packbits(values != 0).tobytes() + values[values != 0].astype("<f4").tobytes()
        raw[: len(body)] = torch.frombuffer(bytearray(body), dtype=torch.uint8)
        return len(body)

    def _check(self, raw: torch.Tensor, numel: int, limit: float) -> None:
        bits, values = self._split(raw, numel)
        if len(bits) < numel or bits[numel:].any() or len(values) != 4 * bits.sum():
            raise InvalidEncodingError("there are not as many values as bits")
        numbers = np.frombuffer(values, "<f4")
        if not (np.abs(numbers) <= limit).all() or (numbers == 0).any():
            raise InvalidEncodingError("a value is 0 or too large")

    def _decode(self, raw: torch.Tensor, target: torch.Tensor) -> None:
        target.zero_()
        self._decode_add(raw, target, 1.0)

    def _decode_add(self, raw: torch.Tensor, accumulator: torch.Tensor, weight: float) -> None:
        bits, values = self._split(raw, accumulator.numel())
        where = torch.from_numpy(bits[: accumulator.numel()].astype(bool))
        numbers = torch.from_numpy(np.frombuffer(values, "<f4").astype(np.float32))
        accumulator[where] += weight * numbers

    def _split(self, raw: torch.Tensor, numel: int) -> tuple[np.ndarray, bytes]:
        data, count = raw.numpy().tobytes(), -(-numel // 8)
        return np.unpackbits(np.frombuffer(data[:count], np.uint8)), data[count:]
