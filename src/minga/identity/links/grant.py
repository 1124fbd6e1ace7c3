"""What a link carries for a run of members: a grant, and, if it is an invitation, the secret of its key.

A person who has an invitation's secret can take part, as long as the invitation lasts: give such a link to the intended
people only, and put it on no public page. A link with a grant to a peer's own key is of no use to another peer.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import LinkError
from minga.identity.access.orders import Grant
from minga.identity.access.token import Token
from minga.identity.keys.keys import SEED_BYTES, Identity

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
