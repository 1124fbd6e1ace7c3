"""Asking one peer after the other: who is asked when, and which failures count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from minga.core.aio import first_in_turn
from minga.core.errors import UnreachableError
from tests.worlds.swarm_tools import virtually


class Peers:
    """Each answers its number after so many seconds, or fails if they are negative; notes when it was asked."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.asked_s = seconds, dict[int, float]()

    async def ask(self, number: int) -> int:
        self.asked_s[number] = asyncio.get_running_loop().time()
        await asyncio.sleep(abs(self.seconds[number]))
        if self.seconds[number] < 0:
            raise UnreachableError("it is away")
        return number

    async def first(self, longest_pause_s: float = 100.0, is_coming: Callable[[], bool] = lambda: False) -> int | None:
        asks = (lambda number=number: self.ask(number) for number in range(len(self.seconds)))
        return await first_in_turn(asks, longest_pause_s=longest_pause_s, is_coming=is_coming)


@virtually
async def test_pauses_double_up_to_the_longest() -> None:
    for longest_s, expected in ((100.0, [0.0, 0.5, 1.5, 3.5]), (0.5, [0.0, 0.5, 1.0, 1.5])):
        peers, begun_s = Peers(9.0, 9.0, 9.0, 0.1), asyncio.get_running_loop().time()
        assert await peers.first(longest_s) == 3
        assert [asked_s - begun_s for asked_s in peers.asked_s.values()] == pytest.approx(expected)


@virtually
async def test_no_other_peer_is_asked_while_the_answer_is_coming() -> None:
    peers = Peers(5.0, 0.1)
    assert await peers.first(is_coming=lambda: True) == 0
    assert peers.asked_s.keys() == {0}


@virtually
async def test_the_next_one_is_asked_when_the_last_failed_whatever_is_said_to_come() -> None:
    peers = Peers(-0.1, 0.1)
    assert await peers.first(is_coming=lambda: True) == 1
    assert await Peers(-0.1, -0.1).first() is None
