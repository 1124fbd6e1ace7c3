"""Training the image tokenizer, once, by the organiser."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch.nn import functional

from minga.recipes.initial import EqualDraws
from minga.recipes.text_to_image.tokens.fsq import FsqTokenizer, Pictures, as_tensor

BATCH: Final = 64
LEARNING_RATE: Final = 2e-3
_TOLD: Final = 10

logger = logging.getLogger("minga.recipes")


@dataclass(frozen=True)
class TokenizerQuality:
    """How well pictures survive being codes.

    psnr_db: peak signal-to-noise ratio of all pixels, in decibels.
    codes_used: how many codes occur.
    perplexity: e to the entropy of the codes in nats: how many equally frequent ones would be as surprising.
    """

    psnr_db: float
    codes_used: int
    perplexity: float


def train_fsq(
    pictures: Pictures, levels: Sequence[int], halvings: int, steps: int, seed: int, *, is_local: bool = False
) -> FsqTokenizer:
    """A tokenizer after `steps` steps of 64 pictures: AdamW, cosine schedule, mean squared error. Logs ten times."""
    with EqualDraws(seed):
        tokenizer = FsqTokenizer(levels, halvings, is_local=is_local)
    random = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(tokenizer.parameters(), lr=LEARNING_RATE)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        x = as_tensor(pictures[random.integers(0, len(pictures), size=BATCH)])
        loss = functional.mse_loss(tokenizer(x)[0], x)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if (step + 1) * _TOLD // steps > step * _TOLD // steps:
            logger.info("image tokenizer: step %d of %d, %.1f dB", step + 1, steps, _decibels(loss.item()))
    return tokenizer.eval()


def quality(tokenizer: FsqTokenizer, pictures: Pictures) -> TokenizerQuality:
    """The figures of `tokenizer` on `pictures`, which it should not have been trained on."""
    codes = tokenizer.encode(pictures)
    error = (tokenizer.decode(codes).astype(np.float64) - pictures) / 127.5
    shares = np.bincount(codes.ravel(), minlength=tokenizer.codes) / codes.size
    used = shares[shares > 0]
    return TokenizerQuality(_decibels(float((error**2).mean())), len(used), float(np.exp(-(used * np.log(used)).sum())))


def _decibels(mean_squared_error: float) -> float:
    """Of values within -1 to 1."""
    return 10 * math.log10(4 / max(mean_squared_error, 1e-12))
