"""Runs an authority: its files and its web server.

Without an organiser's key nothing can be taken back: the tokens of people who were taken off the list are not renewed,
and end within hours. Whose access is to end at once is banned by the organisers.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from minga.authority.allow_list import AllowFile
from minga.authority.issuer import Issuer
from minga.authority.providers import make_provider
from minga.authority.roster import RosterFile
from minga.authority.service import Authority, Handout, Tell
from minga.core.errors import ConfigurationError
from minga.core.urls import is_safe_url, reachable_hosts
from minga.core.web_server import BoundedServer, configuration, listen
from minga.identity.links.links import Link

LOOK_S = 1.0


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


class AuthorityServer:
    """An authority that listens from its making on. Raises `LocalError`s; `close` it at the end."""

    def __init__(self, settings: AuthoritySettings, tell: Tell) -> None:
        self._settings, self._tell = settings, tell
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
                watching = tasks.create_task(self._watch_list())
                await BoundedServer(self._configuration(authority.app)).serve(sockets=[self._socket])
                watching.cancel()
        finally:
            await provider.close()

    async def _watch_list(self) -> None:
        """Let changes of the list settle while nobody asks, so that the next one is answered by them."""
        while True:
            self._allowed.current()
            await asyncio.sleep(LOOK_S)

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


def _check_certificate(settings: AuthoritySettings) -> None:
    if settings.certificate is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(settings.certificate, settings.key)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigurationError(f"--cert {settings.certificate} and --key cannot be used: {error}") from error
