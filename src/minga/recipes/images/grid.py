"""Pictures in rows and columns on one PNG, with what they should show beneath."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from minga.recipes.images.loading import Pixels

TILE: Final = 128
_GAP: Final = 8
_LINES: Final = 3
_FONT_SIZE: Final = 10
_LINE_HEIGHT: Final = 13


def grid_png(
    pictures: Sequence[Pixels], captions: Sequence[str], *, columns: int = 4, notes: Mapping[str, str] | None = None
) -> bytes:
    """A PNG of `pictures` uint8 [height, width, 3], each scaled to 128 pixels, with its caption beneath.

    `notes` are written into the file as text fields, such as the seed. Raises `ValueError` without pictures.
    """
    if not pictures:
        raise ValueError("a grid needs pictures")
    columns = max(1, min(columns, len(pictures)))
    rows = -(-len(pictures) // columns)
    wide, high = TILE + _GAP, TILE + _GAP + _LINES * _LINE_HEIGHT
    sheet = Image.new("RGB", (columns * wide + _GAP, rows * high + _GAP), (255, 255, 255))
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(_FONT_SIZE)
    for place, (pixels, caption) in enumerate(zip(pictures, captions, strict=True)):
        x, y = _GAP + place % columns * wide, _GAP + place // columns * high
        tile = Image.fromarray(pixels).resize((TILE, TILE), Image.Resampling.NEAREST)
        sheet.paste(tile, (x, y))
        for line, text in enumerate(textwrap.wrap(caption, 24)[:_LINES]):
            pen.text((x, y + TILE + 2 + line * _LINE_HEIGHT), text, fill=(60, 60, 60), font=font)
    fields = PngInfo()
    for name, text in (notes or {}).items():
        fields.add_itxt(name, text)
    body = io.BytesIO()
    sheet.save(body, "PNG", pnginfo=fields)
    return body.getvalue()
