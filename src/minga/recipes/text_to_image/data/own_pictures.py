"""A peer's own pictures with captions, as pairs to train on in the place of the run's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import Final

import numpy as np

from minga.core.errors import ConfigurationError
from minga.recipes.text_to_image.data.folders import folder_pictures
from minga.recipes.text_to_image.pairs import CodedRow, Pairs
from minga.recipes.text_to_image.settings import ImageTextData, ImageTextFilters
from minga.recipes.text_to_image.tokens.fsq import FsqTokenizer

_AT_A_TIME: Final = 256


def own_rows(
    folders: Sequence[str], filters: ImageTextFilters, side: int, tokenizer: FsqTokenizer, heldout: Pairs | None
) -> list[CodedRow]:
    """Captions and codes of the pictures in `folders`, cut to squares of `side` pixels, by the run's image tokenizer.

    A picture with the codes of one that is held out for all is left out. Raises `ConfigurationError` if nothing is left
    or a picture cannot be read.
    """
    unwanted = set() if heldout is None else {codes.astype("<i8").tobytes() for codes in heldout.codes}
    here = ImageTextFilters(min_caption=filters.min_caption, max_aspect=filters.max_aspect)  # not the run's columns
    data = ImageTextData(source="folder", filters=here)
    pictures = chain.from_iterable(folder_pictures(folder, data, side) for folder in folders)
    found: list[CodedRow] = []
    while some := list(islice(pictures, _AT_A_TIME)):
        codes = tokenizer.encode(np.stack([picture for _, picture in some])).astype(np.int64)
        rows = zip((caption for caption, _ in some), codes, strict=True)
        found += [row for row in rows if row[1].astype("<i8").tobytes() not in unwanted]
    if not found:
        raise ConfigurationError(f"--data {' '.join(folders)}: no picture to train on besides what is held out")
    return found
