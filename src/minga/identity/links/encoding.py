"""The body of a link: ids and entry addresses in as few bytes as possible, since every byte makes the QR code denser.

    length of the body        2 bytes, these included, so that a truncation can be named
    run id, organiser's key   32 bytes each
    entries until the end     flags (1 byte) · peer id (32) unless it is the organiser
                              · families (1) and endpoints (6 or 18 each) if there are any
                              · length (1) and text of the relay URL without `https://` if there is one
    access, if there is any   0x20 (in place of flags) · length (2) · see `grant.py`
    or else an authority      0x10 (in place of flags) · length (1) · URL where people log in to get access

    flags     bit 7: the peer is the organiser    bit 6: has a relay    bits 5, 4: zero    bits 3-0: endpoints, 0 to 8
    families  bit i: endpoint i is IPv6 (address 16 bytes, port 2) rather than IPv4 (4 and 2)

Each link has exactly one encoding; whatever does not re-encode to itself is refused.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import NoReturn

from minga.core.errors import LinkError
from minga.core.urls import MAX_URL_CHARACTERS, is_https_url, is_safe_url
from minga.identity.keys.keys import is_peer_id
from minga.identity.links.grant import MAX_ACCESS_BYTES, LinkAccess

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
