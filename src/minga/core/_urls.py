"""Which URLs minga takes from run specs and links."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

MAX_URL_CHARACTERS = 200
_PRINTABLE_HTTPS = re.compile(r"https://[!-~]+", re.ASCII)


def is_https_url(text: object) -> bool:
    """Whether `text` is an https URL of at most 200 ASCII characters with a host, a valid port and no user name."""
    if not isinstance(text, str) or len(text) > MAX_URL_CHARACTERS or not _PRINTABLE_HTTPS.fullmatch(text):
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:  # an impossible port or a broken IPv6 address
        return False
