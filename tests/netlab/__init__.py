"""A network to test on: hosts in namespaces of their own, with links as slow as real ones, NAT and cut wires.

with Lab([Host("a", up=20e6, down=100e6), Host("b", nat="home")]) as lab:
    lab.start("a", ["ping", "-c", "1", lab.address("b")])

Needs root on Linux with iproute2, nftables and util-linux; `why_unavailable` tells what is missing.
"""

from __future__ import annotations

from tests.netlab._lab import Host, Lab, why_unavailable
from tests.netlab._namespace import LabError, enter
from tests.netlab._nat import RouterKind

__all__ = ["Host", "Lab", "LabError", "RouterKind", "enter", "why_unavailable"]
