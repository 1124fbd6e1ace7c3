"""What an archived checkpoint says of itself, signed by the peer that archived it.

The record names the digest of the state, which the checkpoint's manifest is checked against. So a record that
`verify` accepts, beside a checkpoint that can be read, shows which run, step and state that peer vouches for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_json
from minga.core.errors import ConfigurationError
from minga.identity.keys.keys import Identity, verify

RECORD_FILE = "archived.json"
MAX_RECORD_BYTES = 1 << 14
SIGNATURE_CONTEXT = b"minga archived checkpoint"

_Hex32 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class ArchiveRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One checkpoint of a run. `loss` is the swarm's, None if it was not known; `time` is Unix time in seconds."""

    run_id: _Hex32
    name: Annotated[str, msgspec.Meta(max_length=64)]
    step: Annotated[int, msgspec.Meta(ge=0)]
    digest: _Hex32
    loss: float | None
    time: float
    peer: _Hex32

    def encode(self) -> bytes:
        """The bytes that are signed."""
        return msgspec.json.encode(self)


class _Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    record: ArchiveRecord
    signature: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{128}$")]


def write_record(folder: Path, record: ArchiveRecord, identity: Identity) -> None:
    """Write the record into the folder of its checkpoint, signed. Raises `OSError` if the disk refuses."""
    signature = identity.sign(record.encode(), context=SIGNATURE_CONTEXT).hex()
    body = msgspec.json.format(msgspec.json.encode(_Signed(record, signature)), indent=1)
    (folder / RECORD_FILE).write_bytes(body + b"\n")


def read_record(folder: Path) -> ArchiveRecord:
    """The record of an archived checkpoint. Raises `ConfigurationError` if it is missing, damaged, or not signed by
    the peer that it names.
    """
    path = folder / RECORD_FILE
    try:
        with path.open("rb") as file:
            signed = decode_json(file.read(MAX_RECORD_BYTES), _Signed)
    except (OSError, *DECODING_ERRORS) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    record = signed.record
    if not verify(record.peer, bytes.fromhex(signed.signature), record.encode(), context=SIGNATURE_CONTEXT):
        raise ConfigurationError(f"{path}: its signature is not that of {record.peer[:16]}")
    return record
