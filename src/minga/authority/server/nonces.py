"""Nonces that count once."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from minga.authority.messages import NONCE_BYTES
from minga.authority.server.refusals import Refused

NONCE_S = 60.0
MAX_NONCES = 50_000


class Nonces:
    """The nonces given out and not used yet; the oldest go first. `clock` is in seconds, from any beginning."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._given: dict[bytes, float] = {}

    def give(self) -> bytes:
        """A new nonce, good for a minute."""
        if len(self._given) >= MAX_NONCES:
            del self._given[next(iter(self._given))]
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._given[nonce] = self._clock()
        return nonce

    def use(self, nonce: bytes) -> None:
        """Raises `Refused` unless this is the first use of a nonce that was given out within the last minute."""
        given_s = self._given.pop(nonce, None)
        if given_s is None or self._clock() - given_s > NONCE_S:
            raise Refused(409, "nonce", "the nonce was used before, has expired or was never given; ask for another")
