"""Pictures from files and bytes, as square arrays of whole numbers; hostile files cost bounded memory."""

from __future__ import annotations

import io
import struct
import warnings
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError

from minga.core.errors import ConfigurationError

Pixels = npt.NDArray[np.uint8]
"""A picture, uint8 [height, width, channels]."""

MAX_PIXELS: Final = 64 << 20
MAX_BYTES: Final = 64 << 20
SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"})
_TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What the orientations of EXIF ask for."""

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
                picture = _upright(opened)
    except UnidentifiedImageError as error:
        raise ConfigurationError(f"{name}: not a picture that can be read: no PNG, JPEG, WebP, GIF or BMP") from error
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ConfigurationError(f"{name}: not a picture that can be read: {str(error)[:200]}") from error
    white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, picture).convert("RGB")


def _upright(opened: Image.Image) -> Image.Image:
    """The picture in RGBA as its file says that it is to be seen: cameras turn it by a note alone."""
    try:
        orientation = opened.getexif().get(ExifTags.Base.Orientation)
    except (OSError, ValueError, SyntaxError, TypeError, LookupError, struct.error):  # a damaged note is none
        orientation = None
    if opened.mode.startswith("I"):  # 16 bits a pixel, which Pillow would cut off at 255
        opened = Image.fromarray((np.asarray(opened) >> 8).clip(0, 255).astype(np.uint8))
    picture = opened.convert("RGBA")
    turned = _TURNS.get(orientation) if isinstance(orientation, int) else None
    return picture if turned is None else picture.transpose(turned)


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
