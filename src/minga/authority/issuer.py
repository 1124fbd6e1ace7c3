"""Decides which peers get a token, and signs it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from minga.authority.allow_list import AllowFile, AllowList
from minga.authority.providers import Person
from minga.authority.refusals import Refused
from minga.authority.roster import IssuedToken, RosterFile
from minga.core.errors import ConfigurationError
from minga.identity.access.token import Login, Token
from minga.identity.keys.keys import Identity
from minga.identity.links.links import Link
from minga.login.messages import Issued


class Issuer:
    """Signs with the invitation of `link`; nothing here waits, so of two who want the last place one is first.

    Raises `ConfigurationError` for a link that is no invitation, or one that has ended.
    """

    def __init__(self, link: Link, allowed: AllowFile, roster: RosterFile, wall_time: Callable[[], float]) -> None:
        access = link.access
        if access is None or not access.secret or access.grant.expires <= wall_time():
            raise ConfigurationError(
                "an authority needs an invitation for many peers that has not ended; the organiser makes one by "
                "`minga admit LINK --uses 500 --valid 90d`"
            )
        self.run_id = link.run_id
        self._grant, self._key = access.grant, Identity.from_seed(access.secret)
        self._allowed, self._roster, self._wall_time = allowed, roster, wall_time

    @property
    def expires(self) -> int:
        """When the invitation ends, in Unix seconds."""
        return self._grant.expires

    @property
    def uses(self) -> int:
        """How many peers the invitation is for."""
        return self._grant.uses

    @property
    def invitation(self) -> str:
        """Its key."""
        return self._key.peer_id

    def issue(self, peer: str, person: Person) -> Issued:
        """A token for a peer of a person who has just logged in. Raises `Refused` and `StorageError`."""
        allowed = self._allowed.current()
        organisation = allowed.provider.organisation
        if organisation not in person.organisations:
            organisation = None
        now_s = self._wall_time()
        issued = IssuedToken(
            person.name,
            allowed.provider.source,
            self.invitation,
            now_s,
            now_s,
            organisation,
            code_mark=person.code_mark,
        )
        return self._sign(peer, issued, allowed)

    def renew(self, peer: str) -> Issued:
        """The next token for a peer that had one. Raises `Refused` and `StorageError`."""
        issued, allowed = self._roster.issued(peer), self._allowed.current()
        if issued is None or issued.provider != allowed.provider.source:
            raise Refused("login_needed", "this key has no access yet: log in")
        if self._wall_time() > issued.logged_in + allowed.login_s:
            raise Refused("login_needed", f"the last login of {issued.name} was too long ago: log in again")
        listed = allowed.people.get(issued.name)
        if listed is not None and issued.code_mark not in (None, listed.code_mark):
            raise Refused("login_needed", f"{issued.name} has another code by now: log in with that")
        return self._sign(peer, issued, allowed)

    def _sign(self, peer: str, issued: IssuedToken, allowed: AllowList) -> Issued:
        now_s = self._wall_time()
        allowance = allowed.allowance(issued.name, issued.organisation, now_s)
        if allowance is None and not self._allowed.is_whole:
            raise Refused("busy", "the authority has just begun, and its list may not be whole yet; wait a little")
        if allowance is None:
            raise Refused(
                "not_allowed", f"{issued.name} is not on the list of people that may take part; ask the organiser"
            )
        ends = [now_s + allowed.token_s, float(self._grant.expires)]
        ends += [allowance.until_s] if allowance.until_s is not None else []
        expires = int(min(ends))
        if expires <= now_s:
            raise Refused("invitation", "the authority's invitation has ended; its organiser has to give it a new one")
        taken = msgspec.structs.replace(issued, invitation=self.invitation, expires=float(expires))
        self._roster.take(peer, taken, most_peers=allowance.peers, uses=self._grant.uses)
        token = Token.by_login(self._grant, self._key, peer, Login(issued.name, expires))
        return Issued(token.encode(), issued.name, int(issued.logged_in + allowed.login_s))
