"""Records: statements of a peer about itself, signed by its key.

A record belongs to its owner and has one of the kinds of `minga.network.gossip.record_kinds`, or one that is not
known here; its payload is the msgpack of the struct that goes with the kind. All records of an owner share one
version counter, strictly increasing: a peer starts it at the Unix time in milliseconds and skips above whatever the
swarm remembers of its earlier life. The signature covers the run id and everything in the record, so that nothing can
be altered, reused under another kind or carried to another run. It covers the payload as it came, so that peers can
check it that do not know the kind, or all of its fields. `Record` itself never changes within one wire version.

Dates may be wrong by up to `CLOCK_SKEW_S`: an expiry further ahead than `MAX_TTL_S` plus that, or further in the
past than that, is ignored. Both are a matter of clocks and not counted as a breach of the protocol.
"""

from __future__ import annotations

import enum
import functools
import weakref
from typing import Annotated

import msgspec

from minga.identity.keys.keys import Identity, verify
from minga.network.gossip.record_kinds import MAX_CODE, MAX_PAYLOAD_BYTES, SIGNED_NAMES, RecordKinds
from minga.network.interface import PeerId

TTL_S, TTL_BEATS = 60.0, 24.0
"""Seconds for which a record is valid, or beats, if that is longer; its owner renews it after a third of that."""

MAX_TTL_S = 3600.0
CLOCK_SKEW_S = 120.0
"""How wrong, in seconds, the clock of a peer may be."""

_OWNERS_REMEMBERED = 8192
SIGNING_CONTEXT = b"minga/record/1"


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, weakref=True):
    """A signed record as it travels: `key` is the owner's public key (32 bytes), `code` stands for the kind,
    `expires` is in Unix milliseconds.

    Only types and bounds are sure after decoding; `check_form`, `check_dates`, `is_genuine` and `RecordKinds.open`
    check the rest.
    """

    key: Annotated[bytes, msgspec.Meta(max_length=32)]
    code: Annotated[int, msgspec.Meta(ge=0, le=MAX_CODE)]
    version: Annotated[int, msgspec.Meta(ge=0)]
    expires: Annotated[int, msgspec.Meta(ge=0)]
    payload: Annotated[bytes, msgspec.Meta(max_length=MAX_PAYLOAD_BYTES)]
    signature: Annotated[bytes, msgspec.Meta(max_length=64)]

    @property
    def owner(self) -> PeerId:
        """The peer id of the owner."""
        return _owner_of(self.key)


@functools.lru_cache(_OWNERS_REMEMBERED)
def _owner_of(key: bytes) -> PeerId:
    return PeerId(key.hex())


class Verdict(enum.Enum):
    """The verdict on a received record: NEW ones are kept, the others dropped and counted by reason."""

    NEW = "new"
    STALE = "stale"
    EXPIRED = "expired: the owner's clock or this one is wrong, or the record is a replay"
    FUTURE = "expires too far ahead: the owner's clock or this one is wrong"
    FULL = "too many owners on the board"
    SUPERSEDING = "of an earlier life of this peer"
    TOO_OFTEN = "its owner writes too often"
    NOT_ADMITTED = "its owner is not admitted to the run"
    CROWDED = "no room for more records of kinds that are not known here"
    MALFORMED = "malformed key or signature"
    FORGED = "wrong signature"
    BAD_PAYLOAD = "the payload does not fit the record's kind, which every version knows"

    @property
    def is_offence(self) -> bool:
        """Whether an honest peer would never have sent this."""
        return self in _OFFENCES

    __hash__ = object.__hash__  # that of enumerations is slow, and verdicts are counted for each record


_OFFENCES = {Verdict.MALFORMED, Verdict.FORGED, Verdict.BAD_PAYLOAD}


def signed_bytes(run_id: str, record: Record) -> bytes:
    """The bytes that the signature of a record covers, together with `SIGNING_CONTEXT`."""
    signed_as = SIGNED_NAMES.get(record.code, record.code)
    return msgspec.msgpack.encode((run_id, record.key, signed_as, record.version, record.expires, record.payload))


def make_record(signer: Identity, run_id: str, code: int, version: int, expires: int, payload: bytes) -> Record:
    """Sign an encoded payload. `expires` is in Unix milliseconds."""
    unsigned = Record(bytes.fromhex(signer.peer_id), code, version, expires, payload, b"")
    signature = signer.sign(signed_bytes(run_id, unsigned), context=SIGNING_CONTEXT)
    return msgspec.structs.replace(unsigned, signature=signature)


_checked = weakref.WeakValueDictionary[tuple[str, bytes], Record]()
"""The genuine records that boards in this process hold, by run and signature: a simulation has many boards."""


def genuine(record: Record, run_id: str) -> Record | None:
    """The record, or the equal one that this process checked before and still holds; None if the owner's key did not
    sign it for this run.

    So all boards of a process share one object, and its signature is checked once. What no board holds is forgotten.
    """
    known = _checked.get((run_id, record.signature))
    if known is not None and known == record:
        return known
    if not verify(record.owner, record.signature, signed_bytes(run_id, record), context=SIGNING_CONTEXT):
        return None
    _checked[run_id, record.signature] = record
    return record


def is_genuine(record: Record, run_id: str) -> bool:
    """Whether the owner's key signed the record, for this run."""
    return genuine(record, run_id) is not None


def check_form(record: Record, kinds: RecordKinds) -> Verdict:
    """Check what can be seen without keys or clocks: lengths, and the payload of a kind that every version knows."""
    if not record.code or len(record.key) != 32 or len(record.signature) != 64:
        return Verdict.MALFORMED
    kind = kinds.with_code(record.code)
    is_broken = kind is not None and kind.is_basic and len(record.payload) > kind.max_bytes
    return Verdict.BAD_PAYLOAD if is_broken else Verdict.NEW


def check_dates(record: Record, now_ms: float) -> Verdict:
    """Check that the expiry is neither absurdly far ahead nor long past. `now_ms` is in Unix milliseconds."""
    if record.expires > now_ms + (MAX_TTL_S + CLOCK_SKEW_S) * 1000.0:
        return Verdict.FUTURE
    return Verdict.EXPIRED if record.expires < now_ms - CLOCK_SKEW_S * 1000.0 else Verdict.NEW
