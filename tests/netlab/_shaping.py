"""How fast a device may send: the commands of `tc` for one rate, and for slower paths to some destinations.

Rates are bits per second of data as plain TCP carries them, so a little more is let through, for the headers. What a
host sends is limited at its own device and what it receives at the other end of its cable, in the switch, because only
what leaves a device can be shaped.

A bucket holds the tokens of 4 ms, the coarsest timer of usual kernels, so that a late timer costs no throughput and a
burst is no more than that (two frames at least). The queue before it holds 50 ms, as a good modem's does, but no less
than 64 frames: with fewer than a few for each of many connections these do little but wait for lost packets.

Programs hand several packets at a time to the kernel, and veth devices pass them on in one piece, which saves much of
the work. They are split up unless the link is done with them within 1 ms: with larger pieces some of the connections
that share a link get much less of it than others, because a full queue drops all or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

FRAME_BYTES, PAYLOAD_BYTES = 1514, 1448
BURST_S = 0.004
QUEUE_S = 0.05
SMALLEST_QUEUE_BYTES = 64 * FRAME_BYTES
PIECE_S = 0.001
MOST_FRAMES = 44
"""Frames in 64 KiB, which is the most that goes in one piece anyway."""
UNLIMITED = 10e9


def shaping(device: str, rate: float | None, paths: Mapping[str, float]) -> list[str]:
    """Commands that limit what `device` sends to `rate` in total, and what goes to each IP address in `paths`.

    The total is shared out evenly among the paths that are in use, and all other destinations together.
    """
    if rate is None and not paths:
        return []
    total = rate or UNLIMITED
    assured = min([total, *paths.values()]) / (len(paths) + 1)  # the rest is borrowed, up to the ceiling
    lines = [f"qdisc add dev {device} root handle 1: htb default 2", _class(device, "1:", "1:1", total, total)]
    for minor, (destination, limit) in enumerate([("", total), *paths.items()], start=2):
        ceiling = min(limit, total)
        lines.append(_class(device, "1:1", f"1:{minor:x}", assured, ceiling))
        queue = max(SMALLEST_QUEUE_BYTES, int(ceiling / 8 * QUEUE_S))
        lines.append(f"qdisc add dev {device} parent 1:{minor:x} bfifo limit {queue}")
        if destination:
            match = f"protocol ip u32 match ip dst {destination}/32"
            lines.append(f"filter add dev {device} parent 1: {match} flowid 1:{minor:x}")
    return lines


def frames_in_a_piece(rates: Iterable[float | None]) -> int:
    """How many frames may go in one piece where links of these rates are on the way."""
    slowest = min((rate for rate in rates if rate is not None), default=UNLIMITED)
    return max(1, min(MOST_FRAMES, int(slowest * PIECE_S / (8 * FRAME_BYTES))))


def _class(device: str, parent: str, own: str, rate: float, ceiling: float) -> str:
    rate, ceiling = (r * FRAME_BYTES / PAYLOAD_BYTES for r in (rate, ceiling))
    burst, ceiling_burst = (max(2 * FRAME_BYTES, int(r / 8 * BURST_S)) for r in (rate, ceiling))
    limits = f"rate {int(rate)}bit burst {burst} ceil {int(ceiling)}bit cburst {ceiling_burst}"
    return f"class add dev {device} parent {parent} classid {own} htb {limits} quantum {FRAME_BYTES}"
