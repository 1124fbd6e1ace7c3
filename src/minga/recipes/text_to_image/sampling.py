"""Drawing pictures, as codes, for captions: one code after the other, each by chance.

Every picture has a random generator of its own, of the seed, the caption's number and the picture's number, so that
no picture depends on how many are drawn with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minga.core.errors import ConfigurationError
from minga.recipes.text_to_image.decoder.cache import IncrementalDecoder
from minga.recipes.text_to_image.decoder.model import PAD, TextToImageDecoder

AT_A_TIME: Final = 64
"""Pictures that are drawn together."""


@dataclass(frozen=True)
class Draw:
    """How the next code is drawn.

    temperature: divides the logits; 0 takes the likeliest code.
    top_k: only so many of the likeliest codes; 0 for all.
    top_p: only the likeliest codes that together, after `top_k`, have this probability.
    guidance: logits are u + guidance · (c − u), with u those of an empty caption and c those of the caption; 1 is off.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    guidance: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.guidance <= 100:
            raise ConfigurationError(
                f"{self}: temperature and top_k must be at least 0, top_p above 0 and at most 1, guidance from 0 to 100"
            )


@torch.no_grad()
def draw_codes(
    model: TextToImageDecoder, captions: npt.NDArray[np.int64], draw: Draw, seed: int, each: int = 1
) -> npt.NDArray[np.int64]:
    """Codes int64 [n · each, S²] of `each` pictures for each caption int64 [n, T]. Leaves the model as it was."""
    chances = [np.random.default_rng([seed, row, copy]) for row in range(len(captions)) for copy in range(each)]
    rows = np.repeat(captions, each, axis=0)
    was_training = model.training
    model.eval()
    try:
        parts = [
            _drawn(model, rows[start : start + AT_A_TIME], draw, chances[start : start + AT_A_TIME])
            for start in range(0, len(rows), AT_A_TIME)
        ]
    finally:
        model.train(was_training)
    return np.concatenate(parts)


def probabilities(logits: Tensor, draw: Draw) -> npt.NDArray[np.float64]:
    """float64 [n, codes], rows sum to 1: what is drawn from, of logits [n, codes]."""
    values = logits.double().cpu().numpy()
    if draw.temperature == 0:
        return np.asarray(np.eye(values.shape[1])[values.argmax(axis=1)])
    values = values / draw.temperature
    if 0 < draw.top_k < values.shape[1]:
        least = np.partition(values, -draw.top_k, axis=1)[:, -draw.top_k, None]
        values = np.where(values < least, -np.inf, values)
    shares = np.exp(values - values.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    if draw.top_p < 1:
        order = np.argsort(-shares, axis=1, kind="stable")
        ranked = np.take_along_axis(shares, order, axis=1)
        ranked[np.cumsum(ranked, axis=1) - ranked >= draw.top_p] = 0.0
        np.put_along_axis(shares, order, ranked, axis=1)
        shares /= shares.sum(axis=1, keepdims=True)
    return np.asarray(shares)


def _drawn(
    model: TextToImageDecoder, captions: npt.NDArray[np.int64], draw: Draw, chances: list[np.random.Generator]
) -> npt.NDArray[np.int64]:
    device, shape = model.logits.weight.device, model.shape
    guided = draw.guidance != 1
    inputs = np.concatenate([captions, np.full_like(captions, PAD)]) if guided else captions
    decoder = IncrementalDecoder(model, torch.from_numpy(inputs).to(device))
    found = np.empty((len(captions), shape.image_length), dtype=np.int64)
    numbers = np.stack([chance.random(shape.image_length) for chance in chances])
    for place in range(shape.image_length):
        logits = decoder.next_logits.float()
        if guided:
            with_caption, without = logits.chunk(2)
            logits = without + draw.guidance * (with_caption - without)
        sums = np.cumsum(probabilities(logits, draw), axis=1)
        # The last sum may be just below 1, by rounding; a number beyond it is the last code that can be drawn.
        codes = (sums < np.minimum(numbers[:, place, None], sums[:, -1:])).sum(axis=1)
        found[:, place] = codes
        if place + 1 < shape.image_length:
            given = torch.from_numpy(np.concatenate([codes, codes]) if guided else codes)
            decoder.push(given.to(device))
    return found
