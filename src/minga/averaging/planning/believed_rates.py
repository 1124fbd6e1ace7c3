"""From what peers measured, and say about each other, to the rates that a plan may count on.

Theory of operation. A peer's own word is believed as far as it does not draw parts of the vector: up to the median of
what all claim, so that fewer than half of them cannot lift it, and always for less (to promise less, or to declare a
cap, is everybody's right). A member that claims more has to have shown it. Each other member tells by its record how
many bytes per second came from that peer in whole rounds. A root sends its result to all others alike, so that one
level fits all witnesses: the highest which more than a quarter of the group confirms, which fewer friends cannot lift.
That level times the number of witnesses is what the peer is known to have sent. It counts for `LIFT` times as much, and
so a fast newcomer comes to its full share within a few rounds, doubling or tripling its part each time it delivers,
while a liar stays at `LIFT` times what it really can. The same goes for downloads by what others sent that it
acknowledged.

A rate that was never *shown*, because nobody asked for more, is one that the line carries at least: it counts for the
median of all claims if that is more, and as a download for as much as the same line uploads: few are slower down than
up. A member that cannot keep up with that has shown its rate after one round.

A path counts as slower than its ends only if its sender found that it got less than `SLOW_PERCENT` of what both lines
had room for, and if its receiver never saw more than `AGREE` times that rate come. Of the two rates the lower counts.
A single liar can therefore slow down what goes to and from itself, as it could by being slow, and cannot touch the path
between two others. So it is with two peers that cannot reach each other: there is no way between them if both say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from minga.averaging.links import BrokenPaths, LinkRow, Links, link_key
from minga.averaging.solver.division import PeerRates, SwarmRates
from minga.network.bandwidth.estimate import FASTEST_RATE
from minga.network.interface import PeerId

LIFT = 3.0
DOUBTED = 4
"""One witness in so many may lie without effect."""

SLOW_PERCENT = 50
AGREE = 2.0
ALIKE = 0.5
"""Rates that differ by no more than this share are taken for the same: two measurements of one line differ as much."""


@dataclass(frozen=True)
class RateClaim:
    """What a peer tells of itself, when it joins a group or since then on the board: rates in bytes per second, None
    where unknown, and the least that they can be where they were not `shown`.
    """

    upload: float | None = None
    download: float | None = None
    samples_per_second: float = 0.0
    sends: bool = True
    aggregates: bool = True
    upload_shown: bool = True
    download_shown: bool = True


def swarm_rates(order: Sequence[PeerId], claims: Sequence[RateClaim], records: Mapping[PeerId, Links]) -> SwarmRates:
    """What a plan may count on for the peers of `order`, whose `claims` are in the same order.

    Whatever remote peers say is taken in: numbers that make no sense count as unknown.
    """
    rows = _rows(order, records)
    said = [records.get(peer, Links()) for peer in order]
    sent: list[list[float]] = [[] for _ in order]
    received: list[list[float]] = [[] for _ in order]
    for (_, i), row in rows.items():
        sent[i].append(row.received_mean)
        received[i].append(row.sent_mean)
    up = _believed([(c.upload, c.upload_shown) for c in claims], sent, [links.upload_cap for links in said])
    least = [c.download if c.download_shown else _more(c.download, rate) for c, rate in zip(claims, up, strict=True)]
    downloads = [(rate, claim.download_shown) for claim, rate in zip(claims, least, strict=True)]
    down = _believed(downloads, received, [links.download_cap for links in said])
    peers = tuple(
        PeerRates(u, d, _speed(c.samples_per_second), sends=c.sends, aggregates=c.aggregates)
        for c, u, d in zip(claims, up, down, strict=True)
    )
    places = {peer: place for place, peer in enumerate(order)}
    apart = BrokenPaths.of(dict(zip(order, said, strict=True)), max(len(order), len(records))).apart
    broken = {(places[one], places[other]): 0.0 for one, others in apart.items() for other in others}
    return SwarmRates(peers, _pairs(claims, rows) | broken)


def _rows(order: Sequence[PeerId], records: Mapping[PeerId, Links]) -> dict[tuple[int, int], LinkRow]:
    """What peer i says about peer j, for members of the group; of several rows about one peer the first."""
    numbers = {link_key(peer): index for index, peer in enumerate(order)}
    rows: dict[tuple[int, int], LinkRow] = {}
    for i, peer in enumerate(order):
        for row in records[peer].rows if peer in records else ():
            j = numbers.get(row.key)
            if j is not None and j != i:
                rows.setdefault((i, j), row)
    return rows


def _believed(
    claims: Sequence[tuple[float | None, bool]], witnesses: Sequence[Sequence[float]], caps: Sequence[float]
) -> list[float | None]:
    """The rate of each peer as far as it is believed; None if nobody claims anything and it has no cap. `claims` are
    rates, and whether they were shown.
    """
    known = [rate for claim, _ in claims if (rate := _rate(claim)) is not None]
    usual = median(known) if known else None
    believed: list[float | None] = []
    for (claim, shown), seen in zip(claims, witnesses, strict=True):
        rate = _rate(claim)
        if rate is None or (usual is not None and not shown and rate < usual):
            rate = usual
        elif usual is not None and rate > usual:
            rate = min(rate, max(usual, LIFT * _shown(seen, len(claims) - 1)))
        believed.append(rate)
    return [_least(rate, _rate(cap)) for rate, cap in zip(_evened(believed), caps, strict=True)]


def _evened(rates: Sequence[float | None]) -> list[float | None]:
    """Give rates that hardly differ the same value, their mean: parts depend on rates so strongly that plans made of
    the noise in them would be worse than equal parts among equals.
    """
    alike: list[list[float]] = []
    for rate in sorted(rate for rate in rates if rate is not None):
        if not alike or rate > (1.0 + ALIKE) * alike[-1][0]:
            alike.append([])
        alike[-1].append(rate)
    value = {rate: math.fsum(group) / len(group) for group in alike for rate in group}
    return [None if rate is None else value[rate] for rate in rates]


def _shown(witnesses: Sequence[float], others: int) -> float:
    """What a peer moved according to the witnesses among `others`, the least trustworthy left aside."""
    seen = sorted((rate for rate in witnesses if rate > 0), reverse=True)
    doubted = others // DOUBTED
    return len(seen) * seen[doubted] if len(seen) > doubted else 0.0


def _pairs(claims: Sequence[RateClaim], rows: Mapping[tuple[int, int], LinkRow]) -> dict[tuple[int, int], float]:
    pairs: dict[tuple[int, int], float] = {}
    for (i, j), ours in rows.items():
        theirs = rows.get((j, i))
        if theirs is None or not (0 < ours.sent_percent < SLOW_PERCENT and 0 < theirs.received <= AGREE * ours.sent):
            continue
        pairs[i, j] = float(min(ours.sent, theirs.received))
    clients = [i for i, claim in enumerate(claims) if not claim.aggregates]
    pairs.update({(i, j): 0.0 for i in clients for j in clients if i != j})
    return pairs


def _rate(rate: float | None) -> float | None:
    return min(float(rate), FASTEST_RATE) if rate is not None and math.isfinite(rate) and rate > 0.0 else None


def _speed(rate: float) -> float:
    return rate if math.isfinite(rate) and rate >= 0.0 else 0.0


def _more(first: float | None, second: float | None) -> float | None:
    """The higher one, if the first is known."""
    return first if first is None or second is None else max(first, second)


def _least(first: float | None, second: float | None) -> float | None:
    known = [rate for rate in (first, second) if rate is not None]
    return min(known, default=None)
