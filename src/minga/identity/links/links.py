"""Links: everything that a newcomer must know to join a run, as one word.

    minga1 <base32 of body and checksum>

The word has only lower-case letters and digits, so chat programs neither format nor shorten it and a double click
selects all of it. In capitals it fits the dense alphanumeric mode of QR codes. The digit is the format version. The
body is described in `encoding.py`; behind it stands its CRC-32, which never misses damage confined to 32 neighbouring
bits: no mistyped character and no two swapped neighbours. Other damage passes once in four billion times.

Case, blanks, line breaks and quotation marks around a link carry no information and are repaired in silence, and so is
the command `minga join` before it. Where the run has a page, the link is shown as the address of the page, `#` and the
word; the part after `#` stays in the browser. `Link.parse` takes that, too, and ignores the address.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import zlib
from dataclasses import dataclass

import segno

from minga.core.errors import LinkError
from minga.core.qr import code_of, in_terminal
from minga.identity.keys.keys import is_peer_id
from minga.identity.links.encoding import MAX_BODY_BYTES, EntryPoint, decode_body, encode_body
from minga.identity.links.grant import LinkAccess

__all__ = ["MAX_LINK_CHARACTERS", "EntryPoint", "Link"]

PREFIX = "minga"
FORMAT_VERSION = 1
MAX_ENTRIES = 8
MAX_LINK_CHARACTERS = len(f"{PREFIX}{FORMAT_VERSION}") + -(-(MAX_BODY_BYTES + 4) * 8 // 5)
SHOWN_CHARACTERS = 40
_CHECKSUM_BYTES = 4
_COPY_AGAIN = "copy the whole link once more from where it was published"
_DRESSING = " \t\r\n\"'`<>()[]{}*_,;.\u201c\u201d\u2018\u2019\u00ab\u00bb"
_INVISIBLE = re.compile("[\\s\u00ad\u200b-\u200f\u2028-\u202f\u2060-\u2064\ufeff]+")
_COMMAND = re.compile(r"[\W_]*minga\s+[a-z]+\s+(?=[\W_]*minga)", re.ASCII | re.IGNORECASE)
_PAGE = re.compile(r"https?://[!-\"$-~]{1,2000}#(?=[\W_]*minga)", re.ASCII | re.IGNORECASE)
_HEAD = re.compile(rf"{PREFIX}([0-9])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Link:
    """The way into a run: its id, the organiser's public key (both 64 hexadecimal digits) and entry addresses. For a
    run for members it may also hold a grant that admits its reader, or the URL of the authority at which to log in.

    `LinkError` is raised for values that no link can carry: no entry or more than 8, two entries for one peer,
    malformed ids, an authority without https, or more than 2,000 bytes in all.
    """

    run_id: str
    organiser: str
    entries: tuple[EntryPoint, ...]
    access: LinkAccess | None = None
    authority: str | None = None

    def __post_init__(self) -> None:
        for name in ("run_id", "organiser"):
            if not is_peer_id(getattr(self, name)):
                raise LinkError(f"a link's {name} must be 64 lower-case hexadecimal digits")
        if not isinstance(self.entries, tuple) or not all(isinstance(entry, EntryPoint) for entry in self.entries):
            raise LinkError("a link's entries must be a tuple of Entry")
        if not 1 <= len(self.entries) <= MAX_ENTRIES:
            raise LinkError(f"a link names 1 to {MAX_ENTRIES} peers to enter by, not {len(self.entries)}")
        if len({entry.peer_id for entry in self.entries}) != len(self.entries):
            raise LinkError("a link names each peer only once")
        if self.access is not None and self.access.grant.run.hex() != self.run_id:
            raise LinkError("the grant in the link belongs to another run")
        encode_body(self.run_id, self.organiser, self.entries, self.access, self.authority)

    @classmethod
    def parse(cls, text: str) -> Link:
        """Read a link as a person pasted it; every damage is a `LinkError` that says what to do."""
        word = _undress(text)
        try:
            raw = base64.b32decode(word.upper() + "=" * (-len(word) % 8))
        except binascii.Error as error:
            raise LinkError(f"the link is cut off or mistyped; {_COPY_AGAIN}") from error
        if _base32(raw) != word:
            raise LinkError(f"the last character of the link is wrong; {_COPY_AGAIN}")
        _check_length(raw)
        body, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
        if _checksum(body) != checksum:
            raise LinkError(f"a character of the link is wrong, missing or out of place; {_COPY_AGAIN}")
        return cls(*decode_body(body))

    def __str__(self) -> str:
        body = encode_body(self.run_id, self.organiser, self.entries, self.access, self.authority)
        return f"{PREFIX}{FORMAT_VERSION}{_base32(body + _checksum(body))}"

    def at(self, landing_url: str | None) -> str:
        """The link as people get it: behind the address of the run's page, if it has one."""
        return str(self) if landing_url is None else f"{landing_url}#{self}"

    def qr(self, landing_url: str | None = None, *, colour: bool = True, quiet_zone: int = 2) -> str:
        """A QR code for a terminal, see `in_terminal`.

        It holds the link at the run's page, if there is one and the code has room for both, else the bare link.
        """
        return in_terminal(self._code(landing_url), colour=colour, quiet_zone=quiet_zone)

    def _code(self, landing_url: str | None) -> segno.QRCode:
        if landing_url is not None:
            with contextlib.suppress(segno.DataOverflowError):
                return code_of(self.at(landing_url))
        return segno.make(str(self).upper(), mode="alphanumeric", error="l", micro=False)


