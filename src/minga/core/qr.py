"""QR codes, for a terminal and for a page."""

from __future__ import annotations

import segno


def code_of(text: str) -> segno.QRCode:
    """The smallest code that holds a text. Raises `segno.DataOverflowError` if none does."""
    return segno.make(text, error="l", micro=False)


def in_terminal(code: segno.QRCode) -> str:
    """A code with one character for two modules, framed by light ones: black ink on white paper by ANSI sequences,
    whatever the terminal's colours.
    """
    rows = [[bool(module) for module in row] for row in code.matrix_iter(border=2)]
    if len(rows) % 2:
        rows.append([False] * len(rows[0]))
    pairs = (zip(upper, lower, strict=True) for upper, lower in zip(rows[::2], rows[1::2], strict=True))
    lines = ("".join(" ▄▀█"[2 * top + bottom] for top, bottom in pair) for pair in pairs)
    return "\n".join(f"\x1b[30;107m{line}\x1b[0m" for line in lines)


def as_svg(code: segno.QRCode) -> str:
    """A code as an SVG element that scales with the place it stands in, black on white."""
    return str(code.svg_inline(border=2, dark="#000", light="#fff", omitsize=True, svgclass="qr", lineclass=None))
