"""How well a model does: its loss, on pairs that are held out too, and what it draws for their captions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.recipes.evaluation_mode import evaluating
from minga.recipes.interface import Batch, SampleOptions
from minga.recipes.text_to_image.decoder import PAD, TextToImageDecoder
from minga.recipes.text_to_image.pairs import Pairs
from minga.recipes.text_to_image.sampling import draw_pictures
from minga.recipes.text_to_image.shapes import can_judge, judge
from minga.recipes.text_to_image.tokens import FsqTokenizer

MAX_PAIRS: Final = 256
SAMPLES: Final = 64
_AT_A_TIME: Final = 16
_SEED: Final = 20_211_206
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class PartLosses:
    """Float32 [n], nats a token, one for each sample: the mean over its caption, and over its picture."""

    text: Tensor
    image: Tensor


def part_losses(model: TextToImageDecoder, batch: Batch, *, on_padding: bool) -> PartLosses:
    """The losses of the samples. Unless `on_padding`, padding is not predicted, and an empty caption costs nothing."""
    captions, codes = batch["captions"], batch["codes"]
    text_logits, image_logits = model(captions, codes)
    text = functional.cross_entropy(text_logits.float().mT, model.labels(captions), reduction="none")
    image = functional.cross_entropy(image_logits.float().mT, codes, reduction="none").mean(dim=1)
    if on_padding:
        return PartLosses(text.mean(dim=1), image)
    counted = (captions != PAD).float()
    return PartLosses((text * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1), image)


def heldout_losses(model: TextToImageDecoder, pairs: Pairs) -> dict[str, float]:
    """`heldout_image_loss` and `heldout_text_loss`, nats a token (no padding), of the first 256 pairs."""
    image, text, count = 0.0, 0.0, min(len(pairs), MAX_PAIRS)
    with evaluating(model) as device:
        for start in range(0, count, _AT_A_TIME):
            batch = pairs.batch(np.arange(start, min(start + _AT_A_TIME, count)))
            losses = part_losses(model, {name: each.to(device) for name, each in batch.items()}, on_padding=False)
            image, text = image + losses.image.sum().item(), text + losses.text.sum().item()
    return {"heldout_image_loss": image / count, "heldout_text_loss": text / count}


def sample_figures(
    model: TextToImageDecoder, tokenizer: Tokenizer, image_tokenizer: FsqTokenizer, captions: Sequence[str]
) -> dict[str, float]:
    """`sample_background_accuracy`, `sample_position_accuracy`, `sample_size_accuracy` and `sample_drawing_accuracy`
    of pictures drawn for captions, one each, always from the same seed; empty, and nothing is drawn, if the captions
    do not say such things.
    """
    if not can_judge(captions):
        return {}
    pictures = draw_pictures(model, tokenizer, image_tokenizer, captions, SampleOptions(seed=_SEED))
    return {f"sample_{name}_accuracy": share for name, share in judge(pictures, captions).items()}


def pack_captions(captions: Sequence[str]) -> bytes:
    """Captions of the first held-out pairs, at most 64, as JSON."""
    return json.dumps(list(captions[:SAMPLES])).encode()


def unpack_captions(path: Path) -> list[str]:
    """What `pack_captions` made. Raises `ConfigurationError` for anything else, `StorageError` if it cannot be read."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError("it is too long")
        captions = json.loads(path.read_bytes())
        if not isinstance(captions, list) or len(captions) > SAMPLES or not all(isinstance(c, str) for c in captions):
            raise ValueError("it is no list of captions")
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {reason_of(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: not a file of captions: {str(error)[:200]}") from error
    return captions
