from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import msgspec
import pytest
import torch
from swarm_tools import later, virtually

from minga.averaging._gathering import JOIN_GRACE_S, Gathering, OutOfSyncError, Surroundings
from minga.averaging._messages import FromLeader, Join, Park, Redirect, Report, Resume, Update
from minga.averaging._seat import Seat
from minga.core._errors import SilentError, UnreachableError
from minga.core._signal import Signal
from minga.network._interface import Address, PeerId

ME = PeerId("0" * 64)


class Trainer:
    """The leader's own trainer, moved by hand."""

    def __init__(self, report: Report) -> None:
        self.changed = Signal()
        self.now = report
        self.orders: list[str] = []

    def report(self) -> Report:
        return self.now

    def park(self) -> None:
        self.orders.append("park")
        self.now = msgspec.structs.replace(self.now, parked=True)

    def resume(self) -> None:
        self.orders.append("resume")
        self.now = msgspec.structs.replace(self.now, parked=False)

    def rest(self, *, resting: bool) -> None:
        self.orders.append("rest" if resting else "go on")

    async def seal(self) -> tuple[torch.Tensor | None, int]:
        return None, 0


class Line:
    """A member's stream as the leader sees it."""

    def __init__(self, round_trip_s: float = 0.0) -> None:
        self.round_trip_s, self.quiet_s = round_trip_s, 0.0
        self.heard: list[FromLeader] = []
        self.refused: list[str] = []
        self.on_message: Callable[[FromLeader], None] = lambda message: None
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()

    def say(self, message: Any) -> None:
        self._inbox.put_nowait(message)

    async def receive(self, kind: object) -> Any:
        message = await self._inbox.get()
        if isinstance(message, BaseException):
            raise message
        return message

    async def send(self, message: FromLeader) -> None:
        self.heard.append(message)
        self.on_message(message)

    async def refuse(self, code: str, reason: str) -> None:
        self.refused.append(code)

    async def close(self) -> None:
        self.say(UnreachableError("closed"))


def join_of(number: int, report: Report, previous: str = "") -> tuple[PeerId, Join]:
    peer = PeerId(f"{number:064x}")
    return peer, Join(3, "0" * 32, Address(peer), True, True, None, None, report, previous=previous)


class Scene:
    def __init__(self, batch: int, own: Report, **around: Any) -> None:
        self.trainer = Trainer(own)
        self.expected: set[PeerId] = set()
        self.fetching: set[PeerId] = set()
        self.closable = True
        self.other: Address | None = None
        surroundings = Surroundings(
            lambda: self.expected, lambda patience_s: self.fetching, self._may_close, lambda: self.other
        )
        seat = Seat(join_of(0, own, around.get("previous", ""))[1], own, 0.0)
        self.gathering = Gathering(3, ME, seat, self.trainer, batch, surroundings)
        self.tasks: list[asyncio.Task[None]] = []

    def _may_close(self, group: Collection[PeerId]) -> bool:
        return self.closable

    def sit(self, number: int, report: Report, previous: str = "", round_trip_s: float = 0.0) -> Line:
        line = Line(round_trip_s)
        peer, join = join_of(number, report, previous)
        attending = self.gathering.attend(peer, join, line)  # type: ignore[arg-type]
        self.tasks.append(asyncio.ensure_future(attending))
        return line


def obedient(line: Line, samples: int) -> None:
    """The member parks as soon as it hears the order, with `samples`."""
    line.on_message = lambda m: line.say(Update(Report(samples, 10.0, parked=True))) if isinstance(m, Park) else None


@virtually
async def test_a_full_step_closes_with_everybody_parked() -> None:
    scene = Scene(100, Report(40, 10.0))
    line = scene.sit(1, Report(50, 10.0, 10, 0.5, 1.0))
    obedient(line, 60)
    begun = asyncio.get_running_loop().time()
    assert await scene.gathering.run() is None
    assert scene.gathering.closed
    assert [type(message) for message in line.heard] == [Park]
    assert scene.trainer.orders == ["park"]
    # it counted on the micro-batch under way only when it would end within the grace period of max(0.25 s, 15 %)
    assert 0.0 <= asyncio.get_running_loop().time() - begun < 0.5


