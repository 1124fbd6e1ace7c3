"""Settings of the real network."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from iroh import iroh_ffi

from minga.core.errors import ConfigurationError
from minga.core.urls import parse_announced


@dataclass(frozen=True)
class NetworkSettings:
    """How to reach others and be reached.

    `relay` is "none" (no server besides the peers is ever contacted), "public" (iroh's public relays and discovery)
    or the URLs of own relays. `announce` holds addresses at which others reach this peer though its machine does not
    know of them, see `parse_announced`; without a port the bound one is meant. `host` is the address to bind (None: all
    interfaces), `port` the UDP port (0: any). With `dialable` False the peer only dials out: it has no address, and
    connections from others are refused. With `tcp`, streams for bulk go over TCP where that works; a dialable peer
    listens on the TCP port of the same number if it is free.
    """

    relay: Literal["none", "public"] | tuple[str, ...] = "none"
    announce: tuple[str, ...] = ()
    host: str | None = None
    port: int = 0
    dialable: bool = True
    tcp: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.relay, str):
            if self.relay not in ("none", "public"):
                raise ConfigurationError(f"relay must be 'none', 'public' or URLs, not {self.relay!r}")
        elif not self.relay or not all(_is_relay_url(url) for url in self.relay):
            raise ConfigurationError(f"relay must name at least one URL, all with http or https, not {self.relay!r}")
        for text in self.announce:
            try:
                parse_announced(text)
            except ValueError as error:
                raise ConfigurationError(f"announce: {error}") from None
        if self.host is not None:
            try:
                ipaddress.ip_address(self.host)
            except ValueError:
                raise ConfigurationError(f"host must be an IP address, not {self.host!r}") from None
        if type(self.port) is not int or not 0 <= self.port <= 65535:
            raise ConfigurationError(f"port must be between 0 and 65535, not {self.port!r}")


def _is_relay_url(url: object) -> bool:
    if not isinstance(url, str):
        return False
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def relay_mode(settings: NetworkSettings) -> Any:
    """The settings' relays as iroh takes them. Raises `IrohError` for a URL that iroh does not like."""
    if settings.relay == "public":
        return iroh_ffi.RelayMode.default_mode()
    if settings.relay == "none":
        return iroh_ffi.RelayMode.disabled()
    return iroh_ffi.RelayMode.custom_from_urls(list(settings.relay))


def announced_addresses(settings: NetworkSettings, bound_port: int) -> tuple[str, ...]:
    """The announced addresses as others dial them; those without a port get the one that is bound."""
    found = (parse_announced(text) for text in settings.announce)
    return tuple(f"{f'[{ip}]' if ':' in ip else ip}:{port or bound_port}" for ip, port in found)


def bind_addresses(settings: NetworkSettings) -> tuple[str, ...]:
    """The socket addresses to bind as iroh takes them; none for any port on all interfaces.

    iroh opens a socket for IPv4 and one for IPv6, and the one that it is not told of on all interfaces. So beside a
    `host` the other one is told to be on this machine alone.
    """
    if settings.host is None:
        return (f"0.0.0.0:{settings.port}",) if settings.port else ()
    if ":" in settings.host:
        return f"[{settings.host}]:{settings.port}", "127.0.0.1:0"
    return f"{settings.host}:{settings.port}", "[::1]:0"
