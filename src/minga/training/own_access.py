"""How a peer that enters a run learns who may take part in it, and what it shows itself.

A run's spec says whether it is open or for members. A peer that hosted the run, or was in it before, knows the spec. A
newcomer asks the first peer that it meets, and verifies the spec against the link.

If the link names an authority, a peer that needs a token gets it there. It asks for the next one when a third of the
present one's life is left, so an authority may be down for long without any effect. Members learn of the new token by
gossip, and newcomers see it in handshakes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from minga.access.access_files import AccessFiles
from minga.core.aio import Backoff
from minga.core.errors import LinkError, LocalError, RemoteError, UnreachableError
from minga.core.events.training import AccessNotRenewed, AccessRenewed
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import CLOCK_SKEW_S, AccessLedger, InvalidOrderError, NoAccessError, UnknownTermError
from minga.identity.access.token import Token
from minga.identity.keys.keys import Identity
from minga.identity.links.links import Link
from minga.identity.links.signed_spec import SignedRunSpec
from minga.login.client import AuthorityClient
from minga.login.credentials import Credentials, LogIn, LoginUser, check_clock
from minga.network.interface import PeerId
from minga.training.bridge.loop_thread import LoopThread
from minga.training.session import Session
from minga.training.transfer.run_files import fetch_run_spec

T = TypeVar("T")

WATCH_S = 12 * 3600
"""For how long, in seconds, a key of this machine vouches for a monitor."""

LEFT_OF_LIFE = 1.0 / 3.0
LOOK_S = 20.0
"""Seconds between looks at the run's time: a timer stands still while the machine sleeps, and the run goes on."""

MIN_PAUSE_S, MAX_PAUSE_S = 5.0, 600.0


class RunAccess:
    """What one peer knows when it enters: the `link` (None for the host), perhaps the spec, and the contents of
    `files`.

    Without `keeps` nothing is written to the files. `vouchers` are keys that may let this peer look on for them;
    `person` logs in at the authority that the link names (None: nobody does).
    """

    def __init__(
        self,
        files: AccessFiles,
        link: Link | None = None,
        known: tuple[SignedRunSpec, RunSpec] | None = None,
        *,
        keeps: bool,
        vouchers: Sequence[Identity] = (),
        person: LoginUser | None = None,
    ) -> None:
        self.known = known
        """The signed run spec, and what it says."""
        self.keeps = keeps
        """Whether the peer leaves files that lead back into the run."""
        self._files, self._link, self._vouchers = files, link, vouchers
        self._of_before = files.known()  # read here, since the loop must not wait for it
        self._person = person
        self._issued: Token | None = None

    def spec(self) -> tuple[SignedRunSpec, RunSpec]:
        """The signed run spec, and its contents. Raises `UnreachableError` if no peer could send it."""
        if self.known is None:
            raise UnreachableError("nobody was there to send the run spec", phase="run spec")
        return self.known

    def log_in(self, identity: Identity, now_s: float) -> None:
        """Get a token for this peer's key from the authority, if it has to log in there. Blocks.

        `now_s` is in Unix seconds. Raises what `LogIn.obtain` raises.
        """
        kept = self._files.token(identity.peer_id)
        if self._needs_login(identity.peer_id, kept, now_s) and (log_in := self._login(is_waited_for=True)) is not None:
            self._issued = _completed(_obtain(log_in, identity, kept))

    def keep_renewed(self, session: Session) -> None:
        """Renew the authority's token for as long as the session lives; called on its loop."""
        if self._issued is not None and (log_in := self._login(is_waited_for=False)) is not None:
            session.node.spawn(_renew(session, log_in))

    def _needs_login(self, peer_id: str, kept: Token | None, now_s: float) -> bool:
        """Whether the link names an authority, and this peer cannot do without: organisers can. So can, where nothing
        was given to log in with, a peer whose token of before lasts and came without a login: the authority may not
        know its key.
        """
        if self._link is None or self._link.authority is None or peer_id in self._organisers(self._link):
            return False
        is_admitted = kept is not None and kept.login is None and (kept.expires or 0) > now_s
        return not is_admitted or self._person != Credentials()

    def _organisers(self, link: Link) -> frozenset[str]:
        """The keys that need no token, as far as they are known here."""
        ledger = self._ledger()
        return frozenset({link.organiser}) | (frozenset() if ledger is None else ledger.organisers.keys)

    def _ledger(self) -> AccessLedger | None:
        """The orders that this machine keeps; None if it does not know the run."""
        if self.known is None:
            return None
        signed, spec = self.known
        ledger = AccessLedger.of_spec(signed.run_id, spec, signed.organiser)
        for order in self._of_before.orders:
            with contextlib.suppress(InvalidOrderError):  # a damaged file costs a login at most
                ledger.take(order)
        return ledger

    def _login(self, *, is_waited_for: bool) -> LogIn | None:
        """A way to log in, whose person hears of pauses if it `is_waited_for`; None where nobody logs in."""
        link, person = self._link, self._person
        if link is None or link.authority is None or person is None:
            return None
        client = AuthorityClient(link.authority, link.run_id, on_pause=person.wait if is_waited_for else None)
        return LogIn(client, person, asyncio.sleep)

    def token(self, peer_id: str, now_s: float) -> Token | None:
        """The credential of this peer: that of the link or the one that it showed before, whichever was issued later,
        but a grant to its own key before an invitation: that lifts no ban. Otherwise a statement of one of the
        vouchers. `now_s` is in Unix seconds.

        Raises `LinkError` if the link admits another peer.
        """
        return self._vouched(peer_id, now_s) or self._own(peer_id, now_s)

    def _vouched(self, peer_id: str, now_s: float) -> Token | None:
        """The word of a key that is known to be admitted, or is an organiser's, that this peer may look on.

        Neither may be known, as on a machine that never was in the run. If the link admits no peer either, the first
        key vouches: it may be that of an organiser named in the spec.
        """
        if self._link is None or not self._vouchers:
            return None
        run_id, expires = self._link.run_id, int(now_s) + WATCH_S
        organisers = self._organisers(self._link)
        for member in self._vouchers:
            token = self._files.token(member.peer_id)
            if token is not None or member.peer_id in organisers:
                return Token.for_watcher(run_id, member, token, peer_id, expires)
        if self._link.access is not None:
            return None
        return Token.for_watcher(run_id, self._vouchers[0], None, peer_id, expires)

    def _own(self, peer_id: str, now_s: float) -> Token | None:
        if self._issued is not None:
            return self._issued
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
        return max(tokens, key=lambda token: (self._names_key(token, peer_id, now_s), *_age(token)))

    def _names_key(self, token: Token, peer_id: str, now_s: float) -> bool:
        """Whether it is a grant to the peer's own key that is good, as far as is known here."""
        if token.invitation is not None or (token.expires or 0) <= now_s:
            return False
        ledger = self._ledger()
        try:
            if ledger is not None:
                ledger.check(token, peer_id, now_s)
        except NoAccessError as error:
            return isinstance(error, UnknownTermError)
        return True

    def keep_token(self, session: Session) -> None:
        """Remember what is shown, so that the link is not needed again."""
        if self.keeps and session.admission.token is not None:
            self._files.keep_token(session.peer_id, session.admission.token)

    def decide(self, session: Session) -> None:
        """Let the session know who may take part, if the run spec is known."""
        if self.known is None or session.admission.is_decided:
            return
        signed, spec = self.known
        ledger = AccessLedger.of_spec(signed.run_id, spec, signed.organiser)
        session.follow_orders(ledger, self._files if self.keeps else None, self._of_before)

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