@virtually
async def test_it_waits_until_there_are_enough_samples() -> None:
    scene = Scene(100, Report(40, 10.0))
    line = scene.sit(1, Report(10, 10.0))
    obedient(line, 60)
    later(5.0, lambda: line.say(Update(Report(60, 10.0))))
    await scene.gathering.run()
    assert asyncio.get_running_loop().time() == pytest.approx(5.0, abs=0.1)


@virtually
async def test_all_resume_when_samples_were_lost_on_the_way() -> None:
    scene = Scene(100, Report(40, 10.0))
    line, lost = scene.sit(1, Report(30, 10.0)), scene.sit(2, Report(30, 10.0))
    obedient(line, 30)
    lost.on_message = lambda message: lost.say(UnreachableError("gone"))
    later(3.0, lambda: line.say(Update(Report(60, 10.0))))
    later(3.0, lambda: obedient(line, 60))
    await scene.gathering.run()
    assert Resume in [type(message) for message in line.heard]
    assert "resume" in scene.trainer.orders
    assert len(scene.gathering.everyone()) == 2


@virtually
async def test_a_member_that_does_not_park_costs_the_grace_period_only() -> None:
    scene = Scene(100, Report(60, 10.0))
    stubborn = scene.sit(1, Report(45, 10.0, 5, 0.0, 0.2))
    await scene.gathering.run()
    assert asyncio.get_running_loop().time() < 1.0
    assert [type(message) for message in stubborn.heard] == [Park]


@virtually
async def test_members_of_the_last_round_are_waited_for_a_little() -> None:
    scene = Scene(100, Report(120, 10.0))
    scene.expected = {join_of(1, Report())[0], join_of(2, Report())[0]}
    later(0.5, lambda: obedient(scene.sit(1, Report(10, 10.0)), 10))
    await scene.gathering.run()
    assert asyncio.get_running_loop().time() == pytest.approx(JOIN_GRACE_S, abs=0.3)
    assert len(scene.gathering.everyone()) == 2


@virtually
async def test_newcomers_are_held_for_until_they_have_joined() -> None:
    scene = Scene(100, Report(120, 10.0))
    newcomer = join_of(1, Report())[0]
    scene.fetching = {newcomer}
    later(4.0, scene.fetching.clear)  # it has the state; its join is on the way
    later(4.4, lambda: obedient(scene.sit(1, Report(0, 0.0)), 0))
    await scene.gathering.run()
    assert set(scene.gathering.everyone()) == {ME, newcomer}


@virtually
async def test_a_newcomer_that_never_joins_is_given_up() -> None:
    scene = Scene(100, Report(120, 10.0))
    scene.fetching = {join_of(1, Report())[0]}
    later(4.0, scene.fetching.clear)
    await scene.gathering.run()
    assert asyncio.get_running_loop().time() == pytest.approx(4.0 + JOIN_GRACE_S, abs=0.3)


@virtually
async def test_a_group_that_may_not_close_stays_open_for_others() -> None:
    scene = Scene(100, Report(120, 10.0))
    scene.closable = False
    later(20.0, lambda: setattr(scene, "closable", True))
    later(10.0, lambda: obedient(scene.sit(1, Report(5, 1.0)), 5))
    await scene.gathering.run()
    assert asyncio.get_running_loop().time() >= 20.0
    assert len(scene.gathering.everyone()) == 2


@virtually
async def test_it_abdicates_and_sends_everybody_on() -> None:
    scene = Scene(100, Report(0, 10.0))
    line = scene.sit(1, Report(0, 10.0))
    other = Address(PeerId("f" * 64), ("10.0.0.1:1",))
    later(2.0, lambda: setattr(scene, "other", other))
    assert await scene.gathering.run() == other
    assert line.heard == [Redirect(other)]
    assert not scene.gathering.closed


