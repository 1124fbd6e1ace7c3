"""The rates of a living run, from its board, as the planner wants them."""

from __future__ import annotations

from dataclasses import dataclass

from minga.averaging._division import SwarmRates
from minga.averaging._measured import Claim, swarm_rates
from minga.network._board import Board
from minga.network._interface import PeerId
from minga.network._records import AddressInfo, Links, Progress


@dataclass(frozen=True)
class LiveRates:
    """The peers that take part in rounds, and their rates in the same order."""

    peers: tuple[PeerId, ...]
    rates: SwarmRates


def live_rates(board: Board) -> LiveRates:
    """What the board says at this moment; no peers if nobody is in sync yet. On the event loop's thread only."""
    links = {item.owner: item.payload for item in board.items(Links)}
    order: list[PeerId] = []
    claims: list[Claim] = []
    for peer, progress, _ in sorted(board.items(Progress), key=lambda item: item.owner):
        info = board.get(peer, AddressInfo)
        if progress.status in ("training", "averaging") and info is not None and info.role != "monitor":
            order.append(peer)
            claims.append(_claim(info, progress, links.get(peer, Links())))
    return LiveRates(tuple(order), swarm_rates(order, claims, links))


def _claim(info: AddressInfo, progress: Progress, links: Links) -> Claim:
    auxiliary = info.role == "auxiliary"
    return Claim(
        upload=links.upload or None,
        download=links.download or None,
        samples_per_second=0.0 if auxiliary else progress.samples_per_second,
        sends=not auxiliary,
        aggregates=not progress.client,
    )
