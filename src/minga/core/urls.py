"""Which URLs and socket addresses minga takes from run specs, links and settings."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from typing import Final
from urllib.parse import urlsplit

import psutil

from minga.core.errors import ConfigurationError

CUDA_WHEELS = "https://download.pytorch.org/whl/cu126"
"""PyTorch's own index of builds for NVIDIA GPUs, for the lines that tell people what to install."""
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
"""That of builds for the processor alone, a fifteenth of the size."""
MAX_URL_CHARACTERS = 200
_LISTEN = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]]*)):([0-9]{1,5})", re.ASCII)
_PRINTABLE_HTTPS = re.compile(r"https://[!-~]+", re.ASCII)
_PRINTABLE_HTTP = re.compile(r"http://[!-~]+", re.ASCII)
_SOURCE = re.compile(r"(?:git\+)?https://[A-Za-z0-9._~:/?#@+,=%&-]+", re.ASCII)
_ANY: Final = {"0.0.0.0": socket.AF_INET, "::": socket.AF_INET6}  # noqa: S104 (nothing is bound here)


def is_https_url(text: object) -> bool:
    """Whether `text` is an https URL of at most 200 ASCII characters with a host, a valid port and no user name."""
    return isinstance(text, str) and _PRINTABLE_HTTPS.fullmatch(text) is not None and _is_sound(text)


def is_safe_url(text: object) -> bool:
    """Whether secrets may be sent to `text`: an https URL as above, or an http URL of this very machine."""
    if isinstance(text, str) and _PRINTABLE_HTTP.fullmatch(text) is not None and _is_sound(text):
        return is_loopback(urlsplit(text).hostname or "")
    return is_https_url(text)


def is_source_url(text: str) -> bool:
    """Whether pip may be told to install from `text`: an https or git+https URL without what a shell would read."""
    return _SOURCE.fullmatch(text) is not None and _is_sound(text.removeprefix("git+"))


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


def network_of(address: str) -> str:
    """The network of one customer: an IPv4 address, also one mapped to IPv6, or the /56 of an IPv6 address, as home
    lines have it.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if parsed.version == 4:
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 56), strict=False))


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
        raise ConfigurationError(f"{text[:60]!r}: write an address and a port, such as {example}")
    return match[1] or match[2] or "127.0.0.1", int(match[3])


def reachable_hosts(host: str) -> list[str]:
    """The hosts to write into the address of a server that listens at `host`, the best one first; IPv6 in brackets.

    Of a server on all interfaces these are the machine's addresses by which others reach it, first that of the way to
    the internet. Without any it is reached from this machine alone.
    """
    if host not in _ANY:
        return [f"[{host}]" if ":" in host else host]
    own = [
        each.address for addresses in psutil.net_if_addrs().values() for each in addresses if each.family == _ANY[host]
    ]
    outward = _outward_address(_ANY[host])
    useful = sorted(filter(_is_useful, own), key=lambda address: (address != outward, not is_public(f"{address}:0")))
    loopback = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return [f"[{each}]" if ":" in each else each for each in dict.fromkeys(useful or [loopback])]


def _is_useful(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    return not (found.is_loopback or found.is_link_local)


def _outward_address(family: socket.AddressFamily) -> str:
    """This machine's address on its way to the internet, "" without one. Nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as asked, contextlib.suppress(OSError):
        asked.connect(("192.0.2.1" if family == socket.AF_INET else "2001:db8::1", 9))  # addresses of nobody
        return str(asked.getsockname()[0])
    return ""