@virtually
async def test_those_with_another_past_are_sent_away() -> None:
    right, wrong = "a" * 32, "b" * 32
    scene = Scene(100, Report(60, 10.0), previous=right)
    good, odd, new = (scene.sit(i, Report(30, 10.0), p) for i, p in ((1, right), (2, wrong), (3, "")))
    for line in (good, odd, new):
        obedient(line, 30)
    await scene.gathering.run()
    assert (good.refused, odd.refused, new.refused) == ([], ["diverged"], [])
    assert len(scene.gathering.everyone()) == 3


@virtually
async def test_a_leader_with_another_past_than_most_steps_back() -> None:
    scene = Scene(100, Report(60, 10.0), previous="b" * 32)
    for number in (1, 2):
        obedient(scene.sit(number, Report(30, 10.0), "a" * 32), 30)
    with pytest.raises(OutOfSyncError):
        await scene.gathering.run()


@virtually
async def test_who_breaks_off_loses_the_seat() -> None:
    scene = Scene(100, Report(0, 1.0))
    scene.sit(1, Report(1, 1.0)).say(UnreachableError("gone"))
    await asyncio.sleep(0.1)
    assert set(scene.gathering.everyone()) == {ME}
    assert isinstance(scene.tasks[0].exception(), UnreachableError)


@virtually
async def test_a_group_does_not_close_with_a_member_that_fell_quiet() -> None:
    scene = Scene(100, Report(120, 10.0))
    silent, slow = scene.sit(1, Report(10, 10.0, parked=True)), scene.sit(2, Report(10, 10.0, parked=True))
    silent.quiet_s, slow.quiet_s = 0.75, 1.0
    await asyncio.sleep(0.0)
    asyncio.get_running_loop().call_later(0.5, silent.say, SilentError("nothing was heard"))
    asyncio.get_running_loop().call_later(0.9, setattr, slow, "quiet_s", 0.0)
    await scene.gathering.run()
    assert 0.9 <= asyncio.get_running_loop().time() < 1.2
    assert len(scene.gathering.everyone()) == 2


# ---- what a seat expects of its member


def seat(round_trip_s: float = 0.0, **report: Any) -> Seat:
    fields = {"samples": 10, "rate": 4.0, "micro_batch": 4, "busy_s": 0.2, "micro_batch_s": 1.0, **report}
    return Seat(join_of(1, Report())[1], Report(**fields), 100.0, Line(round_trip_s))  # type: ignore[arg-type]


def test_the_micro_batch_under_way_counts_if_it_ends_in_the_grace_period() -> None:
    assert seat().samples_at(100.0, 0.5) == 10
    assert seat().samples_at(100.0, 0.8) == 14
    assert seat().samples_at(100.5, 0.31) == 14
    assert seat().remaining_s(100.5) == pytest.approx(0.3)


def test_reports_are_extrapolated_but_not_for_ever() -> None:
    assert seat().samples_at(102.0, 0.1) == 18  # two more must have ended by now
    assert seat().guessed_samples(102.0) == 4
    assert seat().guessed_samples(100.0) == 0
    assert seat().samples_at(110.0, 1.0) == 10  # no: it does something else


def test_the_round_trip_counts_twice_half() -> None:
    assert seat(round_trip_s=2.0).samples_at(100.0, 0.1) == 18
    assert seat(round_trip_s=2.0).samples_at(100.0, 0.8) == 22
    assert seat(round_trip_s=2.0).remaining_s(100.0) == pytest.approx(0.8)
    assert seat(round_trip_s=1e9).round_trip_s == 8.0


def test_parked_and_idle_members_are_taken_at_their_word() -> None:
    for report in ({"parked": True}, {"micro_batch": 0}, {"micro_batch_s": 0.0}):
        assert seat(**report).samples_at(150.0, 10.0) == 10
        assert seat(**report).remaining_s(150.0) == 0.0
        assert seat(**report).guessed_samples(150.0) == 0
