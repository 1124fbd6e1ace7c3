"""Which URLs and socket addresses minga takes from run specs, links and settings."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from minga.core.errors import ConfigurationError

CUDA_WHEELS = "https://download.pytorch.org/whl/cu126"
"""PyTorch's own index of builds for NVIDIA GPUs, for the lines that tell people what to install."""
MAX_URL_CHARACTERS = 200
_LISTEN = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]]*)):([0-9]{1,5})", re.ASCII)
_PRINTABLE_HTTPS = re.compile(r"https://[!-~]+", re.ASCII)
_PRINTABLE_HTTP = re.compile(r"http://[!-~]+", re.ASCII)


def is_https_url(text: object) -> bool:
    """Whether `text` is an https URL of at most 200 ASCII characters with a host, a valid port and no user name."""
    return isinstance(text, str) and _PRINTABLE_HTTPS.fullmatch(text) is not None and _is_sound(text)


def is_safe_url(text: object) -> bool:
    """Whether secrets may be sent to `text`: an https URL as above, or an http URL of this very machine."""
    if isinstance(text, str) and _PRINTABLE_HTTP.fullmatch(text) is not None and _is_sound(text):
        return is_loopback(urlsplit(text).hostname or "")
    return is_https_url(text)


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this very machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_public(endpoint: str) -> bool:
    """Whether the IP address of `ip:port` (IPv6 in brackets) is one of the internet, not of a local network."""
    try:
        return ipaddress.ip_address(endpoint.rpartition(":")[0].strip("[]").partition("%")[0]).is_global
    except ValueError:
        return False


def parse_announced(text: object) -> tuple[str, int]:
    """IP address and port of `IP`, `IP:PORT` or `[IPv6]:PORT`; the port is 0 where none is given.

    Raises `ValueError` for anything else, and for addresses at which no peer can be reached.
    """
    wrong = ValueError(f"{str(text)[:60]!r} is no address: write 203.0.113.7, 203.0.113.7:4433 or [2001:db8::7]:4433")
    if not isinstance(text, str) or len(text) > 60:
        raise wrong
    match = re.fullmatch(r"\[([0-9A-Fa-f:.]+)\](?::([0-9]{1,5}))?|([0-9.]+)(?::([0-9]{1,5}))?|([0-9A-Fa-f:.]+)", text)
    if match is None:
        raise wrong
    host, port = match[1] or match[3] or match[5], int(match[2] or match[4] or 0)
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        raise wrong from None
    if ip.is_unspecified or ip.is_multicast or port > 65535 or (port == 0 and (match[2] or match[4])):
        raise wrong
    return str(ip), port


def _is_sound(text: str) -> bool:
    if len(text) > MAX_URL_CHARACTERS:
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:  # an impossible port or a broken IPv6 address
        return False


def parse_listen(text: str, example: str) -> tuple[str, int]:
    """Address and port where a server of this machine listens; without an address that of this machine alone.

    Raises `ConfigurationError`, which shows the `example`.
    """
    match = _LISTEN.fullmatch(text)
    if match is None or int(match[3]) > 65535:
        raise ConfigurationError(f"--listen {text[:60]!r}: write an address and a port, such as {example}")
    return match[1] or match[2] or "127.0.0.1", int(match[3])
