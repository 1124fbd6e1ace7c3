"""The leader's side of group formation: collect members, decide when the step is full, close the group.

Theory of operation. Members join as soon as their step begins and report their samples after each micro-batch, so
the leader knows the swarm's progress with the delay of one link, not of gossip. Between reports it extrapolates
(n + elapsed * rate). Once the samples that will be there when everybody has finished the micro-batch under way reach
the target batch size B, it asks all to *park* at their next boundary and waits for them during a grace period:

    grace = 0.1 s + max(1.5 * remaining micro-batch + round trip), over those that end in max(0.25 s, 15 % of the step)

Who is not parked by then takes part with the samples it has; its unfinished micro-batch is lost to this step, so one
slow machine costs the others at most that period (twice as much where B is not reached without it). If the sum then
falls short of B (a member died while parking, or an estimate was too high) everybody resumes. So the realised batch is
at least B, and more than B only by micro-batches.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from minga.averaging._contributor import Contributor
from minga.averaging._messages import FromLeader, Join, Park, Redirect, Resume, SignedPlan, Update
from minga.averaging._seat import Seat
from minga.core._errors import RejectedError, RemoteError
from minga.core._signal import Signal
from minga.network._interface import Address, PeerId
from minga.network._messages import MessageStream

JOIN_GRACE_S = 1.5
"""Seconds that a full step waits for members of the last round that are alive but have not joined yet, counted from
the end of that round where they are still at it."""

HOLD_S = 10.0
"""How long a full step waits for a newcomer that is fetching state; longer where the step itself took longer.

