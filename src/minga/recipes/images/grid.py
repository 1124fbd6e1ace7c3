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
    return _png(sheet, notes or {})


def columns_png(columns: Mapping[str, Sequence[Pixels]], captions: Sequence[str]) -> bytes:
    """A PNG with a column of pictures under each name, all scaled to one height; each row has its caption beneath.

    Pictures are uint8 [height, width, 3]; those of one column have the same ratio of sides. Raises `ValueError`
    without pictures.
    """
    if not captions or not columns:
        raise ValueError("a sheet needs pictures")
    widest = max(pictures[0].shape[1] / pictures[0].shape[0] for pictures in columns.values())
    high = TILE if widest < 2.0 else TILE // 2
    widths = [round(high * pictures[0].shape[1] / pictures[0].shape[0]) for pictures in columns.values()]
    font = ImageFont.load_default(_FONT_SIZE + 2)
    names = [textwrap.wrap(name, max(8, width // 6)) for name, width in zip(columns, widths, strict=True)]
    top = _GAP + (_LINE_HEIGHT + 2) * max(map(len, names))
    step = high + _GAP + _LINE_HEIGHT
    sheet = Image.new("RGB", (sum(widths) + 3 * _GAP * (len(widths) + 1), top + step * len(captions)), (255, 255, 255))
    pen, left = ImageDraw.Draw(sheet), 2 * _GAP
    for lines, pictures, width in zip(names, columns.values(), widths, strict=True):
        pen.text((left, _GAP // 2), "\n".join(lines), fill=(0, 0, 0), font=font)
        for row, pixels in enumerate(pictures):
            tile = Image.fromarray(pixels).resize((width, high), Image.Resampling.NEAREST)
            sheet.paste(tile, (left, top + row * step))
        left += width + 3 * _GAP
    for row, caption in enumerate(captions):
        pen.text((2 * _GAP, top + row * step + high + 1), caption, fill=(60, 60, 60), font=font)
    return _png(sheet, {})


def _png(sheet: Image.Image, notes: Mapping[str, str]) -> bytes:
    fields = PngInfo()
    for name, text in notes.items():
        fields.add_itxt(name, text)
    body = io.BytesIO()
    sheet.save(body, "PNG", pnginfo=fields)
    return body.getvalue()
