"""Access tokens, the credentials of peers in a run for members; and address ranges that organisers banned.

A token is bound to its peer's key, in one of two ways:

    grant to the peer's key itself                          signed by the organisers
    grant to the key of an invitation                       signed by the organisers
      └─ signature of the peer's id by the invitation       made by the peer, who had the invitation's secret,
                                                            or by an authority that keeps it (`Login`)

and either of these may be followed by a member's word that another key may look on for it (`WatchToken`): so `minga
status` works beside a peer that runs with the admitted key.

So an invitation link admits every peer that holds it, without a server and without the organisers being online. The
result is a token that every peer can verify offline and no other peer can use: connections prove their peer's key. The
secret itself never leaves the joining machine. An authority keeps the secret of an invitation to itself, and signs for
people who log in: under which name, and until when, which may be long before the invitation ends.

No signature can tell how often an invitation was used. Peers count the ones that they know, see
`minga.access.admission`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.identity.access.orders import MAX_RANGES, Grant, Key, RangeBan, SignatureBytes, UnixSeconds
from minga.identity.keys.keys import SIGNATURE_BYTES, Identity, verify

MAX_TOKEN_BYTES = 1152
"""A token with the signatures of seven organisers takes about 1070 bytes."""

USE_CONTEXT, LOGIN_CONTEXT, WATCH_CONTEXT = b"access-by-invitation", b"access-by-login", b"access-watch"

LOGIN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}\Z"
"""Names under which people log in."""


class Login(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An authority's statement about the person behind a peer: the name, and until when (Unix seconds) the token is
    good.
    """

    name: Annotated[str, msgspec.Meta(pattern=LOGIN_NAME)]
    expires: UnixSeconds


