"""The record "links": what a peer tells the others about its line, for the plans that they make."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec

from minga.core.errors import RemoteError
from minga.core.events.network import LinksMeasured
from minga.core.thread_guard import loop_bound
from minga.network.bandwidth.estimate import FASTEST_RATE, ROOM
from minga.network.bandwidth.meter import Path
from minga.network.gossip.board import Board
from minga.network.gossip.record_kinds import MAX_PAYLOAD_BYTES, Kind, Payload
from minga.network.interface import PeerId
from minga.network.rpc.node import Node

MAX_LINK_ROWS, MAX_APART = 64, 32

RateNumber = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
LinkKey = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class LinkRow(msgspec.Struct, frozen=True, array_like=True):
    """What the owner knows of its path to one other peer, whose `key` is its `link_key`.

    `sent` and `received` are what the path carries in bytes per second, 0 where unknown, `sent` as the other one
    acknowledged it; `sent_mean` and `received_mean` what it moved in the best of the last rounds, over the whole round.
    `sent_percent` compares `sent` with what the owner's line could have sent at those moments, 0 where nothing showed
    that the path is what was slow.
    """

    key: LinkKey
    sent: RateNumber
    received: RateNumber
    sent_mean: RateNumber
    received_mean: RateNumber
    sent_percent: Percent


class Links(Payload, frozen=True):
    """Name "links": what the owner's line carries, and its caps, in bytes per second; 0 where unknown or unlimited.

    What is not `shown` it carries at least: it was never full. Those `apart` live, and the owner could not dial them,
    by their `link_key`.
    """

    upload: RateNumber = 0
    download: RateNumber = 0
    upload_cap: RateNumber = 0
    download_cap: RateNumber = 0
    rows: Annotated[tuple[LinkRow, ...], msgspec.Meta(max_length=MAX_LINK_ROWS)] = ()
    upload_shown: bool = True
    download_shown: bool = True
    apart: Annotated[tuple[LinkKey, ...], msgspec.Meta(max_length=MAX_APART)] = ()


def link_key(peer: PeerId) -> bytes:
    """What stands for a peer in the rows of `Links`: the first bytes of its key."""
    return bytes.fromhex(peer[:16])


class BrokenPaths(NamedTuple):
    """Which of some peers cannot reach which others of them, as both say.

    Those `cut_off` are left aside: each cannot reach so many of them that it is most of the swarm, of which most can
    reach each other. A round with it could go only over the few peers that it reaches; it goes on without it.
    """

    apart: dict[PeerId, set[PeerId]]
    cut_off: frozenset[PeerId]

    @classmethod
    def of(cls, records: Mapping[PeerId, Links], count: int) -> BrokenPaths:
        """By the `records` of these peers, in a swarm of `count`. Others cut nobody off: to be there costs nothing."""
        peers = {link_key(peer): peer for peer, links in records.items() if links.apart}
        said = {(one, peers[key]) for one in peers.values() for key in records[one].apart if key in peers}
        apart: dict[PeerId, set[PeerId]] = {}
        for one, other in said:
            if (other, one) in said and one != other:
                apart.setdefault(one, set()).add(other)
        cut_off = set[PeerId]()
        while apart and _is_alone(worst := max(apart, key=lambda peer: (len(apart[peer]), peer)), apart, count):
            cut_off.add(worst)
            for other in apart.pop(worst):
                apart[other].discard(worst)
                if not apart[other]:
                    del apart[other]
        return cls(apart, frozenset(cut_off))


def _is_alone(peer: PeerId, apart: Mapping[PeerId, set[PeerId]], count: int) -> bool:
    """Whether a peer cannot reach most of `count` peers, of whom most can reach three quarters of the others."""
    scattered = sum(4 * len(others - {peer}) > count for other, others in apart.items() if other != peer)
    return (2 * len(apart[peer]) > count or len(apart[peer]) >= MAX_APART) and 2 * scattered <= count


LINKS = Kind("links", 7, Links, MAX_PAYLOAD_BYTES, is_large=True)


# ---- The reporter: it tells the others what this peer measured, and the meter what limits the others have set.


FIRST_PERIOD_S, PERIOD_S = 5.0, 30.0
"""Shortest times between two records: where something became known, and where it only changed."""

REPORTS_PER_SECOND = 5.0
"""Reports in the whole swarm, at most, once it is large: each is a thousand bytes for everybody."""

CHANGE = 0.1

APART_S = 10.0
"""Seconds after which a peer that could not be dialled counts as one that lives and is out of reach, if it is still
among the living: a dead one is not."""


def links_of(node: Node, living: Mapping[PeerId, Links]) -> Links:
    """What a node knows of its line and its paths at present: the paths that were used last, and to which of the
    `living` there is none.
    """
    rates = node.access_link.rates()
    up, down = dict(node.access_link.meter.up.paths()), dict(node.access_link.meter.down.paths())
    peers = list(dict.fromkeys(peer for pair in zip([*up, *down], [*down, *up], strict=True) for peer in pair))
    apart = _apart(node, living)
    return Links(
        _whole(rates.upload),
        _whole(rates.download),
        _whole(rates.upload_cap),
        _whole(rates.download_cap),
        tuple(_row(peer, up.get(peer), down.get(peer)) for peer in peers[: MAX_LINK_ROWS - len(apart)]),
        rates.upload_shown,
        rates.download_shown,
        tuple(map(link_key, apart)),
    )


def _apart(node: Node, living: Mapping[PeerId, Links]) -> list[PeerId]:
    """The peers among the `living` that could not be dialled for a while, or say the same of this one: those first."""
    own, until_s = link_key(node.peer_id), asyncio.get_running_loop().time() - APART_S
    says_so = {peer: own in living[peer].apart for peer in node.unreached() if peer in living}
    found = [peer for peer, says in says_so.items() if says or node.unreached()[peer] <= until_s]
    return sorted(sorted(found, key=lambda peer: not says_so[peer])[:MAX_APART])


@loop_bound
class LinkReporter:
    """Publishes a node's `Links` on the board.

    It also dials those that could not be dialled again, so that no path is given up for long, and those that say so of
    this peer: a path counts as none where both its ends found none, so that nobody can cut others off by a lie.
    """

    def __init__(self, node: Node, board: Board) -> None:
        self._node, self._board = node, board
        self._published = Links()
        self._published_s = self._built_s = self._dialled_s = -math.inf
        self._changes: tuple[object, ...] = ()

    async def run(self) -> None:
        """Publish what is new, now and then; runs until cancelled."""
        while True:
            period_s = max(FIRST_PERIOD_S, self._board.alive_count / REPORTS_PER_SECOND)
            self._publish_if_due(asyncio.get_running_loop().time(), period_s)
            await asyncio.sleep(period_s / 2.0)

    def _publish_if_due(self, now: float, period_s: float) -> None:
        meter = self._node.access_link.meter
        told = {item.owner: item.payload for item in self._board.items(Links)}
        self._dial(told, now)
        others = max(1, len(told) - 1)
        meter.up.caps = {peer: links.download_cap / others for peer, links in told.items() if links.download_cap}
        meter.down.caps = {peer: links.upload_cap / others for peer, links in told.items() if links.upload_cap}
        meter.up.settle()
        meter.down.settle()
        changes = meter.up.changes + meter.down.changes, *_apart(self._node, told)
        longer_s = max(PERIOD_S, period_s)
        if now - self._built_s < period_s or (changes == self._changes and now - self._built_s < longer_s):
            return
        links = links_of(self._node, told)
        self._built_s, self._changes = now, changes
        news = is_news(links, self._published)
        if news or (now - self._published_s >= longer_s and has_moved(links, self._published)):
            self._published, self._published_s = links, now
            self._board.put(links)
            rates = self._node.access_link.rates()
            self._node.events.emit(
                LinksMeasured(
                    upload=rates.upload,
                    download=rates.download,
                    paths=len(links.rows),
                    limited_by=rates.limited_by,
                )
            )

    def _dial(self, told: Mapping[PeerId, Links], now: float) -> None:
        if now - self._dialled_s < PERIOD_S:
            return
        own, unreached = link_key(self._node.peer_id), self._node.unreached()
        doubted = [peer for peer, links in told.items() if own in links.apart and not self._node.is_connected(peer)]
        again = list(dict.fromkeys([*doubted, *(peer for peer in unreached if peer in told)]))[:MAX_APART]
        if again:
            self._dialled_s = now
            for peer in again:
                self._node.spawn(self._dial_again(peer))

    async def _dial_again(self, peer: PeerId) -> None:
        with contextlib.suppress(RemoteError):
            await self._node.redial(peer)


def is_news(links: Links, before: Links) -> bool:
    """Whether something is known that was not known before, as that a line carries far more than was told."""
    known = {row.key: row for row in before.rows}
    rows = any(
        new and not old
        for row in links.rows
        for new, old in zip(_numbers(row), _numbers(known[row.key]) if row.key in known else (0,) * 5, strict=True)
    )
    caps = (links.upload_cap, links.download_cap) != (before.upload_cap, before.download_cap)
    shown = (links.upload_shown, links.download_shown) != (before.upload_shown, before.download_shown)
    more = links.upload > ROOM * before.upload or links.download > ROOM * before.download
    return rows or caps or shown or more or links.apart != before.apart


def has_moved(links: Links, before: Links) -> bool:
    """Whether a rate or a path is clearly another than before."""
    rows, former = ({row.key: row for row in one.rows} for one in (links, before))
    pairs = [(links.upload, before.upload), (links.download, before.download)]
    for key, row in rows.items():
        old = former.get(key)
        pairs += list(zip(_numbers(row), _numbers(old), strict=True)) if old else [(max(_numbers(row)), 0)]
    return any(abs(new - old) > CHANGE * old for new, old in pairs)


def _numbers(row: LinkRow) -> tuple[int, ...]:
    return row.sent, row.received, row.sent_mean, row.received_mean, row.sent_percent


def _row(peer: PeerId, up: Path | None, down: Path | None) -> LinkRow:
    return LinkRow(
        link_key(peer),
        _whole(up.rate.value if up else None),
        _whole(down.rate.value if down else None),
        _whole(up.mean if up else None),
        _whole(down.mean if down else None),
        _percent(up.share if up else None),
    )


def _whole(rate: float | None) -> int:
    return 0 if rate is None or not math.isfinite(rate) else min(max(1, round(rate)), int(FASTEST_RATE))


def _percent(share: float | None) -> int:
    return 0 if share is None else min(max(1, round(100.0 * share)), 100)
