"""A run spec with its organiser's signature, as peers hand it to each other.

The link names the run id and the organiser's key, so any peer may serve the spec: a wrong one is recognised before
anything in it is read.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import ProtocolError
from minga.core.spec.run_spec import MAX_SPEC_BYTES, RunSpec, run_id_of
from minga.identity.keys.keys import SIGNATURE_BYTES, Identity, verify

SIGNATURE_CONTEXT = b"run-spec"
MAX_SIGNED_SPEC_BYTES = MAX_SPEC_BYTES + 256


class SignedRunSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The canonical bytes of a published run spec, the organiser's key (hexadecimal) and its signature of the bytes."""

    spec: Annotated[bytes, msgspec.Meta(max_length=MAX_SPEC_BYTES)]
    organiser: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]

    @classmethod
    def sign(cls, spec: RunSpec, organiser: Identity) -> SignedRunSpec:
        """Sign a spec as returned by `RunSpec.published`."""
        body = spec.canonical_bytes()
        return cls(body, organiser.peer_id, organiser.sign(body, context=SIGNATURE_CONTEXT))

    @classmethod
    def decode(cls, data: bytes, *, peer: str | None = None) -> SignedRunSpec:
        """Read what `encode` wrote; anything else is a `ProtocolError` that blames `peer`. Nothing is verified yet."""
        if len(data) > MAX_SIGNED_SPEC_BYTES:
            raise ProtocolError(f"a signed run spec of {len(data)} bytes exceeds {MAX_SIGNED_SPEC_BYTES}", peer=peer)
        try:
            return decode_msgpack(data, cls)
        except DECODING_ERRORS as error:
            raise ProtocolError(f"malformed signed run spec: {error}", peer=peer) from error

    def encode(self) -> bytes:
        """The signed spec as bytes."""
        return msgspec.msgpack.encode(self)

    @property
    def run_id(self) -> str:
        """The run id that belongs to the bytes of the spec."""
        return run_id_of(self.spec)

    def verify(self, expected_run_id: str, expected_organiser: str, *, peer: str | None = None) -> RunSpec:
        """The run spec, if it is the one that the link promises.

        Raises `ProtocolError`, blaming `peer` who sent it, if it belongs to another run or organiser or its signature
        is wrong; `ConfigurationError` if it is genuine but this version of minga cannot follow it.
        """
        if self.run_id != expected_run_id:
            raise ProtocolError("sent the run spec of another run than the link names", peer=peer)
        if self.organiser != expected_organiser:
            raise ProtocolError("sent a run spec signed by someone else than the organiser in the link", peer=peer)
        if not verify(self.organiser, self.signature, self.spec, context=SIGNATURE_CONTEXT):
            raise ProtocolError("sent a run spec whose signature is wrong", peer=peer)
        spec = RunSpec.from_canonical(self.spec, "the organiser's run spec")
        if spec.begun_by not in (None, self.organiser):
            raise ProtocolError("sent the run spec of a run that another peer began", peer=peer)
        return spec
