"""Keepalives on open streams.

Theory of operation. A peer that is killed, stopped or cut off sends nothing, and neither does a healthy peer while it
computes. So every open message stream carries a *pulse* frame with each tick, or, where a peer has many open streams,
whenever nothing else was written for some ticks: the leader of a large group would do little else. A reader that waits
for a frame gives up once nothing at all arrived for `silence_limit` ticks. Each pulse says after how many ticks the
next one comes at the latest. The side with fewer streams follows the one with more. No pause gets shorter on a stream
again: the other side may not know of it yet when it misses a pulse.

Silence is a peer's, not a stream's. When one stream gives a peer up from which no other stream heard anything since,
all streams on which a pulse of that peer is overdue give it up as well (`LastHeard`). Otherwise a peer that dies just
before others turn to it would be waited for twice: the new streams know nothing of the silence before them.

The streams on a carrier (`minga.network.rpc.multiplexer`) share their pulses: whatever is written to it or comes over
it is a sign of life of them all. One that gives the other side up resets the carrier: another way may work.

Time is counted in ticks of this peer's own clockwork, not in seconds. If this process was stopped or starved, its ticks
stop too, so upon waking it does not accuse all other peers of silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, Protocol

PULSE_S: Final = 0.25
"""Seconds of a tick."""

LEAST_TICKS: Final = 1
MOST_TICKS: Final = 20
"""Ticks from one pulse to the next."""

STREAMS_PER_TICK: Final = 8
"""A peer with more streams for each tick makes longer pauses."""

SILENCE_S: Final = 1.25
"""Seconds of complete silence on an idle link of no length after which a peer counts as gone, or a tick less: a frame
comes at some moment of its tick. Five pulses fit into it, and a peer may stand still for a second."""


def silence_limit(round_trip_s: float | None, pause_ticks: int = LEAST_TICKS) -> int:
    """How many ticks of silence to bear of a peer that makes pauses of `pause_ticks` ticks.

    `SILENCE_S` plus four round trips, which covers a lost and resent pulse, and what the pause is longer than usual; to
    the nearest tick: a link of half a millisecond costs none.
    """
    usual = round((SILENCE_S + 4.0 * min(round_trip_s or 0.0, 2.0)) / PULSE_S)
    return usual + max(0, pause_ticks - LEAST_TICKS)


@dataclass
class LastHeard:
    """What all streams with one peer know of it together: the tick of its last frame, and that at which a stream gave
    it up for its silence.
    """

    frame_tick: int = -1
    silent_tick: int = -1


class Pulsed(Protocol):
    """A receiver of the clockwork's ticks."""

    def on_tick(self, tick: int) -> None:
        """Send a pulse if it is due and give up on a silent peer; must not block or raise."""


class _Alarm:
    """Lets a timeout expire after some ticks, of those that count."""

    def __init__(self, ticks: int, limit: asyncio.Timeout, counts: Callable[[], bool]) -> None:
        self._left, self._limit, self._counts = ticks, limit, counts

    def on_tick(self, _: int) -> None:
        self._left -= self._counts()
        if self._left <= 0 and self._limit.when() is None:
            self._limit.reschedule(asyncio.get_running_loop().time())


class KeepaliveTicker:
    """Ticks every `PULSE_S` seconds of loop time for all streams of one node."""

    def __init__(self) -> None:
        self.tick = 0
        self._pulsed: dict[Pulsed, bool] = {}  # a dict keeps the order, so that simulated runs repeat exactly
        self._pulsing = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def pause_ticks(self) -> int:
        """How many ticks a stream may be quiet, with as many streams, or carriers, as there are now."""
        return min(max(LEAST_TICKS, self._pulsing // STREAMS_PER_TICK), MOST_TICKS)

    def start(self) -> None:
        """Begin ticking on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="minga-clockwork")
        self._task.add_done_callback(_report)

    def add(self, pulsed: Pulsed, *, pulses: bool = True) -> None:
        """Drive `pulsed` until it is removed. `pulses`: it sends some, and not another one for it."""
        self._pulsing += pulses - self._pulsed.pop(pulsed, False)
        self._pulsed[pulsed] = pulses

    def remove(self, pulsed: Pulsed) -> None:
        """Stop driving `pulsed`; unknown ones are ignored."""
        self._pulsing -= self._pulsed.pop(pulsed, False)

    @contextlib.asynccontextmanager
    async def timeout(self, seconds: float, counts: Callable[[], bool] = lambda: True) -> AsyncIterator[None]:
        """`asyncio.timeout` that counts ticks only in which this process was awake, and for which `counts` is true."""
        async with asyncio.timeout(None) as limit:
            alarm = _Alarm(math.ceil(seconds / PULSE_S), limit, counts)
            self.add(alarm, pulses=False)
            try:
                yield
            finally:
                self.remove(alarm)

    def close(self) -> None:
        """Stop ticking."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PULSE_S)
            self._tell()

    def _tell(self) -> None:
        self.tick += 1
        for pulsed in list(self._pulsed):
            pulsed.on_tick(self.tick)


def _report(task: asyncio.Task[None]) -> None:
    """A clockwork that stops by a mistake takes its peer out of the run: say why at once."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the clockwork of a peer failed", "exception": error})
