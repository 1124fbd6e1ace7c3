"""Runs an authority: its files, its web server, and the watch over its list.

People who were taken off the list lose their access. Without an organiser's key nothing can be taken back: their tokens
are not renewed, and end within hours. With one, their peers are barred by an organiser's order, like `minga ban`, and
go at the end of the step.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from minga.authority.allow_list import AllowFile
from minga.authority.issuer import Issuer
from minga.authority.providers import make_provider
from minga.authority.roster import RosterFile
from minga.authority.service import Authority, Handout, Tell
from minga.core.aio import Backoff
from minga.core.errors import ConfigurationError, MingaError, UnreachableError
from minga.core.urls import is_safe_url, reachable_hosts
from minga.core.web_server import BoundedServer, configuration, listen
from minga.identity.links.links import Link
from minga.training.join import PeerOptions
from minga.training.organiser import organiser_desk

LOOK_S = 1.0
REASON = "no longer on the authority's list"
FIRST_PAUSE_S, MOST_PAUSE_S = 5.0, 300.0

logger = logging.getLogger("minga.authority")


@dataclass(frozen=True)
class AuthoritySettings:
    """What an authority needs.

    link: an invitation for many peers. allow: the file of the people that may take part. roster: the file that keeps
    the peers of each person. host, port: where to listen; port 0 is any. url: where clients reach it, if not there
    (behind a proxy). certificate, key: PEM files for TLS.
    """

    link: Link
    allow: Path
    roster: Path
    host: str = "127.0.0.1"
    port: int = 8470
    url: str | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class Barring:
    """Bars peers from the run of `link` with the organiser's key in the file `identity`."""

    link: Link
    options: PeerOptions
    identity: Path

    def bar(self, peers: Sequence[str]) -> list[str]:
        """Enter the run for a moment to tell the others; those of the peers that are barred then, for which no other
        organiser has to do so, too. What keeps one of them from being barred keeps no other.

        Blocks. Raises `MingaError`.
        """
        with organiser_desk(self.link, self.options, self.identity, lambda _: None) as desk:
            if not desk.is_connected:
                raise UnreachableError("no member of the run answers")
            refusals = dict[str, None]()
            for peer in peers:
                try:
                    desk.bar(peer, REASON)  # also who is barred already: it may have been admitted anew since
                except ConfigurationError as error:
                    refusals[str(error)] = None
            for refusal in refusals:
                logger.warning("%s", refusal)
            return [peer for peer in peers if peer in desk.ledger.barred()]


class AuthorityServer:
    """An authority that listens from its making on. Raises `LocalError`s; `close` it at the end."""

    def __init__(self, settings: AuthoritySettings, barring: Barring | None, tell: Tell) -> None:
        self._settings, self._barring, self._tell = settings, barring, tell
        self._allowed = AllowFile(settings.allow)
        self._roster = RosterFile(settings.roster, settings.link.run_id, time.time)
        try:
            self.issuer = Issuer(settings.link, self._allowed, self._roster, time.time)
            self._roster.forget(self.issuer.invitation)
            _check_certificate(settings)
            self._socket = listen(settings.host, settings.port, f"--listen {settings.host}:{settings.port}")
        except BaseException:
            self._roster.close()
            raise
        self.url = settings.url or self._own_url()
        self.handouts: tuple[Handout, ...] = ()
        """What it gives to every person, to be set before `run`: files that may name its address."""
        if not is_safe_url(self.url):
            self.close()
            raise ConfigurationError(
                f"{self.url[:60]!r}: people send secrets there, so it has to be https:// (http:// is for this machine "
                "only); give --cert and --key, or put a proxy with TLS in front and name its address with --url"
            )

    @property
    def link(self) -> Link:
        """The link to publish: every person that has it may try to log in."""
        return replace(self._settings.link, access=None, authority=self.url)

    def close(self) -> None:
        """Let the files and the port go."""
        self._roster.close()
        self._socket.close()

    async def run(self) -> None:
        """Serve until Ctrl-C or SIGTERM, or until cancelled."""
        provider = make_provider(self._allowed)
        authority = Authority(self.issuer, provider, self._tell, handouts=self.handouts)
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(watch_list(self.issuer, self._roster, self._barring, self._tell))
                await BoundedServer(self._configuration(authority.app)).serve(sockets=[self._socket])
                watching.cancel()
        finally:
            await provider.close()

    def _configuration(self, app: ASGIApp) -> uvicorn.Config:
        certificate, key = self._settings.certificate, self._settings.key
        return configuration(
            app,
            # A proxy on this machine knows the client's address; no other source of it is believed.
            proxy_headers=True,
            forwarded_allow_ips="127.0.0.1,::1",
            ssl_certfile=None if certificate is None else str(certificate),
            ssl_keyfile=None if key is None else str(key),
        )

    def _own_url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        scheme = "http" if self._settings.certificate is None else "https"
        return f"{scheme}://{reachable_hosts(host)[0]}:{port}"


async def watch_list(issuer: Issuer, roster: RosterFile, barring: Barring | None, tell: Tell) -> None:
    """Check every second whether a person was taken off the list, until cancelled."""
    told: set[str] = set()
    backoff = Backoff(FIRST_PAUSE_S, MOST_PAUSE_S)
    while True:
        overdue = dict(issuer.overdue())
        if barring is None:
            for peer in overdue.keys() - told:
                tell("authority.removed", peer=peer, name=overdue[peer], barred=False)
            told = set(overdue)
        elif overdue:
            why = "other organisers have to bar them, too"
            try:
                for peer in await asyncio.to_thread(barring.bar, list(overdue)):
                    roster.bar(peer)
                    tell("authority.removed", peer=peer, name=overdue.pop(peer), barred=True)
            except MingaError as error:
                why = str(error)
            if overdue:
                logger.warning("%d peers could not be barred yet: %s", len(overdue), why)
                await asyncio.sleep(backoff.next_s())
            else:
                backoff.overcome()
        await asyncio.sleep(LOOK_S)


def _check_certificate(settings: AuthoritySettings) -> None:
    if settings.certificate is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(settings.certificate, settings.key)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigurationError(f"--cert {settings.certificate} and --key cannot be used: {error}") from error
