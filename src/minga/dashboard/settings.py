"""How a dashboard is reached, and who may see it."""

from __future__ import annotations

import ipaddress
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

from minga.core.errors import ConfigurationError
from minga.core.urls import is_loopback, parse_listen

DEFAULT_PORT: Final = 8471
DEFAULT_LISTEN: Final = f"127.0.0.1:{DEFAULT_PORT}"

_URL = re.compile(r"https?://(?:\[([0-9a-fA-F:.]{2,45})\]|([a-zA-Z0-9._-]{1,253}))(?::[0-9]{1,5})?/?", re.ASCII)
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]{2,45})\]|([a-zA-Z0-9._-]{1,253}))(?::[0-9]{1,5})?", re.ASCII)


def _new_token() -> str:
    return secrets.token_urlsafe(18)


@dataclass(frozen=True)
class DashboardSettings:
    """Where a dashboard listens and what it asks of viewers.

    On an address of this machine alone no viewer needs a token. Elsewhere each needs the `read_token`, unless the
    organiser chose to make the page `public`. `url` is the address of a proxy in front, whose host name is accepted,
    too.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    public: bool = False
    url: str | None = None
    read_token: str = field(default_factory=_new_token)

    def __post_init__(self) -> None:
        if self.url is not None and not _URL.fullmatch(self.url):
            raise ConfigurationError(f"{self.url[:60]!r}: write an address such as https://run.example.org")

    @classmethod
    def listening(cls, listen: str, *, public: bool = False, url: str | None = None) -> DashboardSettings:
        """Settings from ADDRESS:PORT; port 0 is any. Raises `ConfigurationError`."""
        return cls(*parse_listen(listen, DEFAULT_LISTEN), public, url)

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine can reach it, by the address and without a proxy."""
        return self.url is None and is_loopback(self.host)

    @property
    def needs_token(self) -> bool:
        """Whether viewers have to show the read token."""
        return not (self.is_local or self.public)

    def _proxy_name(self) -> str | None:
        found = None if self.url is None else _URL.fullmatch(self.url)
        return None if found is None else (found[1] or found[2]).lower()

    def accepts_host(self, header: str) -> bool:
        """Whether a request's `Host` names this server.

        A page of another site can make its own name point here (DNS rebinding). Such a request carries that name, so
        names are accepted only where the settings have them, and addresses always.
        """
        found = _HOST.fullmatch(header)
        name = "" if found is None else (found[1] or found[2]).lower()
        if name and name in ("localhost", self.host.lower(), self._proxy_name()):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return not self.is_local or is_loopback(name)
