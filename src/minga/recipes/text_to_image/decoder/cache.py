"""The decoder one image token at a time: what earlier positions left behind is kept, not computed again.

Each layer keeps keys and values of the text and of as many image tokens as its mask can reach: a row, a picture, or
two rows and a bit. Token shift needs the normed inputs of the last S image tokens, half of their channels. Slots are
used in turns: image token j is in slot j mod capacity.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from minga.recipes.text_to_image.decoder.layers import REACH, Around, shift_tokens
from minga.recipes.text_to_image.decoder.model import TextToImageDecoder
from minga.recipes.text_to_image.decoder.shape import Attends, DecoderShape


def capacity(shape: DecoderShape, attends: Attends) -> int:
    """Image tokens that a layer has to keep, the present one included."""
    if attends == "row":
        return shape.grid
    return shape.image_length if attends == "column" else REACH * shape.grid + REACH + 1


class _Shift:
    """The inputs of one sub-layer that later ones take channels from."""

    def __init__(self, shape: DecoderShape, like: Tensor) -> None:
        self._grid, self._quarter = shape.grid, shape.width // 4
        self._slots = like.new_zeros(len(like), shape.grid, 2 * self._quarter)

    def shift(self, x: Tensor, place: int) -> Tensor:
        """`x` [n, 1, width] of image token `place`, shifted; what it leaves for others is kept."""
        slot, quarter = place % self._grid, self._quarter
        above = self._slots[:, slot : slot + 1, :quarter].clone()  # zero in the first row
        left = self._slots[:, slot - 1 : slot, quarter:] if slot else torch.zeros_like(above)
        shifted = torch.cat([above, left, x[..., 2 * quarter :]], dim=-1)
        self._slots[:, slot] = x[:, 0, : 2 * quarter]
        return shifted


class _Memory:
    """Keys and values of one layer."""

    def __init__(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        self._prefix, self._capacity = keys.shape[2], capacity
        self.keys, self.values = (functional.pad(each, (0, 0, 0, capacity)) for each in (keys, values))

    def put(self, key: Tensor, value: Tensor, place: int) -> None:
        """Keep those of image token `place`, each [n, heads, 1, head width]."""
        slot = self._prefix + place % self._capacity
        self.keys[:, :, slot], self.values[:, :, slot] = key[:, :, 0], value[:, :, 0]


class IncrementalDecoder:
    """A model in evaluation mode, after some captions int64 [n, T] and the image tokens that `push` has given it.

    Use it without gradients. `next_logits` are those of the next image token, [n, codes].
    """

    def __init__(self, model: TextToImageDecoder, captions: Tensor) -> None:
        self._model, self._shape = model, model.shape
        self._place = 0
        self._memories: list[_Memory] = []
        x = model.embed(captions, captions[:, :0])
        self._shifts = [(_Shift(self._shape, x), _Shift(self._shape, x)) for _ in model.plan]
        self._visible = {
            attends: _visible_slots(model.mask(attends), self._shape, attends)
            for attends in {layer.attends for layer in model.plan}
        }
        self.next_logits = self._read_text(x)

    def push(self, codes: Tensor) -> None:
        """Go on by one image token for each caption: int64 [n]. Raises `ValueError` after the last but one."""
        model, shape, place = self._model, self._shape, self._place
        if place >= shape.image_length - 1:
            raise ValueError("the picture is complete")
        at = slice(shape.prefix + place, shape.prefix + place + 1)
        first = second = functional.embedding(codes[:, None] + shape.text_ids, model.logits.weight)
        for parts, memory, shifts in zip(model.parts(), self._memories, self._shifts, strict=True):
            own = parts.own
            x = shifts[0].shift(own.attention.norm(second), place)
            query, key, value = parts.attention.project(x, model.cosines[at], model.sines[at])
            memory.put(key, value, place)
            visible = self._visible[parts.attends][place : place + 1]
            first = first + own.attention.scale * parts.attention.attend(query, memory.keys, memory.values, visible)
            second = second + own.feed_forward.scale * parts.feed_forward(
                shifts[1].shift(own.feed_forward.norm(first), place)
            )
        self._place += 1
        self.next_logits = model.image_logits((first + second)[:, 0] / 2)

    def _read_text(self, x: Tensor) -> Tensor:
        model, length = self._model, self._shape.prefix
        first = second = x
        for parts in model.parts():
            own = parts.own
            shifted = self._text_shifted(own.attention, second)
            query, key, value = parts.attention.project(shifted, model.cosines[:length], model.sines[:length])
            mask = model.mask(parts.attends)[:length, :length]
            first = first + own.attention.scale * parts.attention.attend(query, key, value, mask)
            second = second + own.feed_forward.scale * parts.feed_forward(self._text_shifted(own.feed_forward, first))
            self._memories.append(_Memory(key, value, capacity(self._shape, parts.attends)))
        return model.image_logits((first + second)[:, -1] / 2)

    def _text_shifted(self, around: Around, x: Tensor) -> Tensor:
        return shift_tokens(around.norm(x), self._shape)


def _visible_slots(mask: Tensor, shape: DecoderShape, attends: Attends) -> Tensor:
    """Slots as bool [S² - 1, T + 1 + capacity]: those that each image token attends to."""
    kept, prefix = capacity(shape, attends), shape.prefix
    visible = mask.new_zeros(shape.image_length - 1, prefix + kept)
    visible[:, :prefix] = True
    query, key = torch.nonzero(mask[prefix:, prefix:], as_tuple=True)
    visible[query, prefix + key % kept] = True
    return visible
