"""Links: everything that a newcomer must know to join a run, as one word.

    minga1 <base32 of body and checksum>

The word has only lower-case letters and digits, so chat programs neither format nor shorten it and a double click
selects all of it. In capitals it fits the dense alphanumeric mode of QR codes. The digit is the format version. The
body is described below, above `encode_body`; behind it stands its CRC-32, which never misses damage confined to 32
neighbouring bits: no mistyped character and no two swapped neighbours. Other damage passes once in four billion times.

Case, blanks, line breaks, quotation marks around a link and those of a quoted mail before its lines carry no
information and are repaired in silence, and so is the command `minga join` before it. Where the run has a page, the
link is shown as the address of the page, `#` and the word; the part after `#` stays in the browser. `Link.parse` takes
that, too, and ignores the address.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import ipaddress
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, NoReturn, Self

import msgspec
import segno

from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import LinkError
from minga.core.qr import code_of, in_terminal
from minga.core.urls import MAX_URL_CHARACTERS, is_https_url, is_public, is_safe_url
from minga.identity.access.orders import Grant
from minga.identity.access.token import Token
from minga.identity.keys.keys import SEED_BYTES, Identity, is_peer_id

# ---- What a link carries for a run of members: a grant, and, if it is an invitation, the secret of its key.
#
# A person who has an invitation's secret can take part, as long as the invitation lasts: give such a link to the
# intended people only, and put it on no public page. A link with a grant to a peer's own key is of no use to another
# peer.


MAX_ACCESS_BYTES = 1024


class LinkAccess(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A grant; `secret` is the seed of the invitation's key, or empty where the grant is to a peer's own key."""

    grant: Grant
    secret: Annotated[bytes, msgspec.Meta(max_length=SEED_BYTES)] = b""

    @classmethod
    def decode(cls, data: bytes) -> LinkAccess:
        """Read what `encode` wrote. Raises `ValueError` for anything else, also for a secret of another key."""
        try:
            access = decode_msgpack(data, cls)
        except DECODING_ERRORS as error:
            raise ValueError(f"no grant: {error}") from error
        if access.encode() != data or bool(access.secret) != bool(access.grant.uses):
            raise ValueError("no grant")
        if access.secret and (len(access.secret) != SEED_BYTES or not _fits(access)):
            raise ValueError("the secret belongs to another invitation")
        return access

    def encode(self) -> bytes:
        """The grant and the secret as bytes."""
        return msgspec.msgpack.encode(self)

    def token_for(self, peer_id: str) -> Token:
        """The token that this gives to a peer. Raises `LinkError` if the grant is to another key."""
        if self.secret:
            return Token.by_invitation(self.grant, Identity.from_seed(self.secret), peer_id)
        token = Token(self.grant)
        if not token.is_bound_to(peer_id):
            raise LinkError(
                f"this link admits the peer {self.grant.subject.hex()[:10]} and no other, and the key of this machine "
                f"is {peer_id}: use --identity with the right key file, or ask for a link of your own"
            )
        return token


def _fits(access: LinkAccess) -> bool:
    return Identity.from_seed(access.secret).peer_id == access.grant.subject.hex()


# ---- The body of a link: ids and entry addresses in as few bytes as possible, since every byte makes the QR code
# denser.
#
#     length of the body        2 bytes, these included, so that a truncation can be named
#     run id, organiser's key   32 bytes each
#     entries until the end     flags (1 byte) · peer id (32) unless it is the organiser
#                               · families (1) and endpoints (6 or 18 each) if there are any
#                               · length (1) and text of the relay URL without `https://` if there is one
#     access, if there is any   0x20 (in place of flags) · length (2) · `LinkAccess`
#     or else an authority      0x10 (in place of flags) · length (1) · URL where people log in to get access
#
#     flags     bit 7: the peer is the organiser    bit 6: has a relay    bits 5, 4: zero    bits 3-0: endpoints, 0 to 8
#     families  bit i: endpoint i is IPv6 (address 16 bytes, port 2) rather than IPv4 (4 and 2)
#
# Each link has exactly one encoding; whatever does not re-encode to itself is refused.


