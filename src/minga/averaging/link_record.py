"""The record "links": what a peer tells the others about its line, for the plans that they make."""

from __future__ import annotations

from typing import Annotated

import msgspec

from minga.network.gossip.record_kinds import MAX_PAYLOAD_BYTES, Kind, Payload
from minga.network.interface import PeerId

MAX_LINK_ROWS = 64

RateNumber = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class LinkRow(msgspec.Struct, frozen=True, array_like=True):
    """What the owner knows of its path to one other peer, whose `key` is its `link_key`.

    `sent` and `received` are what the path carries in bytes per second, 0 where unknown, `sent` as the other one
    acknowledged it; `sent_mean` and `received_mean` what it moved in the best of the last rounds, over the whole round.
    `sent_percent` compares `sent` with what the owner's line could have sent at those moments, 0 where nothing showed
    that the path is what was slow. `round_trip_us` is in microseconds, 0 where unknown.
    """

    key: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
    sent: RateNumber
    received: RateNumber
    sent_mean: RateNumber
    received_mean: RateNumber
    sent_percent: Percent
    round_trip_us: Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class Links(Payload, frozen=True):
    """Name "links": what the owner's line carries, and its caps, in bytes per second; 0 where unknown or unlimited.

    What is not `shown` it carries at least: it was never full.
    """

    upload: RateNumber = 0
    download: RateNumber = 0
    upload_cap: RateNumber = 0
    download_cap: RateNumber = 0
    rows: Annotated[tuple[LinkRow, ...], msgspec.Meta(max_length=MAX_LINK_ROWS)] = ()
    upload_shown: bool = True
    download_shown: bool = True


def link_key(peer: PeerId) -> bytes:
    """What stands for a peer in the rows of `Links`: the first bytes of its key."""
    return bytes.fromhex(peer[:16])


LINKS = Kind("links", 7, Links, MAX_PAYLOAD_BYTES, is_large=True)
