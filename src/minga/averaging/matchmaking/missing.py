"""Members of the last round that have not joined this step: are they late, or silent?

Theory of operation. Between two rounds nothing need pass between a leader and a member. So a leader cannot tell a
member that still applies the last result from one that stopped right after it, and the board may take seconds longer
than a stream to tell. Therefore the leader calls those that are missing. A living one answers, or at least gives signs
of life; a silent one is suspected, as a silent leader is, and the step does not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from minga.averaging.matchmaking.suspects import Suspects
from minga.core.errors import RemoteError, SilentError
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node

HERE: Final = "group.here"

LOOK_S: Final = 0.2
"""Seconds between two looks at the members that are missing: in a small group all others are there before the first."""

MOST_CALLED: Final = 8
"""Members that are called at a time."""


class Here(msgspec.Struct, frozen=True):
    """Are you there? And the answer."""


async def serve_here(_: PeerId, stream: MessageStream) -> None:
    """Answer a call."""
    await stream.receive(Here)
    await stream.send(Here())


async def suspect_the_silent(
    node: Node, missing: Callable[[], Collection[PeerId]], suspects: Callable[[], Suspects]
) -> None:
    """Call those that are `missing`, for as long as this runs and each once; suspect those without signs of life."""
    called: set[PeerId] = set()

    async def call(peer: PeerId) -> None:
        try:
            await node.call(peer, HERE, Here(), Here)
        except SilentError:
            suspects().add(peer)
        except RemoteError:
            pass  # it refuses, as one that does not know the question does, or it is not connected: that tells nothing

    while True:
        await asyncio.sleep(LOOK_S)
        if fresh := sorted(set(missing()) - called)[:MOST_CALLED]:
            called.update(fresh)
            await asyncio.gather(*map(call, fresh))
