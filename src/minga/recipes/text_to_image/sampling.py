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

from minga.recipes.evaluation_mode import evaluating
from minga.recipes.interface import SampleOptions
from minga.recipes.text_to_image.captions import encode_captions
from minga.recipes.text_to_image.decoder.cache import IncrementalDecoder
from minga.recipes.text_to_image.decoder.model import PAD, TextToImageDecoder
from minga.recipes.text_to_image.tokens.fsq import FsqTokenizer, Pictures

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
    values = logits.double().cpu().numpy()
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
