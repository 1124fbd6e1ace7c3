"""A codec: blocks of 64 elements as 4-bit integers times one bfloat16 scale each, 0.53 bytes an element."""

import torch

from minga.averaging import FLOAT32_MAX, Codec, InvalidEncodingError, largest_magnitude, require_magnitude

BLOCK, LEVELS = 64, 7
SMALLEST, LARGEST = 2.0**-126, float(torch.tensor(FLOAT32_MAX / LEVELS * (1 - 2.0**-7)).bfloat16())


class Nibble(Codec):
    name, block_elements = "nibble", BLOCK

    def max_encoded_bytes(self, numel):
        return 2 * -(-numel // BLOCK) + -(-numel // 2)

    def max_error(self, source):  # half a step, and what the largest scale cuts off
        return (0.51 * scales_of(rows_of(source)).double()).repeat_interleave(BLOCK)[: source.numel()]

    def _encode(self, source, raw, limit, seed):
        require_magnitude(largest_magnitude(source), limit)
        rows = rows_of(source)
        scales = scales_of(rows)
        levels = (rows / scales.float()[:, None]).round().add(8).to(torch.uint8).view(-1, 2)
        raw[: 2 * len(scales)] = scales.view(torch.uint8)
        pairs = levels[: raw.numel() - 2 * len(scales)]
        raw[2 * len(scales) :] = pairs[:, 0] | pairs[:, 1] << 4
        return raw.numel()

    def _check(self, raw, numel, limit):
        scales, pairs = split(raw, numel)
        fits = float(scales.min()) >= SMALLEST and float(scales.max()) <= float(scales_of(torch.tensor([[limit]])))
        if not fits or not ((pairs & 15 > 0) & (pairs > 15)).all():
            raise InvalidEncodingError("scales or levels that no encoder produces")

    def _decode(self, raw, target):
        scales, pairs = split(raw, target.numel())
        levels = torch.stack([pairs & 15, pairs >> 4], 1).flatten()[: target.numel()]
        torch.mul(levels.float() - 8, scales.repeat_interleave(BLOCK)[: target.numel()], out=target)

    def _decode_add(self, raw, accumulator, weight):
        self._decode(raw, decoded := torch.empty_like(accumulator))
        accumulator.add_(decoded, alpha=weight)


def rows_of(vector):
    return torch.nn.functional.pad(vector, (0, -vector.numel() % BLOCK)).view(-1, BLOCK)


def scales_of(rows):
    return (rows.abs().amax(1) / LEVELS).clamp(SMALLEST, LARGEST).bfloat16()


def split(raw, numel):
    cut = 2 * -(-numel // BLOCK)
    return raw[:cut].clone().view(torch.bfloat16).float(), raw[cut:]
