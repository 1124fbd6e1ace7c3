"""The open connections of one peer, and how many there may be.

One peer may have two connections with this one, for both may dial at the same moment. A third takes the place of the
oldest: a peer that was killed and came back is not kept out by what its earlier life left behind.
"""

from __future__ import annotations

import asyncio
from collections import deque

from minga.core.thread_guard import loop_bound
from minga.network.bounded_dict import BoundedDict
from minga.network.interface import Connection, PeerId

MAX_PEERS = 4096
"""How many peers may be connected at once: several times as many as a group may have members."""

MAX_CONNECTIONS_PER_PEER = 2

JUST_ENDED_S = 2.0
"""Seconds for which nobody dials a peer whose process has ended: a new one takes longer to begin, and dials itself."""
LATELY_ENDED_S = 60.0
"""Seconds for which such a peer is not dialled for long."""


class Connections:
    """Connections by peer. Closed ones are dropped when their peer is asked for."""

    def __init__(self) -> None:
        self._connections: dict[PeerId, list[Connection]] = {}
        self._names: tuple[PeerId, ...] | None = None  # in order, if that is known
        self._past_traffic = (0, 0)
        self._ended_s: BoundedDict[PeerId, float] = BoundedDict(MAX_PEERS)

    def __len__(self) -> int:
        return len(self._connections)

    def live(self, peer: PeerId) -> Connection | None:
        """The newest open connection to `peer`: of one that was killed and came back, an older one only seems open."""
        known = self._connections.get(peer)
        if not known:
            return None
        if not known[-1].is_closed:
            return known[-1]
        if known[-1].has_process_ended:
            self._ended_s[peer] = asyncio.get_running_loop().time()
        for closed in [connection for connection in known if connection.is_closed]:
            known.remove(closed)
            self._note_traffic(closed)
        if known:
            return known[-1]
        self._drop(peer)
        return None

    def has_just_ended(self, peer: PeerId) -> bool:
        """Whether the process of `peer` ended a moment ago, and nothing was heard of a new one."""
        return self._has_ended(peer, JUST_ENDED_S)

    def has_lately_ended(self, peer: PeerId) -> bool:
        """Whether it ended not long ago."""
        return self._has_ended(peer, LATELY_ENDED_S)

    def connected(self) -> list[PeerId]:
        """All peers with an open connection, in order of their ids."""
        known = list(self._connections.items())
        return sorted([peer for peer, last in known if not last[-1].is_closed or self.live(peer)])

    def candidates(self) -> tuple[PeerId, ...]:
        """The same, and perhaps some whose last connection was just lost; costs less."""
        if self._names is None:
            self._names = tuple(sorted(self._connections))
        return self._names

    def is_full_for(self, peer: PeerId) -> bool:
        """Whether there is no room for a connection that `peer` asks for."""
        return len(self._connections) >= MAX_PEERS and self.live(peer) is None and len(self.connected()) >= MAX_PEERS

    def add(self, connection: Connection) -> Connection | None:
        """Keep a connection; returns the one that is to be closed for it, if any."""
        if connection.peer_id not in self._connections:
            self._names = None
        known = self._connections.setdefault(connection.peer_id, [])
        known.append(connection)
        if len(known) <= MAX_CONNECTIONS_PER_PEER:
            return None
        self._note_traffic(known[0])
        return known.pop(0)

    def remove(self, peer: PeerId) -> list[Connection]:
        """Forget the connections to `peer`, which are then to be closed."""
        removed = self._drop(peer)
        for connection in removed:
            self._note_traffic(connection)
        return removed

    def peers(self) -> list[PeerId]:
        """All peers with a connection that was open when last looked at."""
        return list(self._connections)

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received over all connections so far, closed ones included."""
        live = [c.facts() for connections in self._connections.values() for c in connections]
        sent, received = self._past_traffic
        return sent + sum(f.bytes_sent for f in live), received + sum(f.bytes_received for f in live)

    def _drop(self, peer: PeerId) -> list[Connection]:
        if peer in self._connections:
            self._names = None
        return self._connections.pop(peer, [])

    def _has_ended(self, peer: PeerId, limit_s: float) -> bool:
        if (ended_s := self._ended_s.get(peer)) is None or self.live(peer) is not None:
            return False
        return asyncio.get_running_loop().time() - ended_s < limit_s

    def _note_traffic(self, connection: Connection) -> None:
        facts, (sent, received) = connection.facts(), self._past_traffic
        self._past_traffic = (sent + facts.bytes_sent, received + facts.bytes_received)


# ---- How often each peer broke the protocol: `MAX_OFFENCES` in `OFFENCE_MEMORY_S` cut a peer off until some are
# older.


MAX_OFFENCES = 8
OFFENCE_MEMORY_S = 60.0
MAX_OFFENDERS = 4096
"""How many peers' offences are remembered. Keys cost nothing, so a peer gains nothing if its flood of keys makes us
forget one.
"""


@loop_bound
class MisbehaviourScore:
    """Times of the last offences of each peer. `now` is always the loop's time in seconds."""

    def __init__(self) -> None:
        self._times: BoundedDict[PeerId, deque[float]] = BoundedDict(MAX_OFFENDERS)

    def __len__(self) -> int:
        return len(self._times)

    def note(self, peer: PeerId, now: float) -> None:
        """Count one more."""
        times = self._times.get(peer) or deque(maxlen=MAX_OFFENCES)
        times.append(now)
        self._times[peer] = times

    def is_cut_off(self, peer: PeerId, now: float) -> bool:
        """Whether there were too many of late."""
        times = self._times.get(peer)
        return times is not None and len(times) == MAX_OFFENCES and now - times[0] < OFFENCE_MEMORY_S
