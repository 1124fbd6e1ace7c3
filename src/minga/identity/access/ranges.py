"""Address ranges that organisers banned from a run for a time, and whether an address lies in one.

A range has at most 65,536 addresses of IPv4, or is a block of IPv6 such as a provider hands out (/32) at most: so one
order cannot shut the run to all. Each organiser bans for itself. A range is banned while as many organisers as have to
sign say so. The bans end with their dates, or with the term of the organisers that signed them.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator

from minga.identity.access.orders import MAX_RANGES, RangeBan

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_SHORTEST_PREFIX = {4: 16, 6: 32}


def parse_range(text: str) -> IpNetwork:
    """The range that `text` means, an address or CIDR notation. Raises `ValueError`, in words for its author."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(
            f"{text[:60]!r} is no address range: write 203.0.113.0/24, 203.0.113.7 or 2001:db8::/48"
        ) from None
    shortest = _SHORTEST_PREFIX[network.version]
    if network.prefixlen < shortest:
        raise ValueError(f"{network} is too large a range: IPv{network.version} needs /{shortest} or longer")
    return network


class RangeBans:
    """The range bans of one term, by range and the organiser that signed."""

    def __init__(self) -> None:
        self._bans: dict[IpNetwork, dict[str, RangeBan]] = {}
        self._count: Counter[str] = Counter()

    def orders(self) -> Iterator[RangeBan]:
        """All of them, in one order."""
        for _, bans in sorted(self._bans.items(), key=lambda item: str(item[0])):
            yield from (ban for _, ban in sorted(bans.items()))

    def take(self, signer: str, ban: RangeBan) -> bool:
        """Enter a ban whose signature was checked; whether it is new. Raises `ValueError` for a range that is none."""
        network = parse_range(ban.range)
        if str(network) != ban.range:
            raise ValueError(f"the range is not in canonical form, which is {network}")
        known = self._bans.get(network, {}).get(signer)
        if known is not None and (known.issued, known.statement()) >= (ban.issued, ban.statement()):
            return False
        if known is None and self._count[signer] >= MAX_RANGES:
            raise ValueError(f"one organiser bans at most {MAX_RANGES} address ranges")
        self._count[signer] += known is None
        self._bans.setdefault(network, {})[signer] = ban
        return True

    def in_force(self, needed: int, now_s: float) -> dict[IpNetwork, RangeBan]:
        """The ranges that at least `needed` organisers ban now, each with the ban that ends first of those needed."""
        found = {}
        for network, bans in self._bans.items():
            lasting = sorted((ban for ban in bans.values() if ban.expires > now_s), key=lambda ban: -ban.expires)
            if len(lasting) >= needed:
                found[network] = lasting[needed - 1]
        return found

    def ban_of(self, endpoints: Iterable[str], needed: int, now_s: float) -> RangeBan | None:
        """The ban in force for one of these `ip:port` endpoints (IPv6 in brackets), if there is one."""
        if not self._bans:
            return None
        banned = self.in_force(needed, now_s)
        for endpoint in endpoints if banned else ():
            try:
                address = ipaddress.ip_address(endpoint.rpartition(":")[0].strip("[]").partition("%")[0])
            except ValueError:
                continue
            for network, ban in banned.items():
                if address in network:
                    return ban
        return None
