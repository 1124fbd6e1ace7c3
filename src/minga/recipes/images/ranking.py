"""The pictures that fit a text best, by a CLIP model (Radford et al. 2021, arXiv:2103.00020), where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import Image

from minga.core.errors import ConfigurationError
from minga.recipes.images.loading import Pixels

if TYPE_CHECKING:
    import numpy.typing as npt

CANDIDATES: Final = 128
"""Pictures of which the best are kept, unless more are asked for."""

_AT_A_TIME: Final = 32


class ClipRanker:
    """Scores of pictures by a CLIP model in a folder or of the hub; only safetensors are read.

    Raises `ConfigurationError` if there is no such model.
    """

    def __init__(self, source: str) -> None:
        from transformers import AutoTokenizer, CLIPImageProcessor, CLIPModel

        local = Path(source).expanduser()
        place = str(local) if local.is_dir() else source
        try:
            self._model = CLIPModel.from_pretrained(place, use_safetensors=True, trust_remote_code=False).eval()
            self._words = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
            self._pixels = CLIPImageProcessor.from_pretrained(place)
        except (OSError, ValueError, RuntimeError, TypeError, ImportError, KeyError) as error:
            raise ConfigurationError(
                f"no CLIP model at {source!r}: {str(error).strip().splitlines()[0][:200]}"
            ) from error

    def scores(self, text: str, pictures: Sequence[Pixels]) -> npt.NDArray[np.float64]:
        """How well each picture fits: float64 [n], the softmax over the pictures of their scores for the text."""
        import torch

        found = []
        words = self._words([text], return_tensors="pt", truncation=True)
        with torch.no_grad():
            for start in range(0, len(pictures), _AT_A_TIME):
                some = [Image.fromarray(each) for each in pictures[start : start + _AT_A_TIME]]
                pixels = self._pixels(images=some, return_tensors="pt")
                output = self._model(
                    input_ids=words["input_ids"],
                    attention_mask=words["attention_mask"],
                    pixel_values=pixels["pixel_values"],
                )
                found.append(output.logits_per_text[0].double().numpy())
        logits = np.concatenate(found)
        shares = np.exp(logits - logits.max())
        return np.asarray(shares / shares.sum())

    def best(self, text: str, pictures: Sequence[Pixels], count: int) -> list[int]:
        """The numbers of the `count` pictures that fit best, best first."""
        order = np.argsort(-self.scores(text, pictures), kind="stable")
        return [int(number) for number in order[:count]]