class WatchToken(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A statement of `member`: the peer that shows it may watch until `expires`, but take part in nothing."""

    member: Key
    expires: UnixSeconds
    signature: SignatureBytes


class Token(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A grant, and for a grant to an invitation its signature of the peer's id and of `login` (`proof`, else empty).

    With `watch` the grant is that of the member who vouches; an organiser, who needs none, vouches without.
    """

    grant: Grant | None
    proof: Annotated[bytes, msgspec.Meta(max_length=SIGNATURE_BYTES)] = b""
    watch: WatchToken | None = None
    login: Login | None = None

    @classmethod
    def by_invitation(cls, grant: Grant, invitation: Identity, peer_id: str) -> Token:
        """The token of a peer that holds the secret key of an invitation."""
        return cls(grant, invitation.sign(_named(grant.run, peer_id), context=USE_CONTEXT))

    @classmethod
    def by_login(cls, grant: Grant, invitation: Identity, peer_id: str, login: Login) -> Token:
        """The token that an authority, which holds the secret key of an invitation, gives to a peer."""
        return cls(grant, invitation.sign(_logged_in(grant.run, peer_id, login), context=LOGIN_CONTEXT), login=login)

    @classmethod
    def for_watcher(cls, run_id: str, member: Identity, token: Token | None, peer_id: str, expires: int) -> Token:
        """Let `peer_id` look on for `member`, who itself shows `token`, until `expires` (Unix seconds)."""
        statement = _named(bytes.fromhex(run_id), peer_id, expires)
        watch = WatchToken(bytes.fromhex(member.peer_id), expires, member.sign(statement, context=WATCH_CONTEXT))
        return cls(None, b"", watch) if token is None else cls(token.grant, token.proof, watch, token.login)

    @classmethod
    def decode(cls, data: bytes) -> Token:
        """Read what `encode` wrote; `ValueError` for anything else. Nothing is verified yet."""
        if len(data) > MAX_TOKEN_BYTES:
            raise ValueError(f"an access token has at most {MAX_TOKEN_BYTES} bytes, not {len(data)}")
        try:
            token = decode_msgpack(data, cls)
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

    @property
    def expires(self) -> int | None:
        """Until when (Unix seconds) the grant and the login are good; None if nothing is granted."""
        if self.grant is None or self.login is None:
            return None if self.grant is None else self.grant.expires
        return min(self.grant.expires, self.login.expires)

    def is_bound_to(self, peer_id: str) -> bool:
        """Whether the grant is for this peer and no other."""
        if self.grant is None:
            return False
        if not self.grant.uses:
            return self.grant.subject.hex() == peer_id and not self.proof and self.login is None
        if self.login is not None:
            statement = _logged_in(self.grant.run, peer_id, self.login)
            return verify(self.grant.subject.hex(), self.proof, statement, context=LOGIN_CONTEXT)
        return verify(self.grant.subject.hex(), self.proof, _named(self.grant.run, peer_id), context=USE_CONTEXT)

    def of_member(self) -> Token | None:
        """The token without the watch: that of the member who vouches."""
        return None if self.grant is None else Token(self.grant, self.proof, login=self.login)

    def may_watch(self, run_id: str, peer_id: str) -> bool:
        """Whether the member that the watch names let this peer look on."""
        if self.watch is None:
            return False
        statement = _named(bytes.fromhex(run_id), peer_id, self.watch.expires)
        return verify(self.watch.member.hex(), self.watch.signature, statement, context=WATCH_CONTEXT)


def _named(run: bytes, peer_id: str, *more: int) -> bytes:
    return msgspec.msgpack.encode((run, bytes.fromhex(peer_id), *more))


def _logged_in(run: bytes, peer_id: str, login: Login) -> bytes:
    return msgspec.msgpack.encode((run, bytes.fromhex(peer_id), login))


# ---- Address ranges that organisers banned from a run for a time, and whether an address lies in one.
#
# A range has at most 65,536 addresses of IPv4, or is a block of IPv6 such as a provider hands out (/32) at most: so
# one order cannot shut the run to all. Each organiser bans for itself. A range is banned while as many organisers as
# have to sign say so. The bans end with their dates, or with the term of the organisers that signed them. Of too many
# of one organiser those count that it signed last, in whatever order they came: so all peers come to the same ones, and
# what a later one overruled, as one that ends sooner does, stays so when that is forgotten.


IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_SHORTEST_PREFIX = {4: 16, 6: 32}


def parse_range(text: str) -> IpNetwork:
    """The range that `text` means, an address or CIDR notation. Raises `ValueError`, in words for its author."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(
            f"{text[:60]!r} is no address range: write 203.0.113.0/24, 203.0.113.7 or 2001:db8::/48"
        ) from None
    shortest = _SHORTEST_PREFIX[network.version]
    if network.prefixlen < shortest:
        raise ValueError(f"{network} is too large a range: IPv{network.version} needs /{shortest} or longer")
    return network


class RangeBans:
    """The range bans of one term, by range and the organiser that signed."""

    def __init__(self) -> None:
        self._bans: dict[IpNetwork, dict[str, RangeBan]] = {}
        self._found: tuple[tuple[int, float], dict[tuple[int, int], dict[int, RangeBan]]] | None = None
        """Those in force at the last look, by IP version and length of the host part, then by network."""

    def orders(self) -> Iterator[RangeBan]:
        """All of them, in one order."""
        for _, bans in sorted(self._bans.items(), key=lambda item: str(item[0])):
            yield from (ban for _, ban in sorted(bans.items()))

    def take(self, signer: str, ban: RangeBan) -> bool:
        """Enter a ban whose signature was checked; whether it is new. Raises `ValueError` for a range that is none."""
        network = parse_range(ban.range)
        if str(network) != ban.range:
            raise ValueError(f"the range is not in canonical form, which is {network}")
        known = self._bans.get(network, {}).get(signer)
        if known is not None and (known.issued, known.statement()) >= (ban.issued, ban.statement()):
            return False
        if known is None and not self._has_room(signer, ban):
            return False
        self._bans.setdefault(network, {})[signer] = ban
        self._found = None
        return True

    def may_ban(self, signer: str, network: IpNetwork, now_s: float) -> bool:
        """Whether `signer` may ban this range, too, and no ban of its own that lasts gives way."""
        if signer in self._bans.get(network, {}):
            return True
        first = self._first_to_go(signer)
        return first is None or first.expires <= now_s

    def _has_room(self, signer: str, ban: RangeBan) -> bool:
        """Whether one more ban of `signer` counts."""
        first = self._first_to_go(signer)
        if first is None:
            return True
        if (ban.issued, ban.range) < (first.issued, first.range):
            return False
        network = parse_range(first.range)
        del self._bans[network][signer]
        if not self._bans[network]:
            del self._bans[network]
        return True

    def _first_to_go(self, signer: str) -> RangeBan | None:
        """The ban of `signer` that gives way to one of another range; None while there is room."""
        own = [bans[signer] for bans in self._bans.values() if signer in bans]
        return min(own, key=lambda ban: (ban.issued, ban.range)) if len(own) >= MAX_RANGES else None

    def in_force(self, needed: int, now_s: float) -> dict[IpNetwork, RangeBan]:
        """The ranges that at least `needed` organisers ban now, each with the ban that ends first of those needed."""
        found = {}
        for network, bans in self._bans.items():
            lasting = sorted((ban for ban in bans.values() if ban.expires > now_s), key=lambda ban: -ban.expires)
            if len(lasting) >= needed:
                found[network] = lasting[needed - 1]
        return found

    def ban_of(self, endpoints: Iterable[str], needed: int, now_s: float) -> RangeBan | None:
        """The ban in force for one of these `ip:port` endpoints (IPv6 in brackets), if there is one."""
        by_length = self._by_length(needed, now_s)
        for endpoint in endpoints if by_length else ():
            try:
                address = ipaddress.ip_address(endpoint.rpartition(":")[0].strip("[]").partition("%")[0])
            except ValueError:
                continue
            for (version, host_bits), bans in by_length.items():
                if version == address.version and (ban := bans.get(int(address) >> host_bits)) is not None:
                    return ban
        return None

    def _by_length(self, needed: int, now_s: float) -> dict[tuple[int, int], dict[int, RangeBan]]:
        """The bans in force, found once for all peers that are looked at together: a flood of keys makes these many."""
        if self._found is None or self._found[0] != (needed, now_s):
            by_length: dict[tuple[int, int], dict[int, RangeBan]] = {}
            for network, ban in self.in_force(needed, now_s).items():
                host_bits = network.max_prefixlen - network.prefixlen
                bans = by_length.setdefault((network.version, host_bits), {})
                bans[int(network.network_address) >> host_bits] = ban
            self._found = (needed, now_s), by_length
        return self._found[1]
