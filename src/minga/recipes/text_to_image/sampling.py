"""Drawing pictures, as codes, for captions: one code after the other, each by chance.

Every picture has a random generator of its own, of the seed, the caption's number and the picture's number, so that
no picture depends on how many are drawn with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from minga.recipes.evaluation_mode import evaluating
from minga.recipes.interface import SampleOptions
from minga.recipes.text_to_image.decoder import (
    PAD,
    REACH,
    Around,
    Attends,
    DecoderShape,
    TextToImageDecoder,
    shift_tokens,
)
from minga.recipes.text_to_image.pairs import encode_captions
from minga.recipes.text_to_image.tokens import FsqTokenizer, Pictures

AT_A_TIME: Final = 64
"""Pictures that are drawn together."""


def draw_pictures(
    model: TextToImageDecoder,
    words: Tokenizer,
    image_tokenizer: FsqTokenizer,
    captions: Sequence[str],
    options: SampleOptions,
) -> Pictures:
    """`options.count` pictures for each caption, uint8 [n · count, side, side, 3], in the order of the captions."""
    ids = encode_captions(words, captions, model.shape.text_length)
    return image_tokenizer.decode(draw_codes(model, ids, options, known=image_tokenizer.codes))


@torch.no_grad()
def draw_codes(
    model: TextToImageDecoder, captions: npt.NDArray[np.int64], options: SampleOptions, known: int | None = None
) -> npt.NDArray[np.int64]:
    """Codes int64 [n · count, S²] of `options.count` pictures for each caption int64 [n, T], each below `known`.

    With guidance g other than 1, logits are u + g · (c - u), with c those of the caption and u those of an empty one
    (Ho and Salimans 2022, arXiv:2207.12598). Leaves the model as it was.
    """
    count, seed = options.count, options.seed
    chances = [np.random.default_rng([seed, row, copy]) for row in range(len(captions)) for copy in range(count)]
    rows = np.repeat(captions, count, axis=0)
    with evaluating(model):
        parts = [
            _drawn(model, rows[start : start + AT_A_TIME], options, chances[start : start + AT_A_TIME], known)
            for start in range(0, len(rows), AT_A_TIME)
        ]
    return np.concatenate(parts)


def probabilities(logits: Tensor, options: SampleOptions) -> npt.NDArray[np.float64]:
    """float64 [n, codes], rows sum to 1: what is drawn from, of logits [n, codes]; `top_k` applies before `top_p`."""
    values = logits.cpu().double().numpy()  # Metal has no float64
    if options.temperature == 0:
        return np.asarray(np.eye(values.shape[1])[values.argmax(axis=1)])
    values = values / options.temperature
    if 0 < options.top_k < values.shape[1]:
        least = np.partition(values, -options.top_k, axis=1)[:, -options.top_k, None]
        values = np.where(values < least, -np.inf, values)
    shares = np.exp(values - values.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    if options.top_p < 1:
        order = np.argsort(-shares, axis=1, kind="stable")
        ranked = np.take_along_axis(shares, order, axis=1)
        left_out = np.cumsum(ranked, axis=1) - ranked >= options.top_p
        left_out[:, 0] = False
        ranked[left_out] = 0.0
        np.put_along_axis(shares, order, ranked, axis=1)
        shares /= shares.sum(axis=1, keepdims=True)
    return np.asarray(shares)


def _drawn(
    model: TextToImageDecoder,
    captions: npt.NDArray[np.int64],
    options: SampleOptions,
    chances: Sequence[np.random.Generator],
    known: int | None,
) -> npt.NDArray[np.int64]:
    device, shape = model.logits.weight.device, model.shape
    guided = options.guidance != 1
    inputs = np.concatenate([captions, np.full_like(captions, PAD)]) if guided else captions
    decoder = IncrementalDecoder(model, torch.from_numpy(inputs).to(device))
    found = np.empty((len(captions), shape.image_length), dtype=np.int64)
    numbers = np.stack([chance.random(shape.image_length) for chance in chances])
    for place in range(shape.image_length):
        logits = decoder.next_logits.float()
        if guided:
            with_caption, without = logits.chunk(2)
            logits = without + options.guidance * (with_caption - without)
        sums = np.cumsum(probabilities(logits[:, :known], options), axis=1)
        # The last sum may be just below 1, by rounding; a number beyond it is the last code that can be drawn.
        codes = (sums < np.minimum(numbers[:, place, None], sums[:, -1:])).sum(axis=1)
        found[:, place] = codes
        if place + 1 < shape.image_length:
            given = torch.from_numpy(np.concatenate([codes, codes]) if guided else codes)
            decoder.push(given.to(device))
    return found


# ---- The decoder one image token at a time: what earlier positions left behind is kept, not computed again.
#
# Each layer keeps keys and values of the text and of as many image tokens as its mask can reach: a row, a picture, or
# two rows and a bit. Token shift needs the normed inputs of the last S image tokens, half of their channels. Slots are
# used in turns: image token j is in slot j mod capacity.


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
