"""A member's conclusions from the board about the others: which peers are alive, how far the swarm is, which are
behind.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from minga.averaging.link_record import Links
from minga.averaging.link_reporter import links_of
from minga.core.thread_guard import loop_bound
from minga.network.bandwidth.access_link import AccessRates
from minga.network.gossip.board import Board
from minga.network.gossip.changes import Observer
from minga.network.gossip.record_kinds import AddressInfo
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node
from minga.training.life.newcomers import Newcomers
from minga.training.record_kinds import Progress

MOST_DONORS = 24
"""Each donor costs a connection, and among this many false donors are hardly the majority."""


@loop_bound
class BoardView:
    """Reads the board for one member (`SwarmView` of group formation)."""

    def __init__(self, board: Board, node: Node) -> None:
        self._board, self._node = board, node
        self._newcomers = Newcomers(asyncio.get_running_loop().time)
        self._known: dict[PeerId, Progress] = {}
        self._known_at = -1
        self._epoch = 0
        self._random = random.Random(f"minga donors {node.peer_id}")

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call `observer` with each change on the board from now on; returns the function that ends this."""
        return self._board.observe(observer)

    @property
    def epoch(self) -> int:
        """That of the organisers' last regroup that this peer followed: it goes with peers of the same one only."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch, self._known_at = epoch, -1

    def alive(self) -> list[PeerId]:
        """Trainers, clients and auxiliaries that are alive, this peer included."""
        others = {peer for peer, info in self._board.payloads(AddressInfo).items() if info.role != "monitor"}
        elsewhere = {peer for peer, each in self._board.payloads(Progress).items() if each.epoch != self._epoch}
        return sorted((others - elsewhere) | {self._node.peer_id})

    def active(self) -> dict[PeerId, Progress]:
        """The progress of all other living members that take part in rounds at present."""
        return {peer: p for peer, p in self._progress().items() if p.status not in ("syncing", "finished")}

    def settled(self) -> dict[PeerId, Progress]:
        """The progress of all other living members that have a state of their own, those that finished included."""
        return {peer: p for peer, p in self._progress().items() if p.status != "syncing"}

    def at(self, step: int) -> list[PeerId]:
        """Other active members at `step`."""
        return [peer for peer, progress in self.active().items() if progress.step == step]

    def averaging(self, step: int) -> list[PeerId]:
        """Other active members whose round of `step` still runs."""
        return [peer for peer, p in self.active().items() if p.step == step and p.status == "averaging"]

    def current(self, step: int) -> list[PeerId]:
        """Other members at `step` that could lead: they can be dialled, or are connected anyway."""
        return [
            peer
            for peer, progress in self.active().items()
            if progress.step == step and not progress.client and self._reachable(peer)
        ]

    def syncing(self) -> dict[PeerId, float]:
        """Living newcomers that are fetching state, and for how many seconds each has done so by now."""
        return self._newcomers.syncing(self._progress())

    def newest_step(self) -> int | None:
        """The latest step that at least half of the other active members have reached; None if there are none.

        A single peer that is ahead of all others, by mistake or on purpose, does not drag them along.
        """
        settled = self.settled().values()
        steps = sorted((p.step for p in settled if not p.client), reverse=True)
        steps = steps or sorted((p.step for p in settled), reverse=True)
        return steps[(len(steps) - 1) // 2] if steps else None

    def ahead(self, step: int) -> list[PeerId]:
        """Other settled members that are past `step`."""
        return [peer for peer, progress in self.settled().items() if progress.step > step]

    def is_behind(self, step: int) -> bool:
        """Whether at least half of the settled members, this one counted, are past `step`."""
        steps = [p.step for p in self.settled().values() if not p.client]
        ahead = sum(1 for other in steps if other > step)
        return ahead > 0 and 2 * ahead >= len(steps) + 1

    def donors(self) -> list[PeerId]:
        """Members that could serve state: all of them, or in a large swarm `MOST_DONORS` at random, others each time.

        Those at the newest step come first.
        """
        settled = self.settled()
        able = sorted(peer for peer in settled if self._reachable(peer))
        chosen = able if len(able) <= MOST_DONORS else self._random.sample(able, MOST_DONORS)
        return sorted(chosen, key=lambda peer: (-settled[peer].step, peer))

    def address(self, peer: PeerId) -> Address | None:
        """Where a peer can be dialled, if known."""
        return self._node.address if peer == self._node.peer_id else self._board.address_of(peer)

    def reachable(self) -> list[PeerId]:
        """Other active members that can be dialled, or are connected anyway."""
        return [peer for peer in sorted(self.active()) if self._reachable(peer)]

    def links(self) -> dict[PeerId, Links]:
        """The rates that each living peer publishes of its links, and those that this peer measured of its own."""
        return {
            **self._board.payloads(Links),
            self._node.peer_id: links_of(self._node),
        }

    def rates(self) -> AccessRates:
        """This peer's own present rates and caps."""
        return self._node.access_link.rates()

    def _progress(self) -> dict[PeerId, Progress]:
        """The records of all other living members, monitors excepted; collected again only after a change."""
        if self._known_at != self._board.generation:
            known, infos, me = self._board.payloads(Progress), self._board.payloads(AddressInfo), self._node.peer_id
            self._known = {
                peer: progress
                for peer, progress in known.items()
                if peer != me
                and progress.epoch == self._epoch
                and (info := infos.get(peer)) is not None
                and info.role != "monitor"
            }
            self._known_at = self._board.generation
            self._newcomers.look(self._known)
        return self._known

    def _reachable(self, peer: PeerId) -> bool:
        address = self._board.address_of(peer)
        return self._node.is_connected(peer) or (address is not None and address.dialable)
