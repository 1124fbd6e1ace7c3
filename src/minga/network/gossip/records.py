"""Records: what a peer says about itself, signed by its key.

A record belongs to its owner and has one of the names in `KINDS`; its payload is the msgpack of the struct that goes
with the name, in exactly the form that this module would write. All records of an owner share one version counter,
strictly increasing: a peer starts it at the Unix time in milliseconds and skips above whatever the swarm remembers
of its earlier life. The signature covers the run id and everything in the record, so that nothing can be altered,
reused under another name or carried to another run.

Dates may be wrong by up to `CLOCK_SKEW_S`: an expiry further ahead than `MAX_TTL_S` plus that, or further in the
past than that, is ignored. Both are a matter of clocks and not counted as a breach of the protocol.
"""

from __future__ import annotations

import enum
import functools
from typing import Annotated, Literal, NamedTuple, Protocol

import msgspec

from minga.core.decoding import DECODING_ERRORS
from minga.core.errors import ConfigurationError
from minga.identity.keys.keys import verify
from minga.network.authorizer import MAX_CREDENTIAL_BYTES
from minga.network.interface import Endpoints, PeerId, RelayUrl
from minga.network.rpc.handshake import Role

TTL_S, TTL_BEATS = 60.0, 24.0
"""Seconds for which a record is valid, or beats, if that is longer; its owner renews it after a third of that."""

MAX_TTL_S = 3600.0
CLOCK_SKEW_S = 120.0
"""How wrong, in seconds, the clock of a peer may be."""

MAX_PAYLOAD_BYTES = 4096
_REMEMBERED = 4096  # records that were checked lately, by any of the peers in this process: a simulation has many
MAX_LINK_ROWS = 64
SIGNING_CONTEXT = b"minga/record/1"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e18)]
Number = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
UnixTime = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]
Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
ShortText = Annotated[str, msgspec.Meta(max_length=200)]
RateNumber = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Status = Literal["training", "syncing", "averaging", "finished"]


class Payload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what records carry. Bounds are checked when one is decoded or published; NaN and infinity never pass."""


class AddressInfo(Payload, frozen=True):
    """Name "address": how the owner takes part and where it can be dialled (nowhere if `direct` and `relay` are
    empty).
    """

    role: Role
    direct: Endpoints = ()
    relay: RelayUrl | None = None


class Progress(Payload, frozen=True):
    """Name "progress": the global step the owner is at, samples accumulated towards the next, and its speed.

    `time` is the owner's Unix time of the count. `vector_bytes` is what the vector that the run averages takes as
    encoded, 0 if the owner does not say. `target_batch_size` is that of the step, 0 likewise.
    """

    step: Count
    samples: Count
    samples_per_second: Amount
    status: Status
    time: UnixTime
    client: bool = False
    vector_bytes: Count = 0
    target_batch_size: Count = 0


class StateInfo(Payload, frozen=True):
    """Name "state": digest (64 hexadecimal digits) of the owner's training state after `step`."""

    step: Count
    digest: Digest


class Metrics(Payload, frozen=True):
    """Name "metrics": running totals for displays. `loss_sum` is summed over `mini_steps` local micro-batches."""

    step: Count
    loss_sum: Number
    samples: Count
    mini_steps: Count
    bytes_sent: Count = 0
    bytes_received: Count = 0


class LinkRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the owner knows of its path to one other peer, whose `key` is its `link_key`.

    `sent` and `received` are what the path carries in bytes per second, 0 where unknown, `sent` as the other one
    acknowledged it; `sent_mean` and `received_mean` what it moved in the best of the last rounds, over the whole round.
    `sent_percent` compares `sent` with what the owner's line could have sent at those moments, 0 where nothing showed
    that the path is what was slow. `round_trip_us` is in microseconds, 0 where unknown.
    """

    key: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
    sent: RateNumber
    received: RateNumber
    sent_mean: RateNumber
    received_mean: RateNumber
    sent_percent: Percent
    round_trip_us: Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class Links(Payload, frozen=True):
    """Name "links": what the owner's line carries, and its caps, in bytes per second; 0 where unknown or unlimited.

    What is not `shown` it carries at least: it was never full.
    """

    upload: RateNumber = 0
    download: RateNumber = 0
    upload_cap: RateNumber = 0
    download_cap: RateNumber = 0
    rows: Annotated[tuple[LinkRow, ...], msgspec.Meta(max_length=MAX_LINK_ROWS)] = ()
    upload_shown: bool = True
    download_shown: bool = True


class Beat(Payload, frozen=True):
    """Name "beat": alive, and nothing else to say."""


class Left(Payload, frozen=True):
    """Name "left": goodbye. It voids all earlier records of the owner."""

    reason: ShortText = ""


class Credential(Payload, frozen=True):
    """Name "access": what the owner shows in its hellos, for those who never meet it."""

    credential: Annotated[bytes, msgspec.Meta(max_length=MAX_CREDENTIAL_BYTES)]


def link_key(peer: PeerId) -> bytes:
    """What stands for a peer in the rows of `Links`: the first bytes of its key."""
    return bytes.fromhex(peer[:16])


class Kind(NamedTuple):
    """One name a record may have: its code on the wire, the struct of its payload, the most bytes that may take, and
    whether an empty payload may take back what was said.
    """

    name: str
    code: int
    type: type[Payload]
    max_bytes: int
    retractable: bool = True


KINDS = {
    kind.name: kind
    for kind in (
        Kind("address", 1, AddressInfo, 2048),
        Kind("progress", 2, Progress, 512),
        Kind("state", 3, StateInfo, 512),
        Kind("metrics", 4, Metrics, MAX_PAYLOAD_BYTES),
        Kind("beat", 5, Beat, 64, False),
        Kind("left", 6, Left, 1024, False),
        Kind("links", 7, Links, MAX_PAYLOAD_BYTES),
        Kind("access", 8, Credential, MAX_CREDENTIAL_BYTES + 64, False),
    )
}
KINDS_BY_TYPE = {kind.type: kind for kind in KINDS.values()}
KINDS_BY_CODE = {kind.code: kind for kind in KINDS.values()}


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A signed record as it travels: `key` is the owner's public key (32 bytes), `code` stands for the name,
    `expires` is in Unix milliseconds.

    Only types and bounds are sure after decoding; `check_form`, `check_dates` and `open_payload` check the rest.
    """

    key: Annotated[bytes, msgspec.Meta(max_length=32)]
    code: Annotated[int, msgspec.Meta(ge=0, le=255)]
    version: Annotated[int, msgspec.Meta(ge=0)]
    expires: Annotated[int, msgspec.Meta(ge=0)]
    payload: Annotated[bytes, msgspec.Meta(max_length=MAX_PAYLOAD_BYTES)]
    signature: Annotated[bytes, msgspec.Meta(max_length=64)]

    @property
    def owner(self) -> PeerId:
        """The peer id of the owner."""
        return PeerId(self.key.hex())


class Verdict(enum.Enum):
    """What became of a record that was received: NEW ones are kept, the others dropped and counted by reason."""

    NEW = "new"
    STALE = "stale"
    EXPIRED = "expired: the owner's clock or this one is wrong, or the record is a replay"
    FUTURE = "expires too far ahead: the owner's clock or this one is wrong"
    FULL = "too many owners on the board"
    SUPERSEDING = "of an earlier life of this peer"
    TOO_OFTEN = "its owner writes too often"
    NOT_ADMITTED = "its owner is not admitted to the run"
    MALFORMED = "malformed key or signature"
    UNKNOWN_NAME = "unknown record name"
    OVERSIZED = "oversized payload"
    FORGED = "wrong signature"
    BAD_PAYLOAD = "the payload does not fit the record's name"

    @property
    def is_offence(self) -> bool:
        """Whether an honest peer would never have sent this."""
        return self in _OFFENCES


_OFFENCES = {Verdict.MALFORMED, Verdict.UNKNOWN_NAME, Verdict.OVERSIZED, Verdict.FORGED, Verdict.BAD_PAYLOAD}


