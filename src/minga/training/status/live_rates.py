"""The rates of a living run, from its board, as the planner wants them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low

from minga.averaging.link_record import Links
from minga.averaging.planning.believed_rates import RateClaim, swarm_rates
from minga.averaging.solver.division import SwarmRates
from minga.network.gossip.board import Board
from minga.network.gossip.record_kinds import AddressInfo
from minga.network.interface import PeerId
from minga.training.record_kinds import Progress


@dataclass(frozen=True)
class LiveRates:
    """The peers that take part in rounds, and their rates in the same order.

    `vector_bytes` is the size of the encoded vector that peers report, 0 if none does.
    """

    peers: tuple[PeerId, ...]
    rates: SwarmRates
    vector_bytes: int


def live_rates(board: Board) -> LiveRates:
    """The rates on the board at this moment; no peers if none is in sync yet. On the event loop's thread only."""
    links = {item.owner: item.payload for item in board.items(Links)}
    order: list[PeerId] = []
    claims: list[RateClaim] = []
    sizes: list[int] = []
    for peer, progress, _ in sorted(board.items(Progress), key=lambda item: item.owner):
        info = board.get(peer, AddressInfo)
        if progress.status in ("training", "averaging") and info is not None and info.role != "monitor":
            order.append(peer)
            claims.append(_claim(info, progress, links.get(peer, Links())))
            sizes.append(progress.vector_bytes)
    return LiveRates(tuple(order), swarm_rates(order, claims, links), _agreed(sizes))


def _agreed(sizes: Iterable[int]) -> int:
    """The median, which a minority of the reporting peers cannot shift: all honest peers report the same size."""
    told = [size for size in sizes if size]
    return median_low(told) if told else 0


def _claim(info: AddressInfo, progress: Progress, links: Links) -> RateClaim:
    auxiliary = info.role == "auxiliary"
    return RateClaim(
        upload=links.upload or None,
        download=links.download or None,
        samples_per_second=0.0 if auxiliary else progress.samples_per_second,
        sends=not auxiliary,
        aggregates=not progress.client,
        upload_shown=links.upload_shown,
        download_shown=links.download_shown,
    )