def _undress(text: str) -> str:
    """The base32 part of a pasted link, lower-case, after the checks that can name the mistake."""
    if not isinstance(text, str):
        raise LinkError("a link is text")
    if len(text) > 4 * MAX_LINK_CHARACTERS:
        raise LinkError(f"this is {len(text)} characters long, and no link has more than {MAX_LINK_CHARACTERS}")
    # Only ASCII is folded: other alphabets have letters whose small form is an ASCII one.
    word = _INVISIBLE.sub("", _COMMAND.sub("", _PAGE.sub("", text, count=1), count=1)).strip(_DRESSING)
    word = "".join(character.lower() if character.isascii() else character for character in word)
    if not word:
        raise LinkError("the link is empty; paste the word that begins with minga1")
    head = _HEAD.match(word)
    if head is None:
        if word == PREFIX[: len(word)]:
            raise LinkError(f"the link is cut off after {len(word)} characters; {_COPY_AGAIN}")
        shown = word if len(word) <= SHOWN_CHARACTERS else f"{word[:SHOWN_CHARACTERS]}…"
        raise LinkError(f"{shown!r} is no link: a link begins with {PREFIX}{FORMAT_VERSION}; {_COPY_AGAIN}")
    if int(head[1]) != FORMAT_VERSION:
        raise LinkError(
            f"the link has format {head[1]}, and this version of minga reads format {FORMAT_VERSION}: "
            f"if it was copied correctly, update minga"
        )
    word = word[head.end() :]
    for index, character in enumerate(word):
        if character not in "abcdefghijklmnopqrstuvwxyz234567":
            raise LinkError(
                f"character {head.end() + index + 1} of the link is {character!r}, "
                f"which no link contains; {_COPY_AGAIN}"
            )
    return word


def _check_length(raw: bytes) -> None:
    stated = int.from_bytes(raw[:2], "big") + _CHECKSUM_BYTES if len(raw) >= 2 else MAX_BODY_BYTES
    if len(raw) < stated:
        raise LinkError(f"the link is cut off, or its beginning is mistyped: its end is missing; {_COPY_AGAIN}")
    if len(raw) > stated:
        raise LinkError(f"the link has {len(raw) - stated} bytes too many: something was pasted twice; {_COPY_AGAIN}")


def _base32(data: bytes) -> str:
    return base64.b32encode(data).decode("ascii").rstrip("=").lower()


def _checksum(body: bytes) -> bytes:
    return zlib.crc32(body, zlib.crc32(f"{PREFIX}{FORMAT_VERSION}".encode())).to_bytes(_CHECKSUM_BYTES, "big")
