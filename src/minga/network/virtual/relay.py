"""A simulated relay: a server in the middle of the paths between hosts that get no direct one.

Theory of operation. All that a relay carries shares its rate evenly. A sender gives it no more than its share, because
a transport finds out how fast it may send; so a stream that begins on a relayed path waits with the sender, as on a
limited path. A stream keeps the rate of the path on which it began, also when a direct path appears meanwhile.
"""

from __future__ import annotations

from typing import Final

from minga.network.virtual.link import LineDirection

PUNCH_ROUND_TRIPS: Final = 3.0
"""Hole punching takes so many round trips over the relay: addresses both ways, a probe both ways, its confirmation."""


def relay_url(name: str) -> str:
    """The URL of the relay that scenarios and scripts call by this name."""
    return f"https://{name}.example"


class Relay:
    """One relay: `line` is what it carries in all, `latency_s` one-way to the middle of its region."""

    def __init__(self, url: str, line: LineDirection, latency_s: float, region: str) -> None:
        self.url, self.line, self.latency_s, self.region = url, line, latency_s, region
        self.is_down = False
