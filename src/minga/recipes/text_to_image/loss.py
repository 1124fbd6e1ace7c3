"""The loss of a batch: how surprised the model is by each caption and by each picture."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from minga.recipes.interface import Batch
from minga.recipes.text_to_image.decoder.model import PAD, TextToImageDecoder


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