def _completed(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where a loop runs already, as in notebooks. Ctrl-C cancels it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with contextlib.closing(LoopThread("minga-login")) as thread:
        return thread.call(coroutine)


async def _obtain(log_in: LogIn, identity: Identity, kept: Token | None) -> Token:
    try:
        return await log_in.obtain(identity, kept)
    finally:
        await log_in.client.close()


async def _renew(session: Session, log_in: LogIn) -> None:
    try:
        await keep_renewed(session, log_in)
    finally:
        await log_in.client.close()


async def keep_renewed(session: Session, log_in: LogIn) -> None:
    """Renew until the access has ended, or cannot last longer; at once done with access that no login gave.

    Tells `access.renewed` and `access.not_renewed`.
    """
    ends_s = _ends_s(session.admission.token)
    if math.isinf(ends_s):
        return
    was_same = False
    while True:
        now_s = session.node.clock.now()
        await _sleep_until(session, ends_s - LEFT_OF_LIFE * max(0.0, ends_s - now_s))
        token = await _next(session, log_in, ends_s)
        if token is None:
            return
        session.show_token(token)
        session.events.emit(AccessRenewed(expires=token.expires))
        is_same = _ends_s(token) == ends_s
        if is_same and was_same:  # the person's time, or the invitation, ends then
            return  # once may be chance, and earlier is no end: tokens may last less by now
        was_same, ends_s = is_same, _ends_s(token)


async def _next(session: Session, log_in: LogIn, ends_s: float) -> Token | None:
    """The next token, or None once the present one has ended everywhere: a no may be a mistake that is soon mended."""
    backoff, told = Backoff(MIN_PAUSE_S, MAX_PAUSE_S), set[str]()
    while True:
        try:
            token = await log_in.renew(session.identity)
            check_clock(token, session.node.clock.now())
            return token
        except (RemoteError, LocalError) as error:
            why = str(error)
        if why not in told:
            told.add(why)
            session.events.emit(AccessNotRenewed(why=why, expires=int(ends_s)))
        if session.node.clock.now() > ends_s + CLOCK_SKEW_S:
            return None
        await asyncio.sleep(backoff.next_s())


async def _sleep_until(session: Session, due_s: float) -> None:
    while (left_s := due_s - session.node.clock.now()) > 0.0:
        await asyncio.sleep(min(LOOK_S, left_s))


def _ends_s(token: Token | None) -> float:
    """Unix seconds; infinite for one that needs no renewal, such as an organiser's."""
    return float("inf") if token is None or token.login is None else float(token.expires or 0)