class Signer(Protocol):
    """A key that can sign, such as `minga.identity`'s."""

    @property
    def peer_id(self) -> str:
        """Public key as 64 lower-case hexadecimal digits."""

    def sign(self, message: bytes, *, context: bytes = b"") -> bytes:
        """The 64-byte Ed25519 signature of `message` for the purpose `context`."""


def signed_bytes(run_id: str, record: Record) -> bytes:
    """The bytes that the signature of a record covers, together with `SIGNING_CONTEXT`."""
    return msgspec.msgpack.encode(
        (run_id, record.key, KINDS_BY_CODE[record.code].name, record.version, record.expires, record.payload)
    )


def encode_payload(payload: Payload) -> bytes:
    """Payload as bytes. Raises `ConfigurationError` if a field is out of range or no record carries that type."""
    kind = KINDS_BY_TYPE.get(type(payload))
    if kind is None:
        raise ConfigurationError(f"no record carries a {type(payload).__name__}")
    try:
        # Decoding checks the bounds, and turns an integer that was put where a float belongs into one.
        encoded = msgspec.msgpack.encode(msgspec.msgpack.decode(msgspec.msgpack.encode(payload), type=kind.type))
    except (*DECODING_ERRORS, TypeError, OverflowError) as error:
        raise ConfigurationError(f"record {kind.name!r}: {error}") from error
    if len(encoded) > kind.max_bytes:
        raise ConfigurationError(f"record {kind.name!r}: {len(encoded)} bytes exceed {kind.max_bytes}")
    return encoded


def make_record(signer: Signer, run_id: str, code: int, version: int, expires: int, payload: bytes) -> Record:
    """Sign an encoded payload. `expires` is in Unix milliseconds."""
    unsigned = Record(bytes.fromhex(signer.peer_id), code, version, expires, payload, b"")
    signature = signer.sign(signed_bytes(run_id, unsigned), context=SIGNING_CONTEXT)
    return msgspec.structs.replace(unsigned, signature=signature)


@functools.lru_cache(maxsize=_REMEMBERED)
def is_genuine(record: Record, run_id: str) -> bool:
    """Whether the owner's key signed the record, for this run."""
    return verify(record.owner, record.signature, signed_bytes(run_id, record), context=SIGNING_CONTEXT)


def check_form(record: Record) -> Verdict:
    """Check what can be seen without keys or clocks: lengths and the name."""
    if len(record.key) != 32 or len(record.signature) != 64:
        return Verdict.MALFORMED
    kind = KINDS_BY_CODE.get(record.code)
    if kind is None:
        return Verdict.UNKNOWN_NAME
    return Verdict.OVERSIZED if len(record.payload) > kind.max_bytes else Verdict.NEW


def check_dates(record: Record, now_ms: float) -> Verdict:
    """Check that the expiry is neither absurdly far ahead nor long past. `now_ms` is in Unix milliseconds."""
    if record.expires > now_ms + (MAX_TTL_S + CLOCK_SKEW_S) * 1000.0:
        return Verdict.FUTURE
    return Verdict.EXPIRED if record.expires < now_ms - CLOCK_SKEW_S * 1000.0 else Verdict.NEW


@functools.lru_cache(maxsize=_REMEMBERED)
def open_payload(record: Record) -> Payload | None:
    """The payload as the struct of the record's name; None for a retraction. Raises `ValueError` if it does not fit.

    Only the one form that `encode_payload` writes is accepted (no integer for a float, no doubled or reordered
    fields), so that equal payloads are equal bytes.
    """
    kind = KINDS_BY_CODE[record.code]
    if not record.payload and kind.retractable:
        return None
    try:
        payload = msgspec.msgpack.decode(record.payload, type=kind.type)
    except DECODING_ERRORS as error:
        raise ValueError(f"record {kind.name!r}: {error}") from error
    if msgspec.msgpack.encode(payload) != record.payload:
        raise ValueError(f"record {kind.name!r}: not in the one form allowed")
    return payload
