"""What the organiser makes once: tokenizers, and captions and codes as the files of the run."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from minga.core.errors import ConfigurationError
from minga.core.spec.sections import MAX_FILE_BYTES
from minga.recipes.interface import Files
from minga.recipes.text.tokenizer import TOKENIZER_FILE, read_tokenizer
from minga.recipes.text_to_image.data import CaptionedPictures, coded_rows, is_held_out, picture_sets, rank_of_codes
from minga.recipes.text_to_image.decoder import DecoderShape
from minga.recipes.text_to_image.evaluation import pack_captions
from minga.recipes.text_to_image.pairs import CodedRow, Pairs, caption_tokenizer, pack_pairs, warn_of_cut_captions
from minga.recipes.text_to_image.settings import SIZES, ImageTextData, TextToImageSettings
from minga.recipes.text_to_image.tokens import (
    DESCRIPTION_FILE,
    HALVINGS,
    PARAMETERS_FILE,
    FsqTokenizer,
    image_tokenizer_files,
    read_image_tokenizer,
    train_fsq,
)

TRAINING_FILE: Final = "training.safetensors"
HELDOUT_FILE: Final = "heldout.safetensors"
SAMPLES_FILE: Final = "sample_captions.json"
_TRAINED_ON: Final = 8192
_AT_A_TIME: Final = 1024
_MAX_SCAN: Final = 50_000
_STREAMED_HELDOUT: Final = 512

SHAPE_TOKENIZER: Final = Path(__file__).parent / "shape_tokenizer"
"""The image tokenizer of plain shapes, since a demo has no minutes to train one. It `is_local`, took 1,000 steps as in
`train_fsq`, on 4,000 compositions of one place and one size, and is kept in half precision.
"""


def prepare_files(settings: TextToImageSettings, seed: int, of_model: Files) -> dict[str, bytes]:
    """All files of the run, by the tokenizers `of_model` where the parameters depend on some.

    Raises `ConfigurationError` where the data cannot be used or is too much to travel.
    """
    shape, data = settings.shape(), settings.data
    if data.is_streamed:
        training, heldout = _scanned(data, shape)
        files: dict[str, bytes] = {}
    else:
        tokenizer, training, heldout = _encoded(settings, shape, seed, of_model)
        files = image_tokenizer_files(tokenizer)
    captions = [caption for caption, _ in training]
    own = of_model.get(TOKENIZER_FILE)
    source = settings.tokenizer if own is None else f"from:{own.parent}"
    files[TOKENIZER_FILE] = caption_tokenizer(source, captions, shape.vocabulary)
    words = read_tokenizer(files[TOKENIZER_FILE], shape.vocabulary)
    warn_of_cut_captions(words, captions, shape.text_length)
    for name, pairs in ((TRAINING_FILE, training), (HELDOUT_FILE, heldout)):
        if pairs and not (name == TRAINING_FILE and data.is_streamed):
            files[name] = pack_pairs(Pairs.of(pairs, words, shape), shape)
            if len(files[name]) > MAX_FILE_BYTES:
                raise ConfigurationError(
                    f"data: {len(pairs)} pairs are {len(files[name]) >> 20} MiB, too much to travel with a run; "
                    'publish captions and codes as a data set, and use source = "hub" with code_column'
                )
    if heldout:
        files[SAMPLES_FILE] = pack_captions([caption for caption, _ in heldout])
    return files


def _scanned(data: ImageTextData, shape: DecoderShape) -> tuple[list[CodedRow], list[CodedRow]]:
    """The first pairs of a stream: captions for the tokenizer, and the held-out pairs for all."""
    training: list[CodedRow] = []
    heldout: list[CodedRow] = []
    fraction = data.heldout_fraction
    for caption, codes in islice(coded_rows(data, shape.image_length, shape.codes), _MAX_SCAN):
        (heldout if is_held_out(codes, fraction) else training).append((caption, codes))
        if len(heldout) >= _STREAMED_HELDOUT or (fraction <= 0 and len(training) >= _TRAINED_ON):
            break
    if not training:
        raise ConfigurationError("data: there is no pair that passes the filters")
    if fraction > 0 and not heldout:
        raise ConfigurationError(f"data.heldout_fraction = {fraction}: no pair is held out; raise it, or set it to 0")
    return training, sorted(heldout, key=lambda pair: rank_of_codes(pair[1]))


def _encoded(
    settings: TextToImageSettings, shape: DecoderShape, seed: int, of_model: Files
) -> tuple[FsqTokenizer, list[CodedRow], list[CodedRow]]:
    training, heldout = picture_sets(settings.data, settings.side, seed)
    tokenizer = _image_tokenizer(settings, shape, training, seed, of_model)
    return tokenizer, _codes_of(tokenizer, training, shape), _codes_of(tokenizer, heldout, shape)


def _image_tokenizer(
    settings: TextToImageSettings, shape: DecoderShape, training: CaptionedPictures, seed: int, of_model: Files
) -> FsqTokenizer:
    if PARAMETERS_FILE in of_model:
        return _read_tokenizer(of_model, shape)
    if settings.image_tokenizer == "shapes":
        return _read_tokenizer({name: SHAPE_TOKENIZER / name for name in (DESCRIPTION_FILE, PARAMETERS_FILE)}, shape)
    levels = settings.levels or SIZES[settings.size].levels
    halvings = (settings.side // shape.grid).bit_length() - 1
    if halvings not in HALVINGS or settings.side != shape.grid << halvings:
        raise ConfigurationError(
            f"overrides: pictures of {settings.side} pixels as {shape.grid} codes a row; a code must stand for 4, 8 or "
            "16 pixels a side"
        )
    if (codes := int(np.prod(levels))) > shape.codes:
        raise ConfigurationError(f"levels = {list(levels)}: {codes} codes; the model of this size has {shape.codes}")
    random = np.random.default_rng(seed)
    numbers = random.permutation(len(training))[:_TRAINED_ON]
    return train_fsq(training.some(numbers), levels, halvings, settings.tokenizer_steps, seed)


def _read_tokenizer(files: Files, shape: DecoderShape) -> FsqTokenizer:
    """One that is there already. Raises `ConfigurationError` if the model has fewer codes."""
    tokenizer = read_image_tokenizer(files)
    if tokenizer.codes > shape.codes:
        raise ConfigurationError(
            f"image_tokenizer: {tokenizer.codes} codes; the model of this size has {shape.codes} of them"
        )
    return tokenizer


def _codes_of(tokenizer: FsqTokenizer, pictures: CaptionedPictures, shape: DecoderShape) -> list[CodedRow]:
    found: list[CodedRow] = []
    for start in range(0, len(pictures), _AT_A_TIME):
        numbers = range(start, min(start + _AT_A_TIME, len(pictures)))
        codes = tokenizer.encode(pictures.some(numbers))
        if codes.shape[1] != shape.image_length:
            raise ConfigurationError(
                f"image_tokenizer: makes {codes.shape[1]} codes of a picture; the model of this size has "
                f"{shape.image_length}"
            )
        found += zip((pictures.captions[number] for number in numbers), codes, strict=True)
    return found
