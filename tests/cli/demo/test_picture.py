"""The demo as a picture: what was said stands in it, and nobody's browser is sent elsewhere."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from minga.cli.demo.picture import draw_terminal
from minga.core.errors import StorageError


def test_a_picture_shows_the_lines_and_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "terminal.svg"
    draw_terminal("minga demo --minutes 1", ["0:00  <b>first</b> & [red]last[/red]"], path)
    text = "".join(ET.fromstring(path.read_text("utf-8")).itertext()).replace("\u00a0", " ")
    assert "$ minga demo --minutes 1" in text
    assert "0:00  <b>first</b> & [red]last[/red]" in text, "no markup of the lines is obeyed"
    assert "url(http" not in path.read_text("utf-8")
    with pytest.raises(StorageError, match="cannot be written"):
        draw_terminal("x", [], path / "below-a-file")
