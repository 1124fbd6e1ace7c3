"""How a peer finds its run: it tries all entries of the link at once, because a dead address takes long to find out.

One entry that lets it in is enough: gossip tells of the other peers. That one has to be in the run itself, though:
another newcomer knows neither the others nor the run's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from minga.core.aio.hedging import racing
from minga.core.errors import RejectedError, RemoteError, UnreachableError
from minga.core.thread_guard import loop_bound
from minga.network.gossip.gossip import Gossip
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node

ENTRY_ATTEMPTS = 3
ENTRY_PAUSE_S = 1.0
STAND_BY_S = 12.0
"""Seconds for which an entry is waited for that is about to come in itself: it may first try dead addresses."""


@loop_bound
class Entrance:
    """The `entries` of a run. A peer that lets this one in is asked by `greet` before anything else."""

    def __init__(
        self, node: Node, gossip: Gossip, entries: Sequence[Address], greet: Callable[[PeerId], Awaitable[None]]
    ) -> None:
        self._node, self._gossip, self._entries, self._greet = node, gossip, tuple(entries), greet

    async def enter(self, *, may_be_alone: bool = False) -> None:
        """Enter by the first entry that lets this peer in; without entries, at once. An attempt lasts as long as a
        dial, about 10 s. Who `may_be_alone` makes one only, and enters by another newcomer, too.

        Raises `RejectedError` if the peers that answer refuse this one, and `UnreachableError` if none answers.
        """
        error: RemoteError | None = None
        attempts = 1 if may_be_alone else ENTRY_ATTEMPTS
        for attempt in range(attempts if self._entries else 0):
            if attempt:
                await asyncio.sleep(ENTRY_PAUSE_S)
            errors: list[RemoteError] = []
            async with racing(self._knock(entry, may_be_alone=may_be_alone) for entry in self._entries) as knocks:
                for knock in knocks:
                    try:
                        await knock
                        return
                    except RemoteError as failure:
                        errors.append(failure)
            if refused := [failure for failure in errors if isinstance(failure, RejectedError)]:
                raise refused[0]
            error = errors[-1]
        if error is not None:
            raise UnreachableError(
                f"none of the {len(self._entries)} entry addresses of the link answers; the last error was: {error}"
            ) from error

    async def _knock(self, entry: Address, *, may_be_alone: bool) -> None:
        await self._node.dial(entry)
        if not may_be_alone:
            await self._wait_for(entry.peer_id)
        await self._greet(entry.peer_id)
        await self._gossip.synchronise(entry.peer_id)

    async def _wait_for(self, peer: PeerId) -> None:
        """Until this entry is in the run itself."""
        clock = self._node.clock
        try:
            async with asyncio.timeout(STAND_BY_S):
                while (run_time := clock.time_at(peer)) is None:
                    await clock.on_heard.wait()
        except TimeoutError as error:
            raise UnreachableError("it has not come into the run itself yet", peer=peer) from error
        clock.enter_by(peer, run_time)
