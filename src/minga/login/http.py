"""HTTP requests whose answers are bounded in length and time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import httpx2

from minga.core.errors import ConfigurationError
from minga.core.printable import printable

REQUEST_S = 20.0
"""Longest time, in seconds, that one request may take in all."""


class NoAnswer(Exception):
    """There was no answer that could be read; the text names no secret."""


class HttpAnswer(NamedTuple):
    """Status, body, and after how many seconds the server wants to be asked again (None: it does not say)."""

    status: int
    body: bytes
    retry_after_s: float | None


def make_client(transport: httpx2.AsyncBaseTransport | None = None) -> httpx2.AsyncClient:
    """A client that follows no redirects, since what it sends is meant for one server.

    Raises `ConfigurationError` if the environment names a proxy or certificates that cannot be used.
    """
    try:
        return httpx2.AsyncClient(timeout=REQUEST_S, follow_redirects=False, transport=transport)
    except (ValueError, ImportError, OSError, httpx2.InvalidURL) as error:
        raise ConfigurationError(
            "this machine's settings for web requests (a proxy, certificates) cannot be used: "
            f"{printable(str(error))[:200]}"
        ) from error


async def ask(
    client: httpx2.AsyncClient,
    method: str,
    url: str,
    *,
    max_bytes: int,
    headers: Mapping[str, str] | None = None,
    content: bytes | None = None,
    form: Mapping[str, str] | None = None,
) -> HttpAnswer:
    """One request. Raises `NoAnswer`."""
    try:
        async with (
            asyncio.timeout(REQUEST_S),
            client.stream(method, url, headers=headers, content=content, data=form) as response,
        ):
            body = b""
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > max_bytes:
                    raise NoAnswer(f"the answer has more than {max_bytes} bytes")
            return HttpAnswer(response.status_code, body, _seconds(response.headers.get("Retry-After")))
    except TimeoutError as error:
        raise NoAnswer(f"no answer within {REQUEST_S:.0f} s") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise NoAnswer(f"{type(error).__name__}: {str(error)[:200]}") from error


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() and len(text) <= 6 else None
