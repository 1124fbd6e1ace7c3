"""The orders that the organisers of a run for members sign: which peers they admit, which they revoke, and which
organisers succeed them.

An order is valid if enough of the organisers of its *term* signed it. Term 0 has the organisers that the run spec names
(or, if it names none, the key that signed the spec); each `Transfer` begins the next term. The signatures cover
everything else in the order, the run's id included, and each kind of order has a context of its own. So a signature for
one purpose or run is worth nothing in another.

Orders are public: no secret is in them, and every peer may pass them on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, ClassVar, Self

import msgspec

from minga.core.decoding import decode_msgpack
from minga.core.spec.sections import MAX_ORGANISERS
from minga.identity.keys.keys import SIGNATURE_BYTES, Identity, verify

MAX_BARRED = 1000
"""How many keys one organiser may bar from a run."""

MAX_TERMS = 8
"""How many times the role of the organisers may be handed over, and once more."""

MAX_STANDING = 256
"""How many changes of a run may stay in force when the role is handed over."""

MAX_RANGES = 100
"""How many address ranges one organiser may ban from a run."""

MAX_RANGE_CHARACTERS = 43
MAX_USES = 10_000
MAX_REASON_CHARACTERS = 100
MAX_TIME_S = 1 << 40

Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
"""A public key as bytes; a peer's id is its hexadecimal form."""

SignatureBytes = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
ChangeId = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
Version = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Term = Annotated[int, msgspec.Meta(ge=0, lt=MAX_TERMS)]
UnixSeconds = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME_S)]


class Signature(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One organiser's signature of an order."""

    signer: Key
    signature: SignatureBytes


class Order(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of what organisers sign. `run` is the run's id as bytes, `issued` a date by the first signer's clock."""

    CONTEXT: ClassVar[bytes] = b""

    run: Key
    term: Term
    issued: UnixSeconds
    signatures: Annotated[tuple[Signature, ...], msgspec.Meta(max_length=MAX_ORGANISERS)]

    def statement(self) -> bytes:
        """What the signatures cover."""
        return msgspec.msgpack.encode(msgspec.structs.replace(self, signatures=()))

    def signed_by(self, organiser: Identity) -> Self:
        """The order with the signature of `organiser` added, unless it is there already."""
        signer = bytes.fromhex(organiser.peer_id)
        others = tuple(signature for signature in self.signatures if signature.signer != signer)
        added = Signature(signer, organiser.sign(self.statement(), context=self.CONTEXT))
        return msgspec.structs.replace(self, signatures=(*others, added))

    def signers(self, organisers: Collection[str]) -> set[str]:
        """Those of `organisers` (hexadecimal keys) whose first signature of this order is right."""
        statement = self.statement()
        claimed = {item.signer.hex(): item.signature for item in reversed(self.signatures)}
        return {
            signer
            for signer, signature in claimed.items()
            if signer in organisers and verify(signer, signature, statement, context=self.CONTEXT)
        }


class Grant(Order, frozen=True):
    """Admits the key `subject` itself (`uses` 0), or up to `uses` peers for whom `subject`, the key of an invitation,
    signs.

    A later revocation of the key, or one of the same `version`, voids it. It is good from `issued` to `expires`.
    """

    CONTEXT: ClassVar[bytes] = b"access-grant"

    subject: Key
    uses: Annotated[int, msgspec.Meta(ge=0, le=MAX_USES)]
    version: Version
    expires: UnixSeconds


class Revocation(Order, frozen=True):
    """One organiser's word that the key `subject`, of a peer or of an invitation, be barred.

    Grants to it up to `version` are void once enough organisers said so.
    """

    CONTEXT: ClassVar[bytes] = b"access-revocation"

    subject: Key
    version: Version
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARACTERS)] = ""


class RangeBan(Order, frozen=True):
    """One organiser's word that no peer take part from the addresses of `range` until `expires`.

    `range` is in CIDR notation. A later one of the same organiser for the same range takes the place of this one.
    """

    CONTEXT: ClassVar[bytes] = b"access-range-ban"

    range: Annotated[str, msgspec.Meta(min_length=4, max_length=MAX_RANGE_CHARACTERS)]
    expires: UnixSeconds
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARACTERS)] = ""


class Barred(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A key that was barred in an earlier term and stays so: grants to it up to `version` are void."""

    subject: Key
    version: Version


class Transfer(Order, frozen=True):
    """Hands the role over: from term `term` + 1 on `organisers`, of whom `needed` have to sign, give the orders.

    The organisers of `term` sign it. It names all revoked keys, because single revocations end with their term, and by
    their ids the changes of the run (amendments and regroups) that stay in force: no other change of earlier terms
    counts from then on, whatever date it bears.
    """

    CONTEXT: ClassVar[bytes] = b"access-transfer"

    organisers: Annotated[tuple[Key, ...], msgspec.Meta(min_length=1, max_length=MAX_ORGANISERS)]
    needed: Annotated[int, msgspec.Meta(ge=1, le=MAX_ORGANISERS)]
    barred: Annotated[tuple[Barred, ...], msgspec.Meta(max_length=MAX_BARRED * MAX_ORGANISERS)] = ()
    standing: Annotated[tuple[ChangeId, ...], msgspec.Meta(max_length=MAX_STANDING)] = ()

    def statement(self) -> bytes:
        """What the signatures cover; without `standing` where that is empty, as transfers were before it."""
        statement = super().statement()
        return statement if self.standing else msgspec.msgpack.encode(decode_msgpack(statement, list)[:-1])
