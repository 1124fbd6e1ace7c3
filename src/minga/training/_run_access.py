"""How a peer that enters a run learns who may take part in it, and what it shows itself.

A run's spec says whether it is open or for members. Who hosted it, or was in it before, knows the spec; a newcomer asks
the first peer that it meets, and recognises the spec by the link.
"""

from __future__ import annotations

from minga.core._errors import LinkError, UnreachableError
from minga.core._run_spec import RunSpec
from minga.identity._access_ledger import AccessLedger, Organisers
from minga.identity._access_token import Token
from minga.identity._links import Link
from minga.identity._signed_spec import SignedRunSpec
from minga.network._interface import PeerId
from minga.training._access_files import AccessFiles
from minga.training._run_files_fetch import fetch_run_spec
from minga.training._session import Session


class RunAccess:
    """What one peer knows when it enters: the `link` (None for who hosts), perhaps the spec, and what lies in `files`.

    Without `keeps` nothing is left in the files.
    """

    def __init__(
        self,
        files: AccessFiles,
        link: Link | None = None,
        known: tuple[SignedRunSpec, RunSpec] | None = None,
        *,
        keeps: bool,
    ) -> None:
        self.known = known
        """The signed run spec, and what it says."""
        self._files, self._link, self._keeps = files, link, keeps

    def spec(self) -> tuple[SignedRunSpec, RunSpec]:
        """The signed run spec, and what it says. Raises `UnreachableError` if nobody was there to send it."""
        if self.known is None:
            raise UnreachableError("nobody was there to send the run spec", phase="run spec")
        return self.known

    def token(self, peer_id: str) -> Token | None:
        """What this peer shows: what the link gives it, or what it showed before, whichever was issued later.

        Raises `LinkError` if the link admits another peer.
        """
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
        return max(tokens, key=lambda token: (token.grant.version, token.grant.expires))

    def keep_token(self, session: Session) -> None:
        """Remember what was shown, so that the link is not needed again."""
        if self._keeps and session.admission.token is not None:
            self._files.keep_token(session.peer_id, session.admission.token)

    def decide(self, session: Session) -> None:
        """Let the session know who may take part, if the run spec is known."""
        if self.known is None or session.admission.is_decided:
            return
        signed, spec = self.known
        if spec.security.mode == "open":
            session.admission.open_to_all()
        else:
            organisers = Organisers.of_spec(spec, signed.organiser)
            ledger = AccessLedger(signed.run_id, organisers, signed.organiser)
            session.for_members(ledger, self._files if self._keeps else None)

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
