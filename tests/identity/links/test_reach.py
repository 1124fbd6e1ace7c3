from __future__ import annotations

import pytest

from minga.identity.links.links import EntryPoint, Reach, reach_of

ONE, TWO = "1f" * 32, "2e" * 32


@pytest.mark.parametrize(
    ("direct", "relay", "reach"),
    [
        ((), None, Reach.MACHINE),
        (("127.0.0.1:4", "[::1]:4"), None, Reach.MACHINE),
        (("127.0.0.1:4", "192.168.1.5:4"), None, Reach.NETWORK),
        (("10.1.2.3:4", "[fe80::1]:4", "[fd00::1]:4", "100.64.0.9:4"), None, Reach.NETWORK),
        (("192.168.1.5:4", "93.184.216.34:4"), None, Reach.INTERNET),
        (("[2606:4700::1111]:4",), None, Reach.INTERNET),
        (("192.168.1.5:4",), "https://relay.example", Reach.INTERNET),
    ],
)
def test_addresses_tell_how_far_a_link_leads(direct: tuple[str, ...], relay: str | None, reach: Reach) -> None:
    assert reach_of([EntryPoint(ONE, direct, relay)]) is reach
    assert reach_of([EntryPoint(TWO, ("127.0.0.1:4",)), EntryPoint(ONE, direct, relay)]) is reach
