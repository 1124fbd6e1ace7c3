"""Bytes of other peers that came and were not read yet: how many may wait in this process.

Theory of operation. Each stream lets its sender be ahead of its reader by a window, and a message is kept until the
last of it is there. That makes streams fast and costs little, but hostile peers can leave all their streams full, and
there can be thousands of such peers. So what waits is counted, by peer. Below `MOST_BYTES` nobody is held up. As soon
as there is more, the peer of which most waits loses all of it: the streams in which it waits are reset. Hostile peers
thus take the room from each other. A peer of which less waits than `MOST_BYTES` divided by the number of peers loses
nothing, whatever the others send.

Nobody waits for room. What hostile peers let wait is never read: a peer that waited until it is would wait for ever,
and so would two that wait for each other.
"""

from __future__ import annotations

from typing import Final, Protocol

from minga.core.aio import Observers
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId

MOST_BYTES: Final = 256 << 20


class Waiting(Protocol):
    """A place where bytes of a peer wait."""

    def drop(self) -> None:
        """Let go of them at once, and reset their stream."""


class _OfPeer:
    """What waits of one peer, by place."""

    __slots__ = ("places", "total")

    def __init__(self) -> None:
        self.places: dict[Waiting, int] = {}
        self.total = 0


@loop_bound
class Backlog:
    """What waits in one process."""

    def __init__(self) -> None:
        self.most_bytes = MOST_BYTES
        self.total_bytes = 0
        self.on_overflow = Observers[[PeerId]]()
        """Told of each peer that lost what it let wait."""
        self._of: dict[PeerId, _OfPeer] = {}

    def note(self, peer: PeerId, place: Waiting, size: int) -> None:
        """At that place `size` bytes of a peer wait from now on. It may be dropped before this returns."""
        of_peer = self._of.get(peer)
        if of_peer is None:
            if not size:
                return
            of_peer = self._of[peer] = _OfPeer()
        more = size - of_peer.places.get(place, 0)
        of_peer.total += more
        self.total_bytes += more
        if size:
            of_peer.places[place] = size
        else:
            of_peer.places.pop(place, None)
            if not of_peer.places:
                del self._of[peer]
        while self.total_bytes > self.most_bytes:
            self._make_room()

    def _make_room(self) -> None:
        fullest = max(self._of, key=lambda peer: self._of[peer].total)
        dropped = self._of.pop(fullest)
        self.total_bytes -= dropped.total
        for place in dropped.places:
            place.drop()
        self.on_overflow.tell(fullest)