While the swarm waits its state does not change, so that whoever can fetch it in that time gets in, however short the
steps are; it waits once for each newcomer."""

CLOSE_CHECK_S = 0.25
DIVERGED = "diverged"
MAX_FOLLOWERS = 999
"""So that a plan fits into a message, whatever addresses its members tell."""

MIN_GRACE_S = 0.25
GRACE_SHARE = 0.15
GUESS_SHARE = 0.03


class OutOfSyncError(RejectedError):
    """The swarm is at a later step than this peer, or in another state: it has to fetch the state first."""


@dataclass
class Surroundings:
    """What the leader reads from the rest of the peer while it gathers."""

    expected: Callable[[], Collection[PeerId]]
    """Members of the last round that are alive: a full step waits `JOIN_GRACE_S` for those who have not joined."""
    syncing: Callable[[float], Collection[PeerId]]
    """Newcomers that are fetching state, each for at most the given seconds since that was first seen."""
    may_close: Callable[[Collection[PeerId]], bool]
    """Whether these members may take the step without the others, as far as one can see."""
    abdicate: Callable[[], Address | None]
    """Somebody else who leads this step after all, or None."""
    at_work: Callable[[], Collection[PeerId]] = tuple
    """Those of the expected whose last round still runs: they are waited for as long as that was foreseen."""


@dataclass
class Gathering:
    """One group in the making. `run` returns when it is closed; `outcome` tells waiting members."""

    step: int
    me: PeerId
    own: Seat
    contributor: Contributor
    target_batch_size: int
    around: Surroundings
    seats: dict[PeerId, Seat] = field(default_factory=dict)
    changed: Signal = field(default_factory=Signal)
    closed: bool = False
    shortfall: float = 1.0
    _begun_s: float = 0.0

    # ---- members

    async def attend(self, peer: PeerId, join: Join, stream: MessageStream) -> None:
        """Give `peer` a seat and listen to it until the stream ends, which raises; or `RejectedError` if it is full."""
        if len(self.seats) >= MAX_FOLLOWERS and peer not in self.seats:
            raise RejectedError(f"a group has at most {MAX_FOLLOWERS + 1} members", code="full")
        seat = Seat(join, join.report, _now(), stream)
        self.seats[peer] = seat
        self.changed.fire()
        try:
            while True:
                seat.report, seat.reported_at_s = (await stream.receive(Update)).report, _now()
                self.changed.fire()
        finally:
            if self.seats.get(peer) is seat:
                del self.seats[peer]
                self.changed.fire()

    # ---- the leader's own task

    async def run(self) -> Address | None:
        """Gather until the step is full and everybody parked; then the group is `closed` and None is returned.

        Returns an address instead if another leader was found: the members were redirected there.
        """
        self._begun_s = _now()
        listener = asyncio.get_running_loop().create_task(self._listen_to_own_trainer())
        try:
            while True:
                if (leader := self.around.abdicate()) is not None:
                    await self._tell_all(Redirect(leader))
                    return leader
                if self._is_full() and await self._everyone_present() and await self._park_those_alike():
                    self.closed = True
                    return None
                await self.changed.wait(self._patience_s())
        finally:
            listener.cancel()

    async def send_plan(self, plan: SignedPlan, members: Collection[PeerId]) -> None:
        """Send the plan to all members; who cannot be reached is found missing by the aggregators."""
        await self._tell_all(plan, members)

    async def dismiss(self) -> None:
        """Let the members go without a plan: this peer cannot lead after all."""
        for seat in list(self.seats.values()):
            if seat.stream is not None:
                await seat.stream.close()

    def everyone(self) -> dict[PeerId, Seat]:
        """All seats, the leader's included."""
        return {self.me: self.own, **self.seats}

    # ---- inner workings

    async def _listen_to_own_trainer(self) -> None:
        while True:
            await self.contributor.changed.wait()
            self.changed.fire()

    def _refresh(self) -> None:
        self.own.report, self.own.reported_at_s = self.contributor.report(), _now()

    def _rate(self) -> float:
        return sum(seat.report.rate for seat in self.everyone().values())

    def _samples(self) -> int:
        return sum(seat.report.samples for seat in self.everyone().values())

    def _grace_cap_s(self) -> float:
        rate = self._rate()
        return max(MIN_GRACE_S, GRACE_SHARE * self.target_batch_size / rate) if rate > 0 else MIN_GRACE_S

    def _is_full(self) -> bool:
        self._refresh()
        now, cap = _now(), self._grace_cap_s()
        if self._samples() >= self.target_batch_size:
            return True  # no matter how far the estimates were off before
        return self._lacking(now, cap) <= 0

    def _lacking(self, now: float, cap: float) -> float:
        """Samples that will be missing if everybody is told to park now, with a little extra against a bad guess."""
        seats = self.everyone().values()
        expected = sum(seat.samples_at(now, cap) for seat in seats)
        extra = min(GUESS_SHARE * self.target_batch_size, max(seat.guessed_samples(now) for seat in seats))
        return self.target_batch_size * self.shortfall + extra - expected

    def _patience_s(self) -> float:
        """Until when nothing can happen unless somebody reports: a share of the time to the estimated trigger."""
        now, cap, rate = _now(), self._grace_cap_s(), self._rate()
        if rate <= 0:
            return 1.0
        return min(1.0, max(0.02, 0.5 * self._lacking(now, cap) / rate))

    async def _everyone_present(self) -> bool:
        """Wait a little for members of the last round that live but have not joined; False if the step emptied."""
        deadline = _now() + JOIN_GRACE_S
        while (missing := set(self.around.expected()) - set(self.everyone())) and _now() < deadline:
            if missing.intersection(self.around.at_work()):
                deadline = _now() + JOIN_GRACE_S
            await self.changed.wait(min(0.1, deadline - _now()))
        return self._is_full()

    async def _park_those_alike(self) -> bool:
        """Park everybody, after sending those away whose state cannot be the same as that of most; False if too few.

        Raises `OutOfSyncError` if that is this peer.
        """
        pasts = Counter(past for seat in self.everyone().values() if (past := seat.join.previous))
        right = max(pasts, key=lambda past: (pasts[past], past == self.own.join.previous, past), default="")
        if self.own.join.previous not in ("", right):
            raise OutOfSyncError("the others applied another result than this peer", code=DIVERGED, round=self.step)
        for peer, seat in list(self.seats.items()):
            if seat.join.previous not in ("", right) and seat.stream is not None:
                del self.seats[peer]
                with contextlib.suppress(RemoteError):
                    await seat.stream.refuse(DIVERGED, "it applied another result in the last round than most others")
        return self._is_full() and await self._park_everyone()

    async def _park_everyone(self) -> bool:
        now = _now()
        cap = self._grace_cap_s()
        seats = self.everyone().values()
        remaining = [(r, seat.round_trip_s) for seat in seats if (r := seat.remaining_s(now)) <= cap]
        deadline = now + 0.1 + max((1.5 * r + trip for r, trip in remaining), default=0.0)
        last_deadline = now + 0.5 + max((3.0 * r + trip for r, trip in remaining), default=0.0)
        self.contributor.park()
        await self._tell_all(Park())
        self._refresh()
        while not all(seat.is_parked for seat in self.everyone().values()):
            # Going on accumulating costs more than waiting for those who are to fill the batch.
            patience_s = (deadline if self._samples() >= self.target_batch_size else last_deadline) - _now()
            if patience_s <= 0:
                break
            await self.changed.wait(patience_s)
            self._refresh()
        await self._hold_for_newcomers()
        while not self.around.may_close(self.everyone()):
            if self.around.abdicate() is not None:
                break
            await self.changed.wait(CLOSE_CHECK_S)
        else:
            await self._hold_for_newcomers()
        await self._hear_from_everybody()
        self._refresh()
        if self.around.may_close(self.everyone()) and self._samples() >= self.target_batch_size:
            return True
        self.shortfall = min(1.05, self.shortfall + 0.01)
        self.contributor.resume()
        await self._tell_all(Resume())
        return False

    async def _hold_for_newcomers(self) -> None:
        """Wait for those who are fetching the present state, and then a little for each of them to join."""
        patience_s = max(HOLD_S, _now() - self._begun_s)
        until: dict[PeerId, float] = {}
        while True:
            until.update(dict.fromkeys(self.around.syncing(patience_s), _now() + JOIN_GRACE_S))
            if all(peer in self.seats or _now() >= until[peer] for peer in until):
                return
            await self.changed.wait(0.1)

    async def _hear_from_everybody(self) -> None:
        """Wait until those that fell quiet are heard again or given up: found out in a round it costs more time."""
        while any(seat.is_quiet for seat in self.seats.values()):
            await self.changed.wait(0.05)

    async def _tell_all(self, message: FromLeader, members: Collection[PeerId] | None = None) -> None:
        async def tell(seat: Seat) -> None:
            if seat.stream is not None:
                try:
                    await seat.stream.send(message)
                except RemoteError:
                    return  # its listener notices too and gives the seat away

        seats = [seat for peer, seat in self.seats.items() if members is None or peer in members]
        await asyncio.gather(*(tell(seat) for seat in seats))


def _now() -> float:
    return asyncio.get_running_loop().time()
