"""Which URLs minga takes from run specs, links and settings."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

MAX_URL_CHARACTERS = 200
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


def _is_sound(text: str) -> bool:
    if len(text) > MAX_URL_CHARACTERS:
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:  # an impossible port or a broken IPv6 address
        return False
