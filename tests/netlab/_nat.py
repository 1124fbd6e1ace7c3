"""What a router translates: the rules of nftables for each kind of NAT, for forwarded ports and for hairpins.

Linux keeps the port of a sender where it is free, for all destinations, and lets in only what answers: that is a
port-restricted NAT. `random` gives each connection another port, as a symmetric NAT does. A router that forwards all
ports to one host is, to that host, a 1:1 NAT, and to others what a full cone is.

A packet from inside to the router's own outer address (a hairpin) is sent back inside where a port is forwarded, under
the router's address, because the answer would otherwise go past the router.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

RouterKind = Literal["port-restricted", "symmetric", "no-hairpin"]
"""No-hairpin: port-restricted, and it drops packets from inside to its own outer address, as many routers do."""


def router_rules(kind: RouterKind, public: str, ports: Mapping[int, str]) -> list[str]:
    """Lines for `nft`. `ports` are forwarded, each to the address of a host inside; 0 stands for all others."""
    answers = "ct state established,related accept"
    inside = "iifname wan0" if kind == "no-hairpin" else "iifname { wan0, lan0 }"
    forwards = [
        f"    {inside} ip daddr {public} {protocol} dport {port} dnat to {address}"
        if port
        else f"    {inside} ip daddr {public} meta l4proto {protocol} dnat to {address}"
        for port, address in sorted(ports.items(), reverse=True)
        for protocol in ("udp", "tcp")
    ]
    return [
        "table ip nat {",
        "  chain before { type nat hook prerouting priority -100;",
        *forwards,
        "  }",
        "  chain out { type nat hook postrouting priority 100;",
        f"    oifname wan0 masquerade {'random' if kind == 'symmetric' else ''}",
        "    iifname lan0 oifname lan0 ct status dnat masquerade",
        "  }",
        "  chain through { type filter hook forward priority 0;",
        f"    iifname wan0 {answers}",
        "    iifname wan0 ct status dnat accept",
        "    iifname wan0 drop",
        "  }",
        "  chain in { type filter hook input priority 0;",
        f"    iifname wan0 {answers}",
        "    iifname wan0 drop",
        f"    iifname lan0 ip daddr {public} drop",
        "  }",
        "}",
    ]
