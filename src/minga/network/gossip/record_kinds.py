"""Kinds of records, and what this room itself lets peers say: where they are, that they live, that they leave.

Every other kind belongs to the room that gives it a meaning. That room declares the struct of the payload and a
`Kind`; the room that makes the board puts all kinds together (`RecordKinds.extended`) and hands them to it. A kind that
a board was not given is *opaque* to it: kept within bounds and passed on, see `minga.network.gossip.record_store`.

Unknown fields of a payload are ignored, and fields that are missing take their defaults. So a field may be added at the
end of a payload, with a default. `CONTRIBUTING.md` has the whole rule.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import ConfigurationError
from minga.network.authorizer import MAX_CREDENTIAL_BYTES
from minga.network.interface import Endpoints, RelayUrl
from minga.network.rpc.handshake import Incarnation, Nonce, Word

MAX_PAYLOAD_BYTES = 4096
MAX_CODE = 255
LARGEST = 1e18
"""No number of a record is larger; one that is cannot be published."""
_REMEMBERED = 4096  # payloads that were opened lately, by any of the peers in this process: a simulation has many

SIGNED_NAMES = {
    1: "address",
    2: "progress",
    3: "state",
    4: "metrics",
    5: "beat",
    6: "left",
    7: "links",
    8: "access",
}
"""The first kinds sign their names. All later ones sign their codes, which peers that do not know them can check."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Amount = Annotated[float, msgspec.Meta(ge=0.0, le=LARGEST)]
Number = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
ShortText = Annotated[str, msgspec.Meta(max_length=200)]


class Payload(msgspec.Struct, frozen=True):
    """Base of what records carry. Bounds are checked when one is decoded or published; NaN and infinity never pass."""


class AddressInfo(Payload, frozen=True):
    """Name "address": how the owner takes part and where it can be dialled (nowhere if `direct` and `relay` are
    empty). `role` is a `Role`, or one that is not known here. `incarnation` is the process that says this, and `rival`
    the nonce of a younger one with the same key, of which it knows: it lived when that one had begun.
    """

    role: Word
    direct: Endpoints = ()
    relay: RelayUrl | None = None
    incarnation: Incarnation | None = None
    rival: Nonce | None = None


class Beat(Payload, frozen=True):
    """Name "beat": alive, and nothing else to say."""


class Left(Payload, frozen=True):
    """Name "left": goodbye. It voids all earlier records of the owner."""

    reason: ShortText = ""


class Credential(Payload, frozen=True):
    """Name "access": the credential that the owner shows in handshakes, for peers that never connect to it."""

    credential: Annotated[bytes, msgspec.Meta(max_length=MAX_CREDENTIAL_BYTES)]


class Kind(NamedTuple):
    """One name a record may have: its code on the wire, the struct of its payload and the most bytes that may take.

    An empty payload retracts the record. `is_basic` kinds are read by every version: an empty or broken payload of one
    is an offence. `is_urgent` records go out at once; only the owner sends `is_large` ones.
    """

    name: str
    code: int
    type: type[Payload]
    max_bytes: int
    is_basic: bool = False
    is_urgent: bool = False
    is_large: bool = False


class RecordKinds:
    """The kinds that a board can read. Raises `ConfigurationError` if two share a name, code or type."""

    def __init__(self, *kinds: Kind) -> None:
        self._kinds = kinds
        self._by_type = {kind.type: kind for kind in kinds}
        self._by_code = {kind.code: kind for kind in kinds}
        if not len(kinds) == len(self._by_type) == len(self._by_code) == len({kind.name for kind in kinds}):
            raise ConfigurationError("two kinds of records share a name, a code or a type")
        for kind in kinds:
            _check(kind)

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds)

    def __contains__(self, code: int) -> bool:
        return code in self._by_code

    def extended(self, *kinds: Kind) -> RecordKinds:
        """These kinds and more. Raises `ConfigurationError` as the constructor does."""
        return type(self)(*self._kinds, *kinds)

    def of(self, payload_type: type[Payload]) -> Kind:
        """The kind that carries this struct. Raises `ConfigurationError` if none does."""
        kind = self._by_type.get(payload_type)
        if kind is None:
            raise ConfigurationError(f"no record carries a {payload_type.__name__}")
        return kind

    def with_code(self, code: int) -> Kind | None:
        """The kind with this code, or None."""
        return self._by_code.get(code)

    def is_basic(self, code: int) -> bool:
        """Whether every version reads records with this code."""
        return code in self._by_code and self._by_code[code].is_basic

    def name(self, code: int) -> str:
        """The name of the kind with this code, or the code itself if the kind is unknown."""
        return self._by_code[code].name if code in self._by_code else SIGNED_NAMES.get(code, f"#{code}")

    def encode(self, payload: Payload) -> bytes:
        """Payload as bytes. Raises `ConfigurationError` if a field is out of range or no record carries that type."""
        kind = self.of(type(payload))
        try:
            # Decoding checks the bounds, and turns an integer that was put where a float belongs into one.
            encoded = msgspec.msgpack.encode(decode_msgpack(msgspec.msgpack.encode(payload), kind.type))
        except (*DECODING_ERRORS, TypeError, OverflowError) as error:
            raise ConfigurationError(f"record {kind.name!r}: {error}") from error
        if len(encoded) > kind.max_bytes:
            raise ConfigurationError(f"record {kind.name!r}: {len(encoded)} bytes exceed {kind.max_bytes}")
        return encoded

    def open(self, code: int, payload: bytes) -> Payload | None:
        """The payload of a record with this code as the struct of its kind; None for a retraction.

        Raises `ValueError` if it does not fit, as with what a later version says, or if the kind is not known.
        """
        kind = self._by_code.get(code)
        if kind is None:
            raise ValueError(f"record {self.name(code)!r}: not known here")
        if len(payload) > kind.max_bytes:
            raise ValueError(f"record {kind.name!r}: {len(payload)} bytes exceed {kind.max_bytes}")
        return _opened(kind, payload)


@functools.lru_cache(maxsize=_REMEMBERED)
def _opened(kind: Kind, payload: bytes) -> Payload | None:
    if not payload and not kind.is_basic:
        return None
    try:
        return decode_msgpack(payload, kind.type)
    except DECODING_ERRORS as error:
        raise ValueError(f"record {kind.name!r}: {error}") from error


def _check(kind: Kind) -> None:
    if not 0 < kind.code <= MAX_CODE or not 0 < kind.max_bytes <= MAX_PAYLOAD_BYTES:
        raise ConfigurationError(f"record {kind.name!r}: code {kind.code} or bound {kind.max_bytes} is out of range")
    if SIGNED_NAMES.get(kind.code, kind.name) != kind.name or (kind.name in SIGNED_NAMES.values()) != (
        kind.code in SIGNED_NAMES
    ):
        raise ConfigurationError(f"record {kind.name!r}: code {kind.code} or that name belongs to another kind")


ADDRESS = Kind("address", 1, AddressInfo, 2048, is_urgent=True)
BEAT = Kind("beat", 5, Beat, 64, is_basic=True)
LEFT = Kind("left", 6, Left, 1024, is_basic=True, is_urgent=True)
ACCESS = Kind("access", 8, Credential, MAX_CREDENTIAL_BYTES + 64, is_basic=True, is_urgent=True)

NETWORK_KINDS = RecordKinds(ADDRESS, BEAT, LEFT, ACCESS)
"""The kinds that every peer of every run can write."""