MAX_BODY_BYTES = 2000
MAX_DIRECT = 8
_ORGANISER, _RELAY, _COUNT, _RESERVED = 0x80, 0x40, 0x0F, 0x30
_ACCESS, _AUTHORITY = 0x20, 0x10
_HTTPS = "https://"
_ENDPOINT = re.compile(r"(?:\[([0-9a-fA-F:.]{2,45})\]|([0-9.]{7,15})):([0-9]{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One peer to enter a run by: its id, up to 8 endpoints `ip:port` (IPv6 in brackets), the https URL of its relay.

    Endpoints are kept in their shortest spelling. An entry without any address is for peers that a discovery service
    finds by their id. Raises `LinkError` for anything else.
    """

    peer_id: str
    direct: tuple[str, ...] = ()
    relay: str | None = None

    def __post_init__(self) -> None:
        if not is_peer_id(self.peer_id):
            raise LinkError("an entry's peer_id must be 64 lower-case hexadecimal digits")
        if not isinstance(self.direct, tuple) or len(self.direct) > MAX_DIRECT:
            raise LinkError(f"an entry has a tuple of at most {MAX_DIRECT} direct addresses")
        object.__setattr__(self, "direct", tuple(_unpack_endpoint(_pack_endpoint(text)) for text in self.direct))
        if self.relay is not None and not is_https_url(self.relay):
            raise LinkError(
                f"{str(self.relay)[:60]!r} is no relay for a link: "
                f"write an https:// URL of at most {MAX_URL_CHARACTERS} characters"
            )


def encode_body(
    run_id: str,
    organiser: str,
    entries: tuple[EntryPoint, ...],
    access: LinkAccess | None = None,
    authority: str | None = None,
) -> bytes:
    """The body as bytes. Raises `LinkError` if it would exceed `MAX_BODY_BYTES`, or `authority` is no URL for it."""
    body = bytes.fromhex(run_id) + bytes.fromhex(organiser)
    body += b"".join(_encode_entry(entry, organiser) for entry in entries)
    if access is not None:
        packed = access.encode()
        body += bytes([_ACCESS]) + len(packed).to_bytes(2, "big") + packed
    if authority is not None:
        _check_authority(authority, access)
        body += bytes([_AUTHORITY, len(authority)]) + authority.encode("ascii")
    if len(body) + 2 > MAX_BODY_BYTES:
        raise LinkError(f"the addresses need {len(body) + 2} bytes, and a link holds {MAX_BODY_BYTES}; name fewer")
    return (len(body) + 2).to_bytes(2, "big") + body


def decode_body(body: bytes) -> tuple[str, str, tuple[EntryPoint, ...], LinkAccess | None, str | None]:
    """Run id, organiser, entries, access and authority of a body whose checksum was right.

    Raises `LinkError` if it makes no sense.
    """
    reader = _Reader(body)
    if reader.take(2) != len(body).to_bytes(2, "big") or len(body) > MAX_BODY_BYTES:
        _refuse()
    run_id, organiser = reader.take(32).hex(), reader.take(32).hex()
    entries: list[EntryPoint] = []
    access = authority = None
    while not reader.at_end:
        if reader.next_byte == _ACCESS:
            access = _decode_access(reader)
            break
        if reader.next_byte == _AUTHORITY:
            authority = _decode_authority(reader)
            break
        entries.append(_decode_entry(reader, organiser))
    if encode_body(run_id, organiser, tuple(entries), access, authority) != body:
        _refuse()
    return run_id, organiser, tuple(entries), access, authority


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    @property
    def at_end(self) -> bool:
        return self._position == len(self._data)

    @property
    def next_byte(self) -> int:
        return self._data[self._position]

    def take(self, size: int) -> bytes:
        piece = self._data[self._position : self._position + size]
        if len(piece) != size:
            _refuse()
        self._position += size
        return piece


def _encode_entry(entry: EntryPoint, organiser: str) -> bytes:
    is_organiser = entry.peer_id == organiser
    flags = len(entry.direct) | (_ORGANISER if is_organiser else 0) | (_RELAY if entry.relay is not None else 0)
    parts = [bytes([flags])]
    if not is_organiser:
        parts.append(bytes.fromhex(entry.peer_id))
    if entry.direct:
        packed = [_pack_endpoint(text) for text in entry.direct]
        parts.append(bytes([sum(1 << i for i, endpoint in enumerate(packed) if len(endpoint) == 18)]))
        parts += packed
    if entry.relay is not None:
        host = entry.relay.removeprefix(_HTTPS).encode("ascii")
        parts.append(bytes([len(host)]) + host)
    return b"".join(parts)


def _decode_entry(reader: _Reader, organiser: str) -> EntryPoint:
    flags = reader.take(1)[0]
    count = flags & _COUNT
    if flags & _RESERVED or count > MAX_DIRECT:
        _refuse()
    peer_id = organiser if flags & _ORGANISER else reader.take(32).hex()
    families = reader.take(1)[0] if count else 0
    direct = tuple(_unpack_endpoint(reader.take(18 if families >> i & 1 else 6)) for i in range(count))
    relay = None
    if flags & _RELAY:
        try:
            relay = _HTTPS + reader.take(reader.take(1)[0]).decode("ascii")
        except UnicodeDecodeError:
            _refuse()
    return EntryPoint(peer_id, direct, relay)


def _decode_access(reader: _Reader) -> LinkAccess:
    reader.take(1)
    size = int.from_bytes(reader.take(2), "big")
    if size > MAX_ACCESS_BYTES:
        _refuse()
    try:
        return LinkAccess.decode(reader.take(size))
    except ValueError:
        _refuse()


def _decode_authority(reader: _Reader) -> str:
    reader.take(1)
    try:
        return reader.take(reader.take(1)[0]).decode("ascii")
    except UnicodeDecodeError:
        _refuse()


def _check_authority(url: str, access: LinkAccess | None) -> None:
    if access is not None:
        raise LinkError("a link either admits its reader or names an authority to log in at, not both")
    if not is_safe_url(url):
        raise LinkError(
            f"{str(url)[:60]!r} is no address of an authority: write an https:// URL of at most {MAX_URL_CHARACTERS} "
            "characters; http:// is for this machine (127.0.0.1, ::1, localhost) only, since people send secrets there"
        )


def _pack_endpoint(text: str) -> bytes:
    match = _ENDPOINT.fullmatch(text) if isinstance(text, str) else None
    try:
        if match is None:
            raise ValueError
        address = ipaddress.IPv6Address(match[1]) if match[1] else ipaddress.IPv4Address(match[2])
        port = int(match[3])
        if not 1 <= port <= 65535:
            raise ValueError
    except ValueError:
        raise LinkError(
            f"{str(text)[:60]!r} is no address for a link: "
            "write 192.0.2.7:4433 or [2001:db8::7]:4433, without an interface name"
        ) from None
    return address.packed + port.to_bytes(2, "big")


def _unpack_endpoint(packed: bytes) -> str:
    port = int.from_bytes(packed[-2:], "big")
    if len(packed) == 18:
        return f"[{ipaddress.IPv6Address(packed[:16])}]:{port}"
    return f"{ipaddress.IPv4Address(packed[:4])}:{port}"


def _refuse() -> NoReturn:
    raise LinkError(
        "the link was copied correctly but says something that this version of minga does not understand; "
        "update minga, or ask the organiser for a new link"
    )


# ---- The word that people copy: body and checksum, and what may stand around it.


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
_QUOTED = re.compile(r"^[ \t]*[>|][>| \t]*", re.MULTILINE)
"""What mail programs put before each line of what they quote."""
_COMMAND = re.compile(r"[\W_]*minga\s+[a-z]+\s+(?=[\W_]*minga)", re.ASCII | re.IGNORECASE)
_PAGE = re.compile(r"https?://[!-\"$-~]{1,2000}#(?=[\W_]*minga)", re.ASCII | re.IGNORECASE)
_HEAD = re.compile(rf"{PREFIX}([0-9])", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False)
class Link(str):
    """The way into a run: the word that people copy, and what it says.

    That is the run's id, the organiser's public key (both 64 hexadecimal digits) and entry addresses. For a run for
    members it may also hold a grant that admits its reader, or the URL of the authority at which to log in.

    `LinkError` is raised for values that no link can carry: no entry or more than 8, two entries for one peer,
    malformed ids, an authority without https, or more than 2,000 bytes in all.
    """

    run_id: str
    organiser: str
    entries: tuple[EntryPoint, ...]
    access: LinkAccess | None = None
    authority: str | None = None

    def __new__(
        cls,
        run_id: str,
        organiser: str,
        entries: tuple[EntryPoint, ...],
        access: LinkAccess | None = None,
        authority: str | None = None,
    ) -> Self:
        """See the class."""
        for name, value in (("run_id", run_id), ("organiser", organiser)):
            if not is_peer_id(value):
                raise LinkError(f"a link's {name} must be 64 lower-case hexadecimal digits")
        if not isinstance(entries, tuple) or not all(isinstance(entry, EntryPoint) for entry in entries):
            raise LinkError("a link's entries must be a tuple of Entry")
        if not 1 <= len(entries) <= MAX_ENTRIES:
            raise LinkError(f"a link names 1 to {MAX_ENTRIES} peers to enter by, not {len(entries)}")
        if len({entry.peer_id for entry in entries}) != len(entries):
            raise LinkError("a link names each peer only once")
        if access is not None and access.grant.run.hex() != run_id:
            raise LinkError("the grant in the link belongs to another run")
        body = encode_body(run_id, organiser, entries, access, authority)
        return str.__new__(cls, f"{PREFIX}{FORMAT_VERSION}{_base32(body + _checksum(body))}")

    def __getnewargs__(self) -> tuple[Any, ...]:  # for copies
        return self.run_id, self.organiser, self.entries, self.access, self.authority

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

    def at(self, landing_url: str | None) -> str:
        """The link as people get it: behind the address of the run's page, if it has one."""
        return str(self) if landing_url is None else f"{landing_url}#{self}"

    def qr(self, landing_url: str | None = None) -> str:
        """A QR code for a terminal, see `in_terminal`.

        It holds the link at the run's page, if there is one and the code has room for both, else the bare link.
        """
        return in_terminal(self._code(landing_url))

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
    text = _QUOTED.sub("", text)
    word = _INVISIBLE.sub("", _COMMAND.sub("", _PAGE.sub("", text, count=1), count=1)).strip(_DRESSING)
    word = "".join(character.lower() if character.isascii() else character for character in word)
    if not word:
        raise LinkError("the link is empty; paste the word that begins with minga1")
    head = _HEAD.match(word)
    if head is None:
        if word == PREFIX[: len(word)]:
            raise LinkError(f"the link is cut off after {len(word)} characters; {_COPY_AGAIN}")
        given = text.strip()
        shown = given if len(given) <= SHOWN_CHARACTERS else f"{given[:SHOWN_CHARACTERS]}…"
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


# ---- From where a link leads into its run, judged by the addresses in it.


class Reach(StrEnum):
    """The widest circle of machines from which some entry can be dialled."""

    MACHINE = "this machine"
    NETWORK = "this local network"
    INTERNET = "the internet"


def reach_of(entries: Iterable[EntryPoint]) -> Reach:
    """How far the entries are good for: a relay or a public address is for the internet, loopback for one machine.

    It tells what the addresses are for, not whether a firewall or a router lets peers in.
    """
    reach = Reach.MACHINE
    for entry in entries:
        if entry.relay is not None or any(map(is_public, entry.direct)):
            return Reach.INTERNET
        if not all(map(_is_loopback, entry.direct)):
            reach = Reach.NETWORK
    return reach


def _is_loopback(endpoint: str) -> bool:
    return ipaddress.ip_address(endpoint.rpartition(":")[0].strip("[]")).is_loopback
