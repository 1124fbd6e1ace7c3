"""Access tokens: what a peer shows to take part in a run of members.

A token is bound to its peer's key, in one of two ways:

    grant to the peer's key itself                          signed by the organisers
    grant to the key of an invitation                       signed by the organisers
      └─ signature of the peer's id by the invitation       made by the peer, who had the invitation's secret

So an invitation link admits whoever holds it, without a server and without the organisers being there, and what comes
of it is a token that everybody can verify offline and nobody else can use: connections prove their peer's key. The
secret itself never leaves the joining machine.

How often an invitation was used no signature can tell. Peers count whom they know, see `minga.training._admission`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from minga.core._decoding import DECODING_ERRORS
from minga.identity._access_orders import Grant
from minga.identity._keys import SIGNATURE_BYTES, Identity, verify

MAX_TOKEN_BYTES = 1024
"""A token with the signatures of seven organisers takes about 870 bytes."""

USE_CONTEXT = b"access-by-invitation"


class Token(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A grant, and for a grant to an invitation its signature of the peer's id (`proof`, else empty)."""

    grant: Grant
    proof: Annotated[bytes, msgspec.Meta(max_length=SIGNATURE_BYTES)] = b""

    @classmethod
    def by_invitation(cls, grant: Grant, invitation: Identity, peer_id: str) -> Token:
        """The token of a peer that holds the secret key of an invitation."""
        return cls(grant, invitation.sign(_use(grant, peer_id), context=USE_CONTEXT))

    @classmethod
    def decode(cls, data: bytes) -> Token:
        """Read what `encode` wrote; `ValueError` for anything else. Nothing is verified yet."""
        if len(data) > MAX_TOKEN_BYTES:
            raise ValueError(f"an access token has at most {MAX_TOKEN_BYTES} bytes, not {len(data)}")
        try:
            token = msgspec.msgpack.decode(data, type=cls)
        except DECODING_ERRORS as error:
            raise ValueError(f"no access token: {error}") from error
        if token.encode() != data:
            raise ValueError("no access token: not in the one form allowed")
        return token

    def encode(self) -> bytes:
        """The token as bytes."""
        return msgspec.msgpack.encode(self)

    @property
    def invitation(self) -> str | None:
        """The key of the invitation by which the peer came, or None if it was admitted by its own key."""
        return self.grant.subject.hex() if self.grant.uses else None

    def is_bound_to(self, peer_id: str) -> bool:
        """Whether it is the token of this peer and no other."""
        if not self.grant.uses:
            return self.grant.subject.hex() == peer_id and not self.proof
        return verify(self.grant.subject.hex(), self.proof, _use(self.grant, peer_id), context=USE_CONTEXT)


def _use(grant: Grant, peer_id: str) -> bytes:
    return msgspec.msgpack.encode((grant.run, bytes.fromhex(peer_id)))
