"""Why the authority gives no token."""

from __future__ import annotations


class Refused(Exception):
    """The answer is no. `status` is that of HTTP, `code` is for programs and the message for people.

    bad_request 400 · login 401 · login_needed 401 · not_allowed 403 · full 403 · nonce 409 · too_large 413 · busy 429
    · provider 503
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        self.status, self.code = status, code
        super().__init__(message)


def wrong_login(message: str) -> Refused:
    """The identity of the client is not proven."""
    return Refused(401, "login", message)


def login_needed(message: str) -> Refused:
    """A key alone is not enough any more."""
    return Refused(401, "login_needed", message)


def not_allowed(message: str) -> Refused:
    """The person is known, and may not."""
    return Refused(403, "not_allowed", message)


def provider_down(message: str) -> Refused:
    """The person cannot be identified at present."""
    return Refused(503, "provider", message)
