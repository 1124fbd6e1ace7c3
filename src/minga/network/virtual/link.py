"""The bandwidth of a simulated host: its uplink and its downlink.

Theory of operation. A link serves the waiting pipes in turn, one quantum each. So concurrent transfers share its rate
evenly, and a transfer that is limited elsewhere leaves its share to the others. A quantum is what the link carries in
`QUANTUM_S`, within bounds. It is less where so many pipes wait that their turns would come more rarely than every
`turn_s`. So it is short enough for fairness, and long enough that the cost of a simulated second does not grow with the
rate.

On real links turns are as short as packets, and peers that measure their links notice the difference. With coarse turns
bytes come in bursts, which makes slow links that several streams share look faster by up to a quarter. A pipe that had
nothing to carry for a whole turn comes first when it has (as with fq_codel). Otherwise small messages would wait for a
quantum of every transfer, where packets are much shorter. Work is planned up to `AHEAD_S` in advance, which saves most
timers of small messages; the moments of departure and arrival stay exact.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

QUANTUM_S, TURN_S = 0.02, 0.5
MIN_QUANTUM_BYTES = 1200
MAX_QUANTUM_BYTES = 256 << 10
AHEAD_S = 0.001
PACKET_BYTES = 1200
"""Payload of one packet, as QUIC sends it before it has measured the path."""


class Quantum(NamedTuple):
    """Bytes that travel together; `end` says that the stream ends after them."""

    pieces: list[memoryview]
    size: int
    end: bool

    def split(self, size: int) -> tuple[Quantum, Quantum]:
        """The first `size` bytes, and the rest."""
        queue = list(self.pieces)
        pieces, taken = take_pieces(queue, size)
        return Quantum(pieces, taken, False), Quantum(queue, self.size - taken, self.end)


def take_pieces(queue: list[memoryview], room: int) -> tuple[list[memoryview], int]:
    """Take up to `room` bytes from the front of `queue`; returns them and how many they are."""
    pieces: list[memoryview] = []
    size = 0
    while queue and size < room:
        piece = queue.pop(0)
        if len(piece) > room - size:
            queue.insert(0, piece[room - size :])
            piece = piece[: room - size]
        pieces.append(piece)
        size += len(piece)
    return pieces, size


class Carried(Protocol):
    """One direction of a stream, served by a link."""

    def take(self, link: LineDirection, max_bytes: int) -> Quantum | None:
        """The next quantum for `link`, of at most `max_bytes`; None if nothing may go now."""

    def forward(self, link: LineDirection, quantum: Quantum, when: float) -> None:
        """`quantum`, taken before, will have passed `link` at loop time `when`."""

    def has_more(self, link: LineDirection) -> bool:
        """Whether it is worth asking again soon."""


class Clock:
    """The loop's time and timers, for code that belongs to no simulated process."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        """Seconds by the running loop."""
        self._context = contextvars.Context()

    def soon(self, callback: Callable[..., object], *args: object) -> asyncio.Handle:
        """Call back in the next turn of the loop: bytes written in this turn travel together."""
        return self.loop.call_soon(callback, *args, context=self._context)

    def at(self, when: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        """Call back at loop time `when`, whatever process is running now."""
        return self.loop.call_at(when, callback, *args, context=self._context)


class LineDirection:
    """One direction of a host's access link, `rate` in bytes per second (None: without limit).

    Each of those that share it has its turn at least about every `turn_s` seconds.
    """

    def __init__(self, clock: Clock, rate: float | None, turn_s: float = TURN_S) -> None:
        self.rate, self.turn_s = rate, turn_s
        self._clock = clock
        self._frozen = False
        self._ready: deque[Carried] = deque()
        self._fresh: deque[Carried] = deque()  # they come first, once
        self._queued: set[Carried] = set()
        self._busy_until = 0.0
        self._timer: asyncio.Handle | None = None

    def offer(self, pipe: Carried) -> None:
        """`pipe` has something to carry."""
        if pipe not in self._queued:
            self._queued.add(pipe)
            self._fresh.append(pipe)
        if self._timer is None:
            self._timer = self._clock.soon(self._serve)

    def pass_on(self, pipe: Carried, quantum: Quantum) -> bool:
        """Carry what came from elsewhere at once, if the link is free and nothing waits; returns whether it did.

        It is what `offer` does in the next turn, for most of what arrives and at a third of the cost.
        """
        if self._timer is not None or self._queued or self._frozen:
            return False
        now = self._clock.now()
        start = max(now, self._busy_until)
        if start - now > AHEAD_S or (quantum.size > MIN_QUANTUM_BYTES and quantum.size > self._quantum_bytes()):
            return False
        self._busy_until = start + (quantum.size / self.rate if self.rate is not None else 0.0)
        pipe.forward(self, quantum, self._busy_until)
        return True

    def settle(self) -> None:
        """Send the bytes that were written in this turn, as far as the link is free."""
        if self._timer is not None and not isinstance(self._timer, asyncio.TimerHandle):
            self._timer.cancel()
            self._serve()

    def freeze(self, frozen: bool) -> None:
        """Let nothing through until further notice, or go on."""
        self._frozen = frozen
        if not frozen and self._timer is None:
            self._timer = self._clock.soon(self._serve)

    def clear(self) -> None:
        """Forget all that waits."""
        self._ready.clear()
        self._fresh.clear()
        self._queued.clear()

    def _quantum_bytes(self) -> int:
        if self.rate is None:
            return MAX_QUANTUM_BYTES
        seconds = min(QUANTUM_S, self.turn_s / (1 + len(self._queued)))
        return int(min(max(self.rate * seconds, MIN_QUANTUM_BYTES), MAX_QUANTUM_BYTES))

    def _serve(self) -> None:
        self._timer = None
        while (self._fresh or self._ready) and not self._frozen:
            now = self._clock.now()
            start = max(now, self._busy_until)
            if start - now > AHEAD_S:
                self._timer = self._clock.at(start, self._serve)
                return
            is_fresh = bool(self._fresh)
            pipe = (self._fresh or self._ready).popleft()
            self._queued.discard(pipe)
            quantum = pipe.take(self, self._quantum_bytes())
            if quantum is None:
                continue
            self._busy_until = start + (quantum.size / self.rate if self.rate is not None else 0.0)
            if (pipe.has_more(self) or (is_fresh and self._ready)) and pipe not in self._queued:
                self._queued.add(pipe)
                self._ready.append(pipe)
            pipe.forward(self, quantum, self._busy_until)


def resend_delay_s(rng: random.Random, size: int, loss: float, round_trip_s: float) -> float:
    """Seconds by which lost and resent packets delay `size` bytes, each packet being lost with chance `loss`.

    A loss is noticed after 5/4 round trips plus 25 ms (an acknowledgement may be held back that long), and what is
    sent again may be lost again.
    """
    packets = max(1, -(-size // PACKET_BYTES))
    rounds = 0
    while rounds < 20 and rng.random() > (1.0 - loss) ** packets:
        rounds += 1
        # Of the lost packets about a share `loss` is lost once more; at least one packet is under way.
        packets = max(1, round(packets * loss))
    return rounds * (1.25 * round_trip_s + 0.025)
