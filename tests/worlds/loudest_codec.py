"""A codec that leaves out most: of each sixteen elements it sends the largest."""

from __future__ import annotations

from typing import Final

import torch

from minga.averaging.codecs.interface import Codec, InvalidEncodingError, largest_magnitude, require_magnitude

ENTRY: Final = "tests.worlds.loudest_codec:LoudestCodec"
BLOCK: Final = 16


class LoudestCodec(Codec):
    """For each block a byte, which element is the largest (the first of equals), and that as a float32."""

    name, block_elements, needs_residual = "loudest", BLOCK, True

    def max_encoded_bytes(self, numel: int) -> int:
        """Five for each block begun."""
        return 5 * -(-numel // BLOCK)

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """All of it."""
        return source.double().abs()

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:
        require_magnitude(largest_magnitude(source), limit)
        rows = torch.nn.functional.pad(source, (0, -source.numel() % BLOCK)).view(-1, BLOCK)
        where = rows.abs().argmax(1)
        raw[: len(rows)] = where.to(torch.uint8)
        raw[len(rows) :] = rows.gather(1, where[:, None]).flatten().view(torch.uint8)
        return raw.numel()

    def _check(self, raw: torch.Tensor, numel: int, limit: float) -> None:
        where, values = _split(raw)
        if int(where.max()) >= BLOCK or int(where[-1]) > (numel - 1) % BLOCK:
            raise InvalidEncodingError("there is no such element in a block")
        if not largest_magnitude(values) <= limit:
            raise InvalidEncodingError("a value is too large")

    def _decode(self, raw: torch.Tensor, target: torch.Tensor) -> None:
        target.zero_()
        self._decode_add(raw, target, 1.0)

    def _decode_add(self, raw: torch.Tensor, accumulator: torch.Tensor, weight: float) -> None:
        where, values = _split(raw)
        accumulator[where + BLOCK * torch.arange(len(where))] += weight * values


def _split(raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = raw.numel() // 5
    return raw[:blocks].long(), raw[blocks:].clone().view(torch.float32)
