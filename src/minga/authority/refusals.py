"""Why the authority gives no token."""

from __future__ import annotations

from typing import Final

STATUS: Final = {
    "bad_request": 400,
    "login": 401,  # the identity of the client is not proven
    "login_needed": 401,  # a key alone is not enough any more
    "not_allowed": 403,  # the person is known, and may not
    "invitation": 403,  # the authority's own has ended or is used up: its operator has to do something
    "full": 403,
    "slow": 408,
    "nonce": 409,
    "too_large": 413,
    "busy": 429,
    "provider": 503,  # the person cannot be identified at present
}
"""The HTTP status of each refusal."""


class Refused(Exception):
    """The answer is no: `code`, of `STATUS`, is for programs, and the message for people."""

    def __init__(self, code: str, message: str) -> None:
        self.code, self.status = code, STATUS[code]
        super().__init__(message)
