"""Pictures from files and bytes, as square arrays of whole numbers; hostile files cost bounded memory."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from minga.core.errors import ConfigurationError

Pixels = npt.NDArray[np.uint8]
"""A picture, uint8 [height, width, channels]."""

MAX_PIXELS: Final = 64 << 20
MAX_BYTES: Final = 64 << 20
SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"})
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


def open_picture(source: Path | bytes, name: str = "a picture") -> Image.Image:
    """The picture, decoded, in RGB; what is transparent becomes white.

    Raises `ConfigurationError` for anything but a PNG, JPEG, WebP, GIF or BMP of at most 64 Mi pixels and 64 MiB.
    """
    try:
        body = source if isinstance(source, bytes) else _read(source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of oddities of files, the size aside, which is checked
            with Image.open(io.BytesIO(body), formats=_FORMATS) as opened:
                if len(body) > MAX_BYTES or opened.width * opened.height > MAX_PIXELS:
                    raise ConfigurationError(f"{name}: {opened.width} x {opened.height} pixels are too many")
                picture = opened.convert("RGBA")
    except UnidentifiedImageError as error:
        raise ConfigurationError(f"{name}: not a picture that can be read: no PNG, JPEG, WebP, GIF or BMP") from error
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ConfigurationError(f"{name}: not a picture that can be read: {str(error)[:200]}") from error
    white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, picture).convert("RGB")


def square(picture: Image.Image, side: int) -> Pixels:
    """The middle of `picture` as uint8 [side, side, 3]: cut to a square, then scaled."""
    edge = min(picture.size)
    left, top = (picture.width - edge) // 2, (picture.height - edge) // 2
    # Cut first: with `box`, Pillow lets pixels beyond the square bleed into its edges.
    middle = picture.crop((left, top, left + edge, top + edge))
    return np.asarray(middle.resize((side, side), Image.Resampling.BICUBIC))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)
