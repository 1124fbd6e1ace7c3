"""Pictures from hostile bytes and rows, and sheets of pictures."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from minga.core.errors import ConfigurationError
from minga.recipes.images.grid import grid_png
from minga.recipes.images.loading import open_picture, square
from minga.recipes.images.source import files_below, picture_file


def png(picture: Image.Image) -> bytes:
    body = io.BytesIO()
    picture.save(body, "PNG")
    return body.getvalue()


def test_a_picture_is_cut_to_a_square_and_scaled_and_clear_parts_are_white() -> None:
    wide = Image.new("RGBA", (40, 20), (255, 0, 0, 255))
    wide.paste((0, 0, 255, 255), (10, 0, 30, 20))
    assert np.array_equal(square(open_picture(png(wide)), 8), np.full((8, 8, 3), (0, 0, 255), dtype=np.uint8))
    assert square(open_picture(png(Image.new("RGBA", (8, 8), (0, 0, 0, 0)))), 8).min() == 255


def test_a_grey_picture_of_16_bits_keeps_its_shades() -> None:
    shades = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    found = np.asarray(open_picture(png(Image.fromarray(shades))))
    assert np.array_equal(found, np.repeat((shades >> 8).astype(np.uint8)[:, :, None], 3, axis=2))


@pytest.mark.parametrize("orientation", range(9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_photo_is_turned_as_its_camera_says(orientation: int, kind: str) -> None:
    picture = Image.new("RGB", (32, 16), (255, 0, 0))
    picture.paste((0, 0, 255), (0, 0, 16, 8))
    notes, body = Image.Exif(), io.BytesIO()
    notes[ExifTags.Base.Orientation] = orientation
    picture.save(body, kind, exif=notes)
    with Image.open(io.BytesIO(body.getvalue())) as again:
        expected = ImageOps.exif_transpose(again).convert("RGB")
    assert np.array_equal(np.asarray(open_picture(body.getvalue())), np.asarray(expected))


@pytest.mark.parametrize(
    "notes", [b"junk", b"Exif\0\0", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"Exif\0\0II*\0\xff\xff\xff\xff"]
)
def test_a_photo_with_damaged_notes_is_taken_as_it_is(notes: bytes) -> None:
    body = io.BytesIO()
    Image.new("RGB", (32, 16)).save(body, "JPEG", exif=notes)
    assert open_picture(body.getvalue()).size == (32, 16)


def bomb() -> bytes:
    """A PNG of a few bytes that says that it has 100,000 by 100,000 pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("body", [b"", b"junk", png(Image.new("RGB", (9, 9)))[:40], bomb(), b"%!PS-Adobe-3.0\n"])
def test_what_is_no_picture_of_bounded_size_is_refused(body: bytes, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(body)
    for source in (body, path):
        with pytest.raises(ConfigurationError, match="here"):
            open_picture(source, "here")
    with pytest.raises(ConfigurationError):
        open_picture(tmp_path / "none.png")


def test_a_row_without_a_picture_is_told_by_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    assert picture_file({"photo": {"bytes": b"x", "path": None}}, "photo") == picture_file({"photo": b"x"}, "photo")
    with pytest.raises(ConfigurationError, match="no such column; there are: photo"):
        picture_file({"photo": b"x"}, "image")
    monkeypatch.setattr("minga.recipes.images.source.MAX_BYTES", 3)
    for value in (None, "a.png", {"path": "a.png"}, {"bytes": b"1234"}, [1]):
        with pytest.raises(ConfigurationError, match="'photo': a row has no picture of at most 3 bytes"):
            picture_file({"photo": value}, "photo")


def test_a_run_depends_on_all_files_below_its_folder(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    paths = [tmp_path / "a.png", tmp_path / "b" / "c.txt"]
    for path in paths:
        path.write_text("")
    assert files_below(str(tmp_path)) == paths
    assert files_below("") == []


def test_a_sheet_has_every_picture_with_its_caption_and_notes() -> None:
    pictures = [np.full((4, 4, 3), (40 * n, 0, 0), dtype=np.uint8) for n in range(5)]
    body = grid_png(pictures, [f"caption {n} ü" for n in range(5)], columns=2, notes={"seed": "7"})
    assert body == grid_png(pictures, [f"caption {n} ü" for n in range(5)], columns=2, notes={"seed": "7"})
    with Image.open(io.BytesIO(body)) as sheet:
        assert sheet.text["seed"] == "7"  # type: ignore[attr-defined]
        pixels = np.asarray(sheet)
    assert {tuple(pixels[y, x]) for x in (70, 206) for y in (70, 245, 420)} >= {(40 * n, 0, 0) for n in range(5)}
    with pytest.raises(ValueError, match="needs pictures"):
        grid_png([], [])
