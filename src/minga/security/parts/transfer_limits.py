"""How long a transfer of tensors may take, which ones will be through in time, and how long to wait for the last ones.

A transfer may take a time in proportion to its size, and only as long as something comes. Bytes that do not come in
time count as withheld, which may cost their owner its place; so a limit that is the same for all sizes would exclude
peers with slow lines and long parts. A peer that sends nothing is given up much sooner.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from minga.core.aio import Signal, end
from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.security.parts.equal_parts import RunningDigest

SLOW_LINE_BYTES_PER_S: Final = 125_000
"""1 Mbit/s: a peer with less cannot take part in time anyway."""
LEAST_TRANSFER_S: Final = 10.0
STALL_S: Final = 10.0
"""Seconds without a single byte after which a transfer is given up, however much time there is left."""

LOOK_S: Final = 2.0
"""Seconds for which a member that rechecks others waits for what that takes, beyond its own computing: of the `slack_s`
of `WaitPolicy` both who validates and who then judges may need so many."""


def transfer_limit_s(size_bytes: int) -> float:
    """Seconds after which a transfer of so many bytes is given up."""
    return LEAST_TRANSFER_S + size_bytes / SLOW_LINE_BYTES_PER_S


class _TransferGuard:
    """Lets a timeout expire when nothing moves on a stream; pulses are no movement."""

    def __init__(self, stream: MessageStream, limit: asyncio.Timeout) -> None:
        self._stream, self._limit = stream, limit

    def on_tick(self, _: int) -> None:
        if self._stream.idle_s > STALL_S and self._limit.when() is None:
            self._limit.reschedule(asyncio.get_running_loop().time())


@contextlib.asynccontextmanager
async def transfer(node: Node, stream: MessageStream, size_bytes: int) -> AsyncIterator[None]:
    """Within it so many bytes come over a stream of `node`. Raises `TimeoutError` if that takes too long, or stalls."""
    async with node.clockwork.timeout(transfer_limit_s(size_bytes)), asyncio.timeout(None) as limit:
        guard = _TransferGuard(stream, limit)
        node.clockwork.add(guard)
        try:
            yield
        finally:
            node.clockwork.remove(guard)


async def receive_hashed(stream: MessageStream, data: memoryview) -> bytes:
    """Fill `data` with the next bulk frame of a stream, and return its digest."""
    running = RunningDigest(data)
    await stream.receive_bulk_into(data, running.filled)
    return running.digest()


async def receive_whole(stream: MessageStream, data: memoryview) -> bytes:
    """Fill `data` from a stream on which nothing comes after that, and return its digest."""
    digest = await receive_hashed(stream, data)
    await stream.finish()
    await stream.receive_end()
    return digest


class ServingLimit:
    """How many answers a peer is sent at once (`each`), and all together: what one peer takes must not starve others.

    Each answer may take as long as it takes over a slow line.
    """

    def __init__(self, each: int, total: int | None = None) -> None:
        self._each, self._total = each, total
        self.serving: Counter[PeerId] = Counter()

    @contextlib.asynccontextmanager
    async def serve(self, stream: MessageStream, size_bytes: int) -> AsyncIterator[None]:
        """Within it so many bytes are sent to a peer. Raises `RejectedError` with code `BUSY` if too many answers are
        under way, and `SilentError` if the peer does not take this one in time.
        """
        peer = stream.peer
        full = self._total is not None and self.serving.total() >= self._total
        if full or self.serving[peer] >= self._each:
            raise RejectedError(
                f"{self._each} answers are sent to a peer at once, and no more here", code=RefusalCode.BUSY
            )
        self.serving[peer] += 1
        try:
            async with stream.taken_within(transfer_limit_s(size_bytes)):
                yield
        finally:
            self.serving[peer] -= 1
            if not self.serving[peer]:
                del self.serving[peer]


# ---- Progress: which transfers are under way, and which of them will be through in time.
#
# What comes at a good pace need not be asked of others too: over slow lines that would multiply what everybody has to
# carry. What trickles is asked for as if it did not come at all.


BEGINNING_S: Final = 0.5
"""So young a transfer says nothing about its pace."""


class TransferProgress:
    """Of bulk bytes, by what they are."""

    def __init__(self) -> None:
        self._streams: dict[Hashable, list[MessageStream]] = {}

    @contextlib.contextmanager
    def expecting(self, what: Hashable, stream: MessageStream) -> Iterator[None]:
        """Within it this is what comes over a stream."""
        streams = self._streams.setdefault(what, [])
        streams.append(stream)
        try:
            yield
        finally:
            streams.remove(stream)
            if not streams:
                self._streams.pop(what, None)

    def in_time(self, what: Hashable, by_s: float) -> bool:
        """Whether something will be here, at the pace at which it comes, by a time of the event loop in seconds."""
        now = asyncio.get_running_loop().time()
        return now < by_s and any(_is_fast(stream, now, by_s) for stream in self._streams.get(what, ()))


def _is_fast(stream: MessageStream, now: float, by_s: float) -> bool:
    arrival = stream.counter.arriving
    if arrival is None:
        return False
    elapsed_s = now - arrival.begin_s
    return elapsed_s <= BEGINNING_S or arrival.begin_s + elapsed_s * arrival.size / max(1, arrival.received) <= by_s


# ---- Waiting: how long members wait for the last ones, and what they do meanwhile.
#
# Members are not equally fast, and nobody knows beforehand how long a gradient or a part takes. So the measure is how
# long most took: a member that needs twice as long, and some seconds more, is not waited for any longer. But first,
# soon after most came, what is missing is asked of everybody else, because a line between two honest members may be
# broken, and because an author that tells only some shall be heard by all. They are asked even before most came, if
# somewhat later: it may be this peer that stood still, missed what they said, and lost the streams on which bytes came.
# While most are cut off they are asked again and again, so that what they said is here soon after the cut heals.


RAREST_S: Final = 15.0
"""At least so often others are asked for what is missing, in seconds, until most came."""

T = TypeVar("T")


@dataclass(frozen=True)
class WaitPolicy:
    """Seconds after which others are asked for what is missing, when most came and when they did not; seconds that are
    waited for the last ones beyond the time that most took; the longest wait for most, after which a member looks
    whether it is cut off itself, and for the last ones; and the time in which proofs get around.
    """

    ask_s: float = 0.5
    ask_most_s: float = 2.0
    slack_s: float = 5.0
    longest_s: float = 600.0
    proof_s: float = 1.0

    @property
    def leeway_s(self) -> float:
        """Seconds that a member spends between two of its words on waiting for one member longer than for most: so few
        that nobody who lets it wait makes the others take it for silent.
        """
        return self.slack_s / 2


def last_s(begun_s: float, now_s: float, slack_s: float) -> float:
    """Until when the last ones are waited for if most have come now: twice as long as these took, and the slack."""
    return 2 * now_s - begun_s + slack_s


async def wait_for_all(
    missing: Callable[[], Sequence[T]],
    total: int,
    changed: Signal,
    ask: Callable[[Sequence[T], float], Awaitable[None]],
    patience: WaitPolicy,
    *,
    is_coming: Callable[[T, float], bool] = lambda _, __: False,
    gives_up: bool = True,
) -> bool:
    """Return when nothing of `total` is missing any more, or when that is not to be expected; whether most came. Who
    never `gives_up` waits for most without end.

    `changed` fires when something came; `ask` is called with what is missing, again and again but ever more rarely. It
    is told the loop time until which there is no hurry: what `is_coming` by then is not asked for.
    """
    loop = asyncio.get_running_loop()
    begun_s, asking = loop.time(), set[asyncio.Future[None]]()
    limit_s, by_s, most_s = begun_s + patience.longest_s if gives_up else float("inf"), float("inf"), None
    ask_s = begun_s + patience.ask_most_s
    try:
        while lacking := missing():
            now = loop.time()
            if most_s is None and 2 * len(lacking) < total:
                most_s, ask_s = now, now + patience.ask_s
                limit_s = min(last_s(begun_s, now, patience.slack_s), now + patience.longest_s)
                by_s = (now + limit_s) / 2
            if now >= limit_s:
                return most_s is not None
            if now >= ask_s:
                if wanted := [one for one in lacking if not is_coming(one, by_s)]:
                    asking.add(asyncio.ensure_future(ask(wanted, by_s)))  # what was asked before may hang
                ask_s = now + (min(RAREST_S, now - begun_s) if most_s is None else max(patience.ask_s, now - most_s))
                if now < by_s:
                    ask_s = min(ask_s, by_s)
            await changed.wait(min(limit_s, ask_s) - now)
        return True
    finally:
        await end(*asking)
