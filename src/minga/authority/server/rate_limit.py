"""How often one address may ask."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

MAX_ADDRESSES = 20_000


class RateLimit:
    """A bucket of `burst` requests for each address, which fills up again by `per_second`.

    All IPv6 addresses of one /64, which one customer usually has, are one address.
    """

    def __init__(self, burst: int, per_second: float, clock: Callable[[], float]) -> None:
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait_s(self, address: str) -> float:
        """Count one request; 0.0, or in how many seconds the next may come."""
        key, now = _network(address), self._clock()
        left, since = self._buckets.pop(key, (float(self._burst), now))
        left = min(float(self._burst), left + (now - since) * self._per_second)
        wait_s = 0.0 if left >= 1.0 else (1.0 - left) / self._per_second
        if len(self._buckets) >= MAX_ADDRESSES:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[key] = (left - 1.0 if left >= 1.0 else left, now)
        return wait_s


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else str(parsed)
