"""Probes: short transfers that measure an access link where earlier traffic has not filled it.

Theory of operation. In training a link is seldom full: a peer's partners, or its part in the plan, are the limit. So
each peer once fills its link on purpose, first the upload, then the download, for less than a second each, with up to
`MAX_PARTNERS` peers at once. Together they take what this swarm can use of the link, and the same bytes measure the
rate of each path. The probe is repeated when other peers' reports, or the samples, cast doubt on the result. It is also
repeated now and then when nothing else has confirmed the result for long.

No peer is in two probes at once: a prober asks its partners first, and a partner refuses while it is in a probe, or in
the middle of other bulk traffic. A prober draws its partners at random and asks one of them before the others, so that
in a swarm of new members most attempts end with one short answer. A prober that is refused, or gets too few partners,
releases all of them and tries again with others after a random pause, which doubles each time: where lines are too busy
for probes, rounds tell what they carry. (A queue at one peer, or at one of 32, was tried: 16 to 64 new peers took as
long to probe one after the other.)

Other bulk traffic ends a probe at once, so that no round waits for one. The upload phase counts if it was complete by
then, and the next probe fills the download only: where steps are short no pause is long enough for both. A partner lets
each peer probe it once in `PEER_PERIOD_S` and all together `MAX_SERVED` times in `SERVED_PERIOD_S`, and moves at most
`MAX_PHASE_BYTES` in each direction each time. Of its own probes and those that it serves no peer moves more than
`MAX_DAY_BYTES` in a day: after that rounds alone tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Annotated, Any

import msgspec

from minga.core.aio import end
from minga.core.errors import ProtocolError, RejectedError, RemoteError, UnreachableError
from minga.core.events.network import LinksProbed
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.bandwidth.delivery_reports import BulkUse
from minga.network.bounded_dict import BoundedDict
from minga.network.interface import PeerId
from minga.network.rpc.connections import MAX_PEERS
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream

# ---- One probe, whose partners begin each phase together.


ENOUGH, AMPLE = 0.85, 8
"""The share of the partners that a probe needs to show anything, and how many do, whatever share that is."""


class Barrier:
    """Opens once all expected partners have come that have not left."""

    def __init__(self, expected: int) -> None:
        self.came = 0
        self._expected = expected
        self._opened = asyncio.Event()

    async def wait(self) -> None:
        """Come, and wait for the others."""
        self.came += 1
        self._review()
        try:
            await self._opened.wait()
        except BaseException:
            self.came -= 1
            raise

    def leave(self) -> None:
        """Expect one partner less."""
        self._expected -= 1
        self._review()

    def _review(self) -> None:
        if self.came >= self._expected:
            self._opened.set()


class PathOutcome(enum.Enum):
    """How the part of one path in a probe ended; `BROKEN_OFF`: by this peer itself."""

    MEASURED = enum.auto()
    BROKEN_OFF = enum.auto()
    REFUSED = enum.auto()


class ProbeSession:
    """One probe: its partners begin each phase together. Unless it `fills` the upload there is one phase only."""

    def __init__(self, partners: int, *, fills: bool) -> None:
        self.enough, self.fills = min(math.ceil(ENOUGH * partners), AMPLE), fills
        self.accepted: set[PeerId] = set()
        self.ready, self.filled = Barrier(partners), Barrier(partners)
        self.admitted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def answer(self, *, admitted: bool) -> None:
        """The partner that is asked first answered; only its first answer counts."""
        if not self.admitted.done():
            self.admitted.set_result(admitted)

    @contextlib.contextmanager
    def taking_part(self) -> Iterator[None]:
        """A partner that fails leaves both barriers, so the others do not wait for it."""
        try:
            yield
        except BaseException:
            self.ready.leave()
            self.filled.leave()
            raise


# ---- The messages and bytes on the streams of a probe.
#
# links.probe   Reserve ──▶, ◀── Ready or a refusal ("busy"); then nothing: the partner is reserved while it is open
# links.sink    Batch and as many frames, again and again, from the prober links.source  Wanted ──▶, ◀── Batch and as
# many frames, again and again
#
# The last two end by a reset when the time is over, so that what is still in buffers then is dropped and not waited
# for. Nothing is measured here: the frames are bulk bytes like any other, and receipts and meters on both sides see
# them.


PHASE_S = 0.8
"""Seconds for which each direction is filled."""

MAX_PHASE_BYTES = 64 << 20
"""Most bytes that a probe moves in each direction, over all its streams: half a second of 1 Gbit/s."""

FRAME_SIZES = tuple(1 << power for power in range(11, 19))
GROWTH = 16
"""A frame takes at most this part of the bytes that went before: few frames, and none that a slow link is long at."""

MOST_FRAMES = 64

_BLANK = bytes(FRAME_SIZES[-1])


class Reserve(msgspec.Struct, frozen=True):
    """May I measure with you now?"""


class Ready(msgspec.Struct, frozen=True):
    """The partner takes part, and in no other probe until this stream ends."""


class ProbeRequest(msgspec.Struct, frozen=True):
    """Send me bytes for a while, at most `max_bytes`."""

    max_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_PHASE_BYTES)]


class Batch(msgspec.Struct, frozen=True):
    """`frames` bulk frames of `size` bytes each follow."""

    frames: Annotated[int, msgspec.Meta(ge=1, le=MOST_FRAMES)]
    size: Annotated[int, msgspec.Meta(ge=1, le=FRAME_SIZES[-1])]


def most_probe_bytes(rate: float | None) -> int:
    """Most bytes that a probe moves in one direction over a line of `rate` bytes per second; None is any line."""
    return MAX_PHASE_BYTES if rate is None else min(MAX_PHASE_BYTES, int(rate * PHASE_S))


async def fill(stream: MessageStream, max_bytes: int, check: Callable[[], None], *, linger: bool = False) -> None:
    """Send for `PHASE_S` seconds, at most `max_bytes`; `check` may raise to stop.

    With `linger` it is for the other side to end the stream: this only returns by the error that comes of that.
    """
    # Receipts are taken in while something is awaited.
    listening = asyncio.get_running_loop().create_task(stream.receive_end())
    try:
        with contextlib.suppress(TimeoutError):
            await _send_for_a_phase(stream, max_bytes, check)
        if linger:
            await listening
    finally:
        await end(listening)


async def _send_for_a_phase(stream: MessageStream, max_bytes: int, check: Callable[[], None]) -> None:
    clock = asyncio.get_running_loop().time
    end_s, sent = clock() + PHASE_S, 0
    async with asyncio.timeout(PHASE_S):
        # Frames grow with what went through, so that slow links report soon and fast ones do not drown in frames.
        while sent + (size := _frame_size(sent)) <= max_bytes:
            frames = _frames(sent, size, max_bytes)
            stream.announce(Batch(frames, size))
            for _ in range(frames):
                check()
                await stream.send_bulk(memoryview(_BLANK)[:size])
            sent += frames * size
        await asyncio.sleep(end_s - clock())


async def take_in(stream: MessageStream, max_bytes: int, check: Callable[[], None]) -> None:
    """Receive what `fill` sends until the stream breaks off. Raises `ProtocolError` if it is more than `max_bytes`."""
    target, received = memoryview(bytearray(FRAME_SIZES[-1])), 0
    while True:
        batch = await stream.receive(Batch)
        received += batch.frames * batch.size
        if received > max_bytes:
            raise ProtocolError("a probe of too many bytes", peer=stream.peer)
        for _ in range(batch.frames):
            check()
            await stream.receive_bulk_into(target[: batch.size])


def _frame_size(sent: int) -> int:
    return max([size for size in FRAME_SIZES if GROWTH * size <= sent], default=FRAME_SIZES[0])


def _frames(sent: int, size: int, max_bytes: int) -> int:
    """How many frames of this size go until a larger one may, or all is sent."""
    until = min([GROWTH * larger for larger in FRAME_SIZES if larger > size] + [max_bytes])
    return max(1, min((until - sent) // size, MOST_FRAMES))


# ---- The peer that probes, and serves the probes of others.


RESERVE, SINK, SOURCE = "links.probe", "links.sink", "links.source"
MAX_PARTNERS = 16
RESERVE_S = 2.0
SERVE_S = 10.0
PEER_PERIOD_S = 30.0
MAX_SERVED, SERVED_PERIOD_S = 60, 600.0

LOOK_S, LATER_LOOK_S = 0.5, 5.0
FIRST_RETRY_S = 1.0
"""The longest pause after a first refusal."""

PATIENT_TRIES = 8
"""A prober leaves out partners that failed this often."""

BROKEN_OFF_TRIES = 4
"""A partner that accepts and then breaks off counts as this many refusals: it costs bytes."""

MAX_FRUITLESS = 10
"""How often a peer may ask within `PEER_PERIOD_S` and then not probe; each time no other peer can."""

SPOILT_BYTES = 64 << 10
"""A probe that ends early after more than this was sent is not tried again for a while."""

MAX_DAY_BYTES, DAY_S = 2 << 30, 86_400.0
"""Bytes in both directions together."""

DOUBT_PERIOD_S = 60.0
MAX_AGE_S = 600.0
DOUBTS = 3
CONFIRMED = 0.2
"""A doubt was groundless if a probe finds both rates within this share of what they were."""


@loop_bound
class Prober:
    """Probes for one node and serves the probes of others. `partners` gives the peers to measure with."""

    def __init__(self, node: Node, partners: Callable[[], Sequence[PeerId]]) -> None:
        self._node, self._partners = node, partners
        self._random = random.Random(f"minga probe {node.peer_id}")
        self._engaged_with: PeerId | None = None  # itself while it probes
        self._served: deque[float] = deque(maxlen=MAX_SERVED)
        self._served_to: BoundedDict[PeerId, float] = BoundedDict(MAX_PEERS)
        self._probed_s, self._pause_s = -math.inf, DOUBT_PERIOD_S
        self._filled_s = -math.inf  # when a probe showed the upload and was then broken off
        self._failures: BoundedDict[PeerId, int] = BoundedDict(MAX_PEERS)
        self._fruitless: BoundedDict[PeerId, deque[float]] = BoundedDict(MAX_PEERS)
        self._phases: set[str] = set()
        self._moved: deque[tuple[float, int]] = deque()  # when, and how many bytes, in the last day
        node.serve(RESERVE, self._serve_reservation)
        node.serve(SINK, self._serve_sink)
        node.serve(SOURCE, self._serve_source)

    async def run(self) -> None:
        """Probe whenever it is due and nothing else moves; runs until cancelled."""
        retry_s, spoilt_s = FIRST_RETRY_S, PEER_PERIOD_S
        await asyncio.sleep(self._random.uniform(0.0, LOOK_S))
        while True:
            await asyncio.sleep(LOOK_S if self._probed_s == -math.inf else LATER_LOOK_S)
            if self._engaged_with or self._node.access_link.meter.is_busy or not self._is_due():
                continue
            if self._moved_bytes() >= MAX_DAY_BYTES or not (partners := self._chosen()):
                continue
            sent_before, received_before = self._traffic_with(partners)
            is_done = await self.probe(partners)
            sent, received = self._traffic_with(partners)
            self._note_moved(sent - sent_before + received - received_before)
            if is_done:
                retry_s, spoilt_s = FIRST_RETRY_S, PEER_PERIOD_S
            elif sent - sent_before < SPOILT_BYTES:
                await asyncio.sleep(self._random.uniform(0.0, retry_s))
                retry_s = min(2.0 * retry_s, DOUBT_PERIOD_S)
            else:  # bytes were spent for nothing: not again and again
                await asyncio.sleep(self._random.uniform(spoilt_s, 1.5 * spoilt_s))
                spoilt_s = min(2.0 * spoilt_s, MAX_AGE_S)

    async def probe(self, partners: Sequence[PeerId]) -> bool:
        """Measure with all of `partners` at once, of whom the first is asked before the others. Returns False if too
        few were free, or if other traffic interrupted the probe.
        """
        before, begun = self._node.access_link.rates(), asyncio.get_running_loop().time()
        loop, session = (
            asyncio.get_running_loop(),
            ProbeSession(len(partners), fills=begun - self._filled_s > MAX_AGE_S),
        )
        tasks = [loop.create_task(self._measure_with(partners[0], session))]
        tasks[0].add_done_callback(lambda _: session.answer(admitted=False))
        self._engaged_with = self._node.peer_id
        try:
            if admitted := await session.admitted:
                tasks += [loop.create_task(self._measure_with(peer, session)) for peer in partners[1:]]
            results = await asyncio.gather(*tasks)
        finally:
            await end(*tasks)
            self._engaged_with = None
        self._note_unwilling(partners, results, session)
        if results.count(PathOutcome.MEASURED) < session.enough:
            if admitted:
                self._keep_half(session, results, begun)
            return False
        self._failures.clear()
        self._filled_s = -math.inf
        self._node.access_link.meter.down.keep_since(begun)
        if session.fills:
            self._node.access_link.meter.up.keep_since(begun)
        self._note_result(before.upload, before.download)
        return True

    # ---- probing

    def _traffic_with(self, peers: Sequence[PeerId]) -> tuple[int, int]:
        """Bytes sent and received over the present connections with these peers."""
        known = [facts for peer in peers if (facts := self._node.facts(peer)) is not None]
        return sum(facts.bytes_sent for facts in known), sum(facts.bytes_received for facts in known)

    def _moved_bytes(self) -> int:
        """What probes moved in the last day."""
        now = asyncio.get_running_loop().time()
        while self._moved and now - self._moved[0][0] > DAY_S:
            self._moved.popleft()
        return sum(size for _, size in self._moved)

    def _note_moved(self, size: int) -> None:
        if size > 0:
            self._moved.append((asyncio.get_running_loop().time(), size))

    def _keep_half(self, session: ProbeSession, results: Sequence[PathOutcome], begun: float) -> None:
        """Clean up after an aborted probe: the bytes of a part of the paths would count as the rate of the link. The
        upload counts if it was complete and this peer's own traffic interrupted the probe, and not a partner's refusal.
        """
        meter = self._node.access_link.meter
        willing = sum(result is not PathOutcome.REFUSED for result in results)
        meter.down.forget_since(begun)
        if session.fills and min(session.filled.came, willing) >= session.enough:
            meter.up.keep_since(begun)
            self._filled_s = begun
        else:
            meter.up.forget_since(begun)

    def _note_unwilling(
        self, partners: Sequence[PeerId], results: Sequence[PathOutcome], session: ProbeSession
    ) -> None:
        """Count the partners that failed repeatedly where others did not: a probe can do without them."""
        for peer, result in zip(partners, results, strict=False):  # after the first one's refusal there is only one
            if result is PathOutcome.REFUSED:
                tries = BROKEN_OFF_TRIES if peer in session.accepted else 1
                self._failures[peer] = self._failures.get(peer, 0) + tries

    def _chosen(self) -> list[PeerId]:
        """Partners for a probe; in a large swarm connected ones, because a connection costs more than to ask."""
        able = self._partners()
        connected = [peer for peer in able if self._node.is_connected(peer)]
        able = connected if len(connected) >= MAX_PARTNERS else able
        partners = [peer for peer in able if self._failures.get(peer, 0) < PATIENT_TRIES]
        if not partners:
            self._failures.clear()
        return self._random.sample(partners or able, min(len(partners or able), MAX_PARTNERS))

    def _is_due(self) -> bool:
        now, meter = asyncio.get_running_loop().time(), self._node.access_link.meter
        age_s = now - self._probed_s
        totals = (meter.up.total, meter.down.total)
        if self._node.access_link.doubts >= DOUBTS or any(total.doubtful for total in totals):
            return age_s > self._pause_s
        return age_s == math.inf or (age_s > MAX_AGE_S and any(now - t.newest_s > MAX_AGE_S for t in totals))

    def _note_result(self, upload: float | None, download: float | None) -> None:
        """Remember when it was, and wait longer after a doubt that was groundless."""
        rates = self._node.access_link.rates()
        groundless = (
            self._node.access_link.doubts > 0 and _is_near(rates.upload, upload) and _is_near(rates.download, download)
        )
        self._pause_s = min(2.0 * self._pause_s, MAX_AGE_S) if groundless else DOUBT_PERIOD_S
        self._probed_s, self._node.access_link.doubts = asyncio.get_running_loop().time(), 0
        self._node.events.emit(LinksProbed(upload=rates.upload, download=rates.download))

    async def _measure_with(self, peer: PeerId, session: ProbeSession) -> PathOutcome:
        """Take one path's part in a probe.

        It does not raise what ended it: that would hold the task that holds it, and hundreds of these would wait for
        the garbage collector in each minute of a large swarm.
        """
        try:
            await self._share_with(peer, session)
        except RejectedError as error:
            return PathOutcome.REFUSED if error.peer is not None else PathOutcome.BROKEN_OFF
        except (RemoteError, TimeoutError):
            return PathOutcome.REFUSED
        return PathOutcome.MEASURED

    async def _share_with(self, peer: PeerId, session: ProbeSession) -> None:
        with session.taking_part():
            async with asyncio.timeout(RESERVE_S) as limit, self._node.open(peer, RESERVE) as reservation:
                await reservation.send(Reserve())
                await reservation.receive(Ready)
                session.answer(admitted=True)
                session.accepted.add(peer)
                await session.ready.wait()
                limit.reschedule(asyncio.get_running_loop().time() + SERVE_S)
                if session.ready.came < session.enough:
                    raise RejectedError("too few partners are free", code=RefusalCode.BUSY)
                share = MAX_PHASE_BYTES // session.ready.came
                if session.fills:
                    async with self._node.open(peer, SINK, bulk=True) as stream:
                        stream.counter.use = BulkUse.PROBE
                        await fill(stream, share, self._check_idle)
                    await session.filled.wait()
                async with self._node.open(peer, SOURCE, bulk=True) as stream:
                    stream.counter.use = BulkUse.PROBE
                    await stream.send(ProbeRequest(share))
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(PHASE_S + stream.round_trip_s):
                            await take_in(stream, share, self._check_idle)
                await reservation.finish()
                await reservation.receive_end()

    def _check_idle(self) -> None:
        if self._node.access_link.meter.is_busy:
            raise RejectedError("other transfers go before this probe", code=RefusalCode.BUSY)

    # ---- being probed

    async def _serve_reservation(self, peer: PeerId, stream: MessageStream) -> None:
        await stream.receive(Reserve)
        now = asyncio.get_running_loop().time()
        while self._served and now - self._served[0] > SERVED_PERIOD_S:
            self._served.popleft()
        if self._engaged_with is not None or self._node.access_link.meter.is_busy:
            raise RejectedError("this peer is in a probe or a transfer already", code=RefusalCode.BUSY)
        fruitless = self._fruitless.get(peer) or deque[float](maxlen=MAX_FRUITLESS)
        self._fruitless[peer] = fruitless
        if len(fruitless) == MAX_FRUITLESS and now - fruitless[0] < PEER_PERIOD_S:
            raise RejectedError("this peer was asked too often without a probe of late", code=RefusalCode.OFTEN)
        is_often = len(self._served) == MAX_SERVED or now - self._served_to.get(peer, -math.inf) < PEER_PERIOD_S
        if is_often or self._moved_bytes() >= MAX_DAY_BYTES:
            raise RejectedError("this peer was probed often enough of late", code=RefusalCode.OFTEN)
        self._engaged_with = peer
        bytes_before = sum(self._traffic_with([peer]))
        try:
            async with asyncio.timeout(SERVE_S):
                await stream.send(Ready())
                await stream.receive_end()
        except TimeoutError as error:
            raise RejectedError("the probe took too long", code=RefusalCode.LATE) from error
        finally:
            self._engaged_with = None
            if asyncio.get_running_loop().time() - now > RESERVE_S or self._phases:
                self._served.append(now)
                self._served_to[peer] = now
                self._note_moved(sum(self._traffic_with([peer])) - bytes_before)
            else:
                fruitless.append(now)
            self._phases.clear()

    async def _serve_sink(self, peer: PeerId, stream: MessageStream) -> None:
        self._begin_phase(peer, stream, SINK)
        await self._limited(peer, take_in(stream, MAX_PHASE_BYTES, self._check_idle))

    async def _serve_source(self, peer: PeerId, stream: MessageStream) -> None:
        self._begin_phase(peer, stream, SOURCE)
        wanted = await stream.receive(ProbeRequest)
        # If this side ended before the prober's own time limit, that would look like a breach of the protocol.
        await self._limited(peer, fill(stream, wanted.max_bytes, self._check_idle, linger=True))

    def _begin_phase(self, peer: PeerId, stream: MessageStream, phase: str) -> None:
        if self._engaged_with != peer or phase in self._phases:
            raise RejectedError("nothing is reserved for this", code=RefusalCode.BUSY)
        self._phases.add(phase)
        stream.counter.use = BulkUse.PROBED

    async def _limited(self, peer: PeerId, phase: Coroutine[Any, Any, None]) -> None:
        """Serve a phase until the prober ends it by a reset, but not for ever."""
        try:
            async with asyncio.timeout(SERVE_S):
                await phase
        except TimeoutError as error:
            raise UnreachableError("the probe took too long", peer=peer) from error


def _is_near(now: float | None, before: float | None) -> bool:
    return now is not None and before is not None and abs(now - before) <= CONFIRMED * before
