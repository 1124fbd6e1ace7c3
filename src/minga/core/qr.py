"""QR codes, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Iterator

import segno


def code_of(text: str) -> segno.QRCode:
    """The smallest code that holds a text. Raises `segno.DataOverflowError` if none does."""
    return segno.make(text, error="l", micro=False)


def in_terminal(code: segno.QRCode, *, colour: bool = True, quiet_zone: int = 2) -> str:
    """A code with one character for two modules, framed by `quiet_zone` light modules.

    With `colour` it is black on white by ANSI sequences, whatever the terminal's colours; without, light modules are
    drawn in the terminal's foreground, which suits a dark background.
    """
    rows = [[bool(module) for module in row] for row in code.matrix_iter(border=quiet_zone)]
    if len(rows) % 2:
        rows.append([False] * len(rows[0]))
    return "\n".join(_half_blocks(rows, colour=colour))


def as_svg(code: segno.QRCode) -> str:
    """A code as an SVG element that scales with the place it stands in, black on white."""
    return str(code.svg_inline(border=2, dark="#000", light="#fff", omitsize=True, svgclass="qr", lineclass=None))


def _half_blocks(rows: list[list[bool]], *, colour: bool) -> Iterator[str]:
    """Two rows of modules (True is dark) as one line of text each."""
    for upper, lower in zip(rows[::2], rows[1::2], strict=True):
        if colour:
            # Black ink on white paper: the glyph shows the dark modules.
            glyphs = "".join(" ▄▀█"[2 * top + bottom] for top, bottom in zip(upper, lower, strict=True))
            yield f"\x1b[30;107m{glyphs}\x1b[0m"
        else:
            yield "".join("█▀▄ "[2 * top + bottom] for top, bottom in zip(upper, lower, strict=True))
