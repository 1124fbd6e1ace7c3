"""How a peer's life in a run ends: after the last step, or by a mistake."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from minga.core.errors import ClosedError, MingaError
from minga.network.interface import PeerId
from minga.training.life.board_view import BoardView

FAREWELL_S = 5.0
"""Longest time, in seconds, that a peer which finished the run stays for the others of its last step."""


async def see_others_off(swarm_view: BoardView, others: Collection[PeerId], step: int) -> None:
    """Stay for a moment until the other peers have the last step, too; they may need this peer's data of it."""
    deadline = asyncio.get_running_loop().time() + FAREWELL_S
    while asyncio.get_running_loop().time() < deadline:
        settled = swarm_view.settled()
        if all(settled[peer].step >= step for peer in others if peer in settled):
            return
        await asyncio.sleep(0.05)


def closing(error: Exception) -> MingaError:
    """What the trainer hears when `error` ended its peer: a `ClosedError` if it is no error of minga's own."""
    if isinstance(error, MingaError):
        return error
    closed = ClosedError(f"this peer stopped taking part, by a mistake in the program: {type(error).__name__}: {error}")
    closed.__cause__ = error
    return closed
