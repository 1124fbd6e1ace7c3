"""How a peer that enters a run learns who may take part in it, and what it shows itself.

A run's spec says whether it is open or for members. A peer that hosted the run, or was in it before, knows the spec. A
newcomer asks the first peer that it meets, and verifies the spec against the link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minga.access.access_files import AccessFiles
from minga.core.errors import LinkError, UnreachableError
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import AccessLedger
from minga.identity.access.token import Token
from minga.identity.keys.keys import Identity
from minga.identity.links.links import Link
from minga.identity.links.signed_spec import SignedRunSpec
from minga.network.interface import PeerId
from minga.training.session import Session
from minga.training.transfer.run_files import fetch_run_spec

WATCH_S = 12 * 3600
"""For how long, in seconds, a key of this machine vouches for a monitor."""

Obtain = Callable[[Identity, Token | None], Token | None]
"""Gets a token for a peer's key; it is given the one that this peer showed before, and may return that."""


class RunAccess:
    """What one peer knows when it enters: the `link` (None for the host), perhaps the spec, and the contents of
    `files`.

    Without `keeps` nothing is left in the files. `vouchers` are keys that may let this peer look on for them; `obtain`
    gets a token from elsewhere.
    """

    def __init__(
        self,
        files: AccessFiles,
        link: Link | None = None,
        known: tuple[SignedRunSpec, RunSpec] | None = None,
        *,
        keeps: bool,
        vouchers: Sequence[Identity] = (),
        obtain: Obtain | None = None,
    ) -> None:
        self.known = known
        """The signed run spec, and what it says."""
        self._files, self._link, self._keeps, self._vouchers = files, link, keeps, vouchers
        self._of_before = files.known() if keeps else None  # read here, since the loop must not wait for it
        self._obtain = obtain
        self._obtained: Token | None = None

    def spec(self) -> tuple[SignedRunSpec, RunSpec]:
        """The signed run spec, and its contents. Raises `UnreachableError` if no peer could send it."""
        if self.known is None:
            raise UnreachableError("nobody was there to send the run spec", phase="run spec")
        return self.known

    def obtain(self, identity: Identity) -> None:
        """Get a token for this peer's key from elsewhere, if there is such a way."""
        if self._obtain is not None:
            self._obtained = self._obtain(identity, self._files.token(identity.peer_id))

    def token(self, peer_id: str, now_s: float) -> Token | None:
        """The credential of this peer: that of the link or the one that it showed before, whichever was issued later;
        otherwise a statement of one of the vouchers. `now_s` is in Unix seconds.

        Raises `LinkError` if the link admits another peer.
        """
        return self._vouched(peer_id, now_s) or self._own(peer_id)

    def _vouched(self, peer_id: str, now_s: float) -> Token | None:
        """The word of a key that is known to be admitted, or is an organiser's, that this peer may look on.

        Neither may be known, as on a machine that never was in the run. If the link admits no peer either, the first
        key vouches: it may be that of an organiser named in the spec.
        """
        if self._link is None or not self._vouchers:
            return None
        run_id, expires = self._link.run_id, int(now_s) + WATCH_S
        organisers = {self._link.organiser, *(self.known[1].security.organisers if self.known else ())}
        for member in self._vouchers:
            token = self._files.token(member.peer_id)
            if token is not None or member.peer_id in organisers:
                return Token.for_watcher(run_id, member, token, peer_id, expires)
        if self._link.access is not None:
            return None
        return Token.for_watcher(run_id, self._vouchers[0], None, peer_id, expires)

    def _own(self, peer_id: str) -> Token | None:
        if self._obtained is not None:
            return self._obtained
        kept = self._files.token(peer_id)
        if self._link is None or self._link.access is None:
            return kept
        try:
            given = self._link.access.token_for(peer_id)
        except LinkError:
            if kept is None:
                raise
            return kept
        tokens = [given] if kept is None else [kept, given]
        return max(tokens, key=_age)

    def keep_token(self, session: Session) -> None:
        """Remember what is shown, so that the link is not needed again."""
        if self._keeps and session.admission.token is not None:
            self._files.keep_token(session.peer_id, session.admission.token)

    def decide(self, session: Session) -> None:
        """Let the session know who may take part, if the run spec is known."""
        if self.known is None or session.admission.is_decided:
            return
        signed, spec = self.known
        ledger = AccessLedger.of_spec(signed.run_id, spec, signed.organiser)
        session.follow_orders(ledger, self._files if self._keeps else None, self._of_before)

    async def meet(self, session: Session, peer: PeerId) -> None:
        """Ask the first peer for the run spec. Raises `RemoteError`, or `ConfigurationError` for one of the future."""
        if self._link is None:
            return
        link, found = self._link, list[RunSpec]()
        signed = await fetch_run_spec(
            session.node, [peer], lambda s, p: found.append(s.verify(link.run_id, link.organiser, peer=p))
        )
        self.known = signed, found[-1]
        self.decide(session)


def _age(token: Token) -> tuple[int, int, int]:
    """Greater for what was issued later."""
    return (0, 0, 0) if token.grant is None else (token.grant.version, token.grant.expires, token.expires or 0)
