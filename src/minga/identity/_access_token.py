"""Access tokens: what a peer shows to take part in a run of members.

A token is bound to its peer's key, in one of two ways:

    grant to the peer's key itself                          signed by the organisers
    grant to the key of an invitation                       signed by the organisers
      └─ signature of the peer's id by the invitation       made by the peer, who had the invitation's secret

and either of these may be followed by a member's word that another key may look on for it (`Watch`): so `minga status`
works beside a peer that runs with the admitted key.

So an invitation link admits whoever holds it, without a server and without the organisers being there, and what comes
of it is a token that everybody can verify offline and nobody else can use: connections prove their peer's key. The
secret itself never leaves the joining machine.

How often an invitation was used no signature can tell. Peers count whom they know, see `minga.training._admission`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from minga.core._decoding import DECODING_ERRORS
from minga.identity._access_orders import Grant, Key, SignatureBytes, UnixSeconds
from minga.identity._keys import SIGNATURE_BYTES, Identity, verify

MAX_TOKEN_BYTES = 1024
"""A token with the signatures of seven organisers takes about 990 bytes."""

USE_CONTEXT, WATCH_CONTEXT = b"access-by-invitation", b"access-watch"


class Watch(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The word of `member` that whoever shows this may look on, but take part in nothing, until `expires`."""

    member: Key
    expires: UnixSeconds
    signature: SignatureBytes


class Token(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A grant, and for a grant to an invitation its signature of the peer's id (`proof`, else empty).

    With `watch` the grant is that of the member who vouches; an organiser, who needs none, vouches without.
    """

    grant: Grant | None
    proof: Annotated[bytes, msgspec.Meta(max_length=SIGNATURE_BYTES)] = b""
    watch: Watch | None = None

    @classmethod
    def by_invitation(cls, grant: Grant, invitation: Identity, peer_id: str) -> Token:
        """The token of a peer that holds the secret key of an invitation."""
        return cls(grant, invitation.sign(_named(grant.run, peer_id), context=USE_CONTEXT))

    @classmethod
    def for_watcher(cls, run_id: str, member: Identity, token: Token | None, peer_id: str, expires: int) -> Token:
        """Let `peer_id` look on for `member`, who itself shows `token`, until `expires` (Unix seconds)."""
        statement = _named(bytes.fromhex(run_id), peer_id, expires)
        watch = Watch(bytes.fromhex(member.peer_id), expires, member.sign(statement, context=WATCH_CONTEXT))
        return cls(None, b"", watch) if token is None else cls(token.grant, token.proof, watch)

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
        return self.grant.subject.hex() if self.grant is not None and self.grant.uses else None

    def is_bound_to(self, peer_id: str) -> bool:
        """Whether the grant is for this peer and no other."""
        if self.grant is None:
            return False
        if not self.grant.uses:
            return self.grant.subject.hex() == peer_id and not self.proof
        return verify(self.grant.subject.hex(), self.proof, _named(self.grant.run, peer_id), context=USE_CONTEXT)

    def of_member(self) -> Token | None:
        """The token without the watch: that of the member who vouches."""
        return None if self.grant is None else Token(self.grant, self.proof)

    def may_watch(self, run_id: str, peer_id: str) -> bool:
        """Whether the member that the watch names let this peer look on."""
        if self.watch is None:
            return False
        statement = _named(bytes.fromhex(run_id), peer_id, self.watch.expires)
        return verify(self.watch.member.hex(), self.watch.signature, statement, context=WATCH_CONTEXT)


def _named(run: bytes, peer_id: str, *more: int) -> bytes:
    return msgspec.msgpack.encode((run, bytes.fromhex(peer_id), *more))
