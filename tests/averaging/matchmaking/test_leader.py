from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch

from minga.averaging.clocking.batch_size import BatchSize
from minga.averaging.clocking.sample_quota import UPDATE_PERIOD_S, MemberPace, Registration
from minga.averaging.clocking.standby import Standby
from minga.averaging.group import GroupSettings
from minga.averaging.matchmaking.attempt import LEAST_S, GroupAttempt, OutOfSyncError, Patience
from minga.averaging.matchmaking.leader import JOIN_GRACE_S, GroupLeader
from minga.averaging.matchmaking.votes import Position, Vote
from minga.averaging.messages import FromLeader, Join, Limit, Plan, Redirect, Report, Update
from minga.averaging.strategy_choice import StrategyFacts
from minga.core.aio import Signal
from minga.core.errors import RejectedError, SilentError, UnreachableError
from minga.core.refusal_code import RefusalCode
from minga.network.interface import Address, PeerId
from tests.worlds.reduce_world import one_vector
from tests.worlds.swarm_tools import later, virtually

ME = PeerId("0" * 64)


class Trainer:
    """The leader's own trainer, moved by hand."""

    def __init__(self, report: Report) -> None:
        self.changed = Signal()
        self.now = report
        self.limits: list[int | None] = []

    facts = StrategyFacts(0, False, 1)

    def report(self) -> Report:
        return self.now

    def limit(self, samples: int | None) -> None:
        self.limits.append(samples)
        self.now = msgspec.structs.replace(self.now, limit=samples)

    def rest(self, *, resting: bool) -> None:
        raise NotImplementedError

    async def seal(self) -> tuple[torch.Tensor | None, int]:
        return None, 0


class Line:
    """A member's stream as the leader sees it."""

    def __init__(self, round_trip_s: float = 0.0) -> None:
        self.round_trip_s, self.quiet_s, self.pause_s = round_trip_s, 0.0, 0.0
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


class StagedAttempt(GroupAttempt):
    """An attempt at step 3 in which the test says what the leader sees."""

    scene: Scene

    def expected(self) -> set[PeerId]:
        return self.scene.expected

    def at_work(self) -> set[PeerId]:
        return set()

    def may_close(self, votes: Mapping[PeerId, Vote], voters: Collection[PeerId]) -> bool:
        return self.scene.closable

    def successor(self) -> Address | None:
        self.scene.looks.append(asyncio.get_running_loop().time())
        return self.scene.other


class Scene:
    def __init__(self, batch: int, own: Report, previous: str = "") -> None:
        self.trainer = Trainer(own)
        self.expected: set[PeerId] = set()
        self.syncing: dict[PeerId, float] = {}
        self.closable = True
        self.other: Address | None = None
        self.looks: list[float] = []
        node: Any = SimpleNamespace()
        sight: Any = SimpleNamespace(syncing=lambda step: self.syncing, links=dict)
        settings = GroupSettings(batch, one_vector(1), True)
        sizes, standby = BatchSize(settings), Standby(node, self.trainer)
        attempt = StagedAttempt(node, settings, sight, self.trainer, sizes, standby, Position(ME, step=3))
        attempt.scene = self
        self.gathering = GroupLeader(attempt, Registration(join_of(0, own, previous)[1], own, 0.0))
        self.tasks: list[asyncio.Task[None]] = []

    def sit(self, number: int, report: Report, previous: str = "", round_trip_s: float = 0.0) -> Line:
        line = Line(round_trip_s)
        peer, join = join_of(number, report, previous)
        attending = self.gathering.attend(peer, join, line)  # type: ignore[arg-type]
        self.tasks.append(asyncio.ensure_future(attending))
        return line


def stopped(samples: int, **report: Any) -> Report:
    """A member that has as many samples as it should."""
    fields = {"rate": 10.0, "micro_batch": 10, "micro_batch_s": 1.0, "limit": samples, **report}
    return Report(samples, parked=True, **fields)


def under_way(samples: int, limit: int | None, **report: Any) -> Report:
    """A member that began a micro-batch of 10 samples and 1 s just now."""
    return Report(samples, **{"rate": 10.0, "micro_batch": 10, "micro_batch_s": 1.0, **report}, limit=limit)


def limits(line: Line) -> list[int]:
    return [message.samples for message in line.heard if isinstance(message, Limit)]


@virtually
async def test_a_full_step_closes_at_once_if_all_stopped_by_themselves() -> None:
    scene = Scene(100, stopped(40))
    line = scene.sit(1, under_way(50, 60))
    later(1.0, lambda: line.say(Update(stopped(60))))
    await asyncio.sleep(0)
    assert await scene.gathering.run() is None
    assert scene.gathering.closed
    assert line.heard == []
    assert scene.trainer.limits == []
    assert asyncio.get_running_loop().time() == pytest.approx(1.0, abs=0.03)


@virtually
async def test_who_has_no_limit_is_told_one() -> None:
    scene = Scene(100, under_way(0, None))
    line = scene.sit(1, under_way(0, None, micro_batch_s=2.0, rate=5.0))
    running = asyncio.ensure_future(scene.gathering.run())
    await asyncio.sleep(0.5)
    assert (scene.trainer.limits, limits(line)) == ([70], [30])
    running.cancel()


@virtually
async def test_who_gave_its_first_micro_batch_is_told_to_go_on_soon() -> None:
    """Where nobody is known yet, limits are compared only once in a second: each would wait that long with one."""
    scene = Scene(100, Report(0, parked=True, limit=0))
    line = scene.sit(1, Report(0, parked=True, limit=0))
    running = asyncio.ensure_future(scene.gathering.run())
    later(0.1, lambda: line.say(Update(stopped(10, limit=1, micro_batch_s=0.1, rate=100.0))))
    await asyncio.sleep(0.1 + UPDATE_PERIOD_S + 0.05)
    assert (limits(line)[0], limits(line)[-1]) == (1, 100)
    assert scene.trainer.limits == [1]
    running.cancel()


@virtually
async def test_what_a_member_that_left_would_have_given_is_left_to_the_others() -> None:
    scene = Scene(100, stopped(40))
    line, lost = scene.sit(1, under_way(20, 30)), scene.sit(2, under_way(20, 30))
    later(0.5, lambda: lost.say(UnreachableError("gone")))
    later(1.0, lambda: line.say(Update(stopped(30))))
    running = asyncio.ensure_future(scene.gathering.run())
    await asyncio.sleep(2.0)
    assert (scene.trainer.limits[-1], limits(line)[-1]) in ((60, 40), (50, 50))
    line.say(Update(stopped(limits(line)[-1])))
    scene.trainer.now = stopped(scene.trainer.limits[-1] or 0)
    await running
    assert len(scene.gathering.everyone()) == 2


@virtually
async def test_what_a_slow_member_would_give_too_late_is_left_to_the_others() -> None:
    scene = Scene(100, stopped(60))
    slow = scene.sit(1, under_way(0, 40, micro_batch=40, micro_batch_s=20.0, rate=2.0))
    line = scene.sit(2, under_way(0, 0, parked=True))
    running = asyncio.ensure_future(scene.gathering.run())
    await asyncio.sleep(0.1)
    assert scene.trainer.limits == [80]
    assert limits(line) == [20]
    assert limits(slow) == [0]
    running.cancel()


@virtually
async def test_a_member_that_is_about_to_stop_is_waited_for_but_not_for_long() -> None:
    for ends_s, samples in ((0.01, 110), (5.0, 100)):
        begun = asyncio.get_running_loop().time()
        scene = Scene(100, stopped(60))
        line = scene.sit(1, stopped(40))
        late = scene.sit(2, under_way(0, 10, busy_s=0.99))
        later(ends_s, lambda late=late: late.say(Update(stopped(10))))
        await asyncio.sleep(0)
        await scene.gathering.run()
        assert asyncio.get_running_loop().time() - begun < 0.1
        assert sum(registration.report.samples for registration in scene.gathering.everyone().values()) == samples
        assert line.heard == []


@virtually
async def test_no_other_limits_are_told_while_members_of_the_last_round_are_about_to_come() -> None:
    scene = Scene(100, under_way(0, 50))
    scene.expected = {join_of(1, Report())[0]}
    later(1.0, lambda: scene.sit(1, under_way(10, 50)))
    running = asyncio.ensure_future(scene.gathering.run())
    await asyncio.sleep(0.9)
    assert scene.trainer.limits == []
    running.cancel()


@virtually
async def test_the_next_step_begins_with_limits_that_fill_it() -> None:
    scene = Scene(100, stopped(40))
    scene.sit(1, stopped(60, micro_batch_s=2.0, rate=5.0))
    scene.sit(2, stopped(0, micro_batch_s=50.0, rate=0.2))
    scene.sit(3, Report())
    await scene.gathering.run()
    peers = [ME, *(join_of(number, Report())[0] for number in (1, 2, 3))]
    assert scene.gathering.limits_of_the_next(peers, scene.gathering.everyone(), 100) == (70, 30, 0, 1)


@virtually
async def test_members_of_the_last_round_are_waited_for_a_little() -> None:
    scene = Scene(100, stopped(120))
    scene.expected = {join_of(1, Report())[0], join_of(2, Report())[0]}
    later(0.5, lambda: scene.sit(1, stopped(10)))
    await scene.gathering.run()
    assert asyncio.get_running_loop().time() == pytest.approx(JOIN_GRACE_S, abs=0.3)
    assert len(scene.gathering.everyone()) == 2


@virtually
async def test_a_large_group_collects_its_newcomers_and_is_closed_at_once_when_full() -> None:
    """To look at all members with each of 600 that join would be 180,000 looks at one, and as many as they report."""
    scene, loop = Scene(10_000, under_way(0, 50)), asyncio.get_running_loop()
    running = asyncio.ensure_future(scene.gathering.run())
    lines = []
    for number in range(1, 601):
        lines.append(scene.sit(number, under_way(0, 50)))
        await asyncio.sleep(0.001)
    await asyncio.sleep(1.0)
    assert len(scene.gathering.registrations) == 600
    assert len(scene.looks) < 120  # the first 64 are looked at as they come
    full_s = loop.time()
    lines[-1].say(Update(stopped(10_000)))
    await running
    assert loop.time() - full_s < 0.1


@virtually
async def test_a_newcomer_that_never_joins_is_given_up() -> None:
    scene = Scene(100, stopped(120))
    scene.syncing = {join_of(1, Report())[0]: 0.0}
    later(0.3, scene.syncing.clear)
    await scene.gathering.run()
    assert asyncio.get_running_loop().time() == pytest.approx(0.3 + JOIN_GRACE_S, abs=0.2)


@virtually
async def test_newcomer_after_newcomer_holds_a_step_no_longer_than_one() -> None:
    scene = Scene(100, stopped(120))
    scene.syncing = {join_of(1, Report())[0]: 0.0}
    for number in range(2, 8):
        peer = join_of(number, Report())[0]
        later(number - 1.0, lambda peer=peer: scene.syncing.update({peer: 0.0}))
    await scene.gathering.run()
    assert asyncio.get_running_loop().time() == pytest.approx(LEAST_S, abs=0.2)


@virtually
async def test_a_step_is_held_as_long_as_steps_take_with_their_rounds() -> None:
    scene, plan = Scene(100, stopped(120)), cast("Plan", SimpleNamespace(next_batch=100, orders=()))
    scene.gathering.attempt.batch.note(plan, 25.0)
    scene.syncing = {join_of(1, Report())[0]: 0.0}
    await scene.gathering.run()
    assert asyncio.get_running_loop().time() == pytest.approx(25.0, abs=0.3)


@virtually
async def test_a_step_that_filled_beside_a_round_that_was_slow_is_held_as_long_as_that_took() -> None:
    scene, plan = Scene(100, stopped(120)), cast("Plan", SimpleNamespace(next_batch=100, orders=()))
    for round_s in (18.0, 18.0, 29.0):
        scene.gathering.attempt.batch.note(plan, round_s)
    scene.syncing = {join_of(1, Report())[0]: 0.0}
    await scene.gathering.run()
    assert asyncio.get_running_loop().time() == pytest.approx(29.0, abs=0.3)


@virtually
async def test_what_a_step_was_held_before_it_could_close_counts() -> None:
    scene = Scene(100, stopped(120))
    scene.closable, newcomer = False, join_of(1, Report())[0]
    scene.syncing = {newcomer: 0.0}
    later(20.0, lambda: setattr(scene, "closable", True))
    await scene.gathering.run()
    assert asyncio.get_running_loop().time() == pytest.approx(20.0, abs=0.3)


@virtually
async def test_a_newcomer_that_was_not_waited_for_long_enough_is_waited_for_as_long_as_it_took() -> None:
    scene = Scene(100, stopped(120))
    newcomer, loop = join_of(1, Report())[0], asyncio.get_running_loop()
    scene.syncing = {newcomer: 7.0}
    for tenth in range(1, 200):
        later(tenth / 10, lambda: scene.syncing.update({newcomer: 7.0 + loop.time()}))
    await scene.gathering.run()
    assert loop.time() == pytest.approx(7.0, abs=0.3)


@pytest.mark.parametrize("in_flight", [0, 1])
def test_a_step_that_began_after_the_last_round_takes_as_long_as_it_fills_and_a_round(in_flight: int) -> None:
    """Whoever goes on computing beside a round fills the step sooner by that, and the next one begins no sooner."""

    @virtually
    async def main() -> None:
        scene = Scene(100, stopped(50))
        scene.trainer.facts = StrategyFacts(in_flight, False, 1)
        plan: Any = SimpleNamespace(next_batch=100, orders=())
        scene.gathering.attempt.batch.note(plan, 15.0)
        scene.syncing = {join_of(1, Report())[0]: 0.0}
        later(20.0, lambda: setattr(scene.trainer, "now", stopped(120)))
        await scene.gathering.run()
        assert asyncio.get_running_loop().time() == pytest.approx(20.0 + 35.0, abs=2.0)

    main()


@virtually
async def test_whoever_has_the_state_at_last_still_has_time_to_join() -> None:
    scene, newcomer = Scene(100, stopped(120)), join_of(1, Report())[0]
    scene.syncing = {newcomer: 7.0}
    later(5.0, scene.syncing.clear)
    later(6.0, lambda: scene.sit(1, stopped(0)))
    await scene.gathering.run()
    assert set(scene.gathering.everyone()) == {ME, newcomer}


@pytest.mark.parametrize(
    ("seconds", "step_s", "held_s"),
    [(0.0, 1.0, 2.0), (5.0, 1.0, 5.0), (28.0, 1.0, 10.0), (31.0, 1.0, 0.0), (5.0, 60.0, 60.0), (181.0, 60.0, 0.0)],
)
def test_how_long_a_step_is_held_at_most(seconds: float, step_s: float, held_s: float) -> None:
    patience = Patience(step_s, 1)
    assert bool(patience.waited_for({ME: seconds})) == bool(held_s)
    assert not held_s or patience.hold_s({ME: seconds + 1.5}, 1.5) == held_s


@pytest.mark.parametrize(
    ("newcomers", "members", "giving_s", "seconds", "held_s"),
    [
        (1, 1, 50.0, 0.0, 50.0),
        (1, 1, 50.0, 200.0, 100.0),
        (1, 1, 50.0, 301.0, 0.0),
        (3, 1, 50.0, 500.0, 300.0),
        (1, 1, 500.0, 1000.0, 600.0),
        (6, 1, 500.0, 1000.0, 600.0),
        (1, 8, 500.0, 80.0, 75.0),
        (3, 8, 500.0, 500.0, 225.0),
        (1, 8, 3.0, 20.0, 10.0),
    ],
)
def test_where_the_lines_of_members_are_slow_they_wait_longer_and_a_few_longer_than_many(
    newcomers: int, members: int, giving_s: float, seconds: float, held_s: float
) -> None:
    patience, syncing = Patience(1.0, members, giving_s), {PeerId(f"{n:064x}"): seconds for n in range(newcomers)}
    assert bool(patience.waited_for(syncing)) == bool(held_s)
    assert not held_s or patience.hold_s(syncing, 0.0) == held_s


@virtually
async def test_a_group_that_may_not_close_stays_open_for_others() -> None:
    scene = Scene(100, stopped(120))
    scene.closable = False
    later(20.0, lambda: setattr(scene, "closable", True))
    later(10.0, lambda: scene.sit(1, stopped(5)))
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
    assert line.heard[-1] == Redirect(other)
    assert not scene.gathering.closed


@virtually
async def test_who_comes_while_the_others_are_sent_on_is_told_to_ask_again() -> None:
    """It was registered after the last word of the group, and followed a leader that led no more for ever."""
    scene = Scene(100, Report(0, 10.0))
    other = Address(PeerId("f" * 64), ("10.0.0.1:1",))
    late: list[Line] = []

    def come(_: FromLeader) -> None:
        late.append(scene.sit(2, Report(0, 10.0)))

    scene.sit(1, Report(0, 10.0)).on_message = come
    await asyncio.sleep(0.1)
    scene.other = other
    scene.gathering.look_again()
    assert await scene.gathering.run() == other
    await asyncio.sleep(0.1)
    assert late
    error = scene.tasks[1].exception()
    assert isinstance(error, RejectedError)
    assert error.code == RefusalCode.STAND_BY


@virtually
async def test_those_with_another_past_are_sent_away() -> None:
    right, wrong = "a" * 32, "b" * 32
    scene = Scene(100, stopped(60), previous=right)
    good, odd, new = (scene.sit(i, stopped(30), p) for i, p in ((1, right), (2, wrong), (3, "")))
    await scene.gathering.run()
    assert (good.refused, odd.refused, new.refused) == ([], ["diverged"], [])
    assert len(scene.gathering.everyone()) == 3


@virtually
async def test_a_leader_with_another_past_than_most_steps_back() -> None:
    scene = Scene(100, stopped(60), previous="b" * 32)
    for number in (1, 2):
        scene.sit(number, stopped(30), "a" * 32)
    with pytest.raises(OutOfSyncError):
        await scene.gathering.run()


@virtually
async def test_a_group_does_not_close_with_a_member_that_fell_quiet() -> None:
    scene = Scene(100, stopped(120))
    silent, slow = scene.sit(1, stopped(10)), scene.sit(2, stopped(10))
    silent.quiet_s, slow.quiet_s = 0.75, 1.0
    await asyncio.sleep(0.0)
    asyncio.get_running_loop().call_later(0.5, silent.say, SilentError("nothing was heard"))
    asyncio.get_running_loop().call_later(0.9, setattr, slow, "quiet_s", 0.0)
    await scene.gathering.run()
    assert 0.9 <= asyncio.get_running_loop().time() < 1.2
    assert len(scene.gathering.everyone()) == 2


@virtually
async def test_the_others_go_on_for_a_member_that_fell_quiet_before_it_is_given_up() -> None:
    scene = Scene(100, stopped(50))
    able, silent = scene.sit(1, stopped(25)), scene.sit(2, stopped(25))
    silent.quiet_s = 0.75
    gathering = asyncio.ensure_future(scene.gathering.run())
    await asyncio.sleep(0.1)
    assert limits(silent) == []
    assert limits(able)[-1] + (scene.trainer.limits or [50])[-1] >= 100  # type: ignore[operator]
    silent.quiet_s = 0.0  # it was only late: nothing is lacking
    silent.say(Update(stopped(25)))
    await gathering
    assert len(scene.gathering.everyone()) == 3


# ---- what a registration expects of its member


def registration(round_trip_s: float = 0.0, **report: Any) -> Registration:
    fields = {"samples": 10, "rate": 4.0, "micro_batch": 4, "busy_s": 0.2, "micro_batch_s": 1.0, **report}
    return Registration(join_of(1, Report())[1], Report(**fields), 100.0, Line(round_trip_s))  # type: ignore[arg-type]


def test_a_report_comes_one_micro_batch_after_the_last_one() -> None:
    assert registration().pace(100.0) == MemberPace(10, 4, 0.8, 1.0)
    assert registration(round_trip_s=2.0).pace(100.5) == MemberPace(10, 4, pytest.approx(0.3), 1.0)


def test_micro_batches_that_nobody_reported_yet_are_counted_but_not_beyond_the_limit() -> None:
    assert registration(busy_s=0.0, micro_batch_s=0.1).pace(100.25) == MemberPace(18, 4, pytest.approx(0.05), 0.1)
    assert registration(busy_s=0.0, micro_batch_s=0.1, limit=14).pace(100.25) == MemberPace(
        10, 4, pytest.approx(0.15), 0.1, 14
    )


def test_what_is_overdue_is_expected_to_take_as_long_again_but_not_for_ever() -> None:
    assert registration().pace(101.8) == MemberPace(10, 4, pytest.approx(1.0), 1.0)
    assert registration().pace(110.0) == MemberPace(10)


def test_who_stopped_goes_on_a_round_trip_after_it_is_told() -> None:
    waiting = registration(round_trip_s=0.5, parked=True, busy_s=0.0, limit=10)
    assert waiting.pace(100.0) == MemberPace(10, 4, 1.5, 1.0, 10)
    waiting.order(14, 100.0)
    assert waiting.pace(101.0) == MemberPace(10, 4, 0.5, 1.0, 14)
    assert registration(round_trip_s=1e9).round_trip_s == 8.0
    knows_more = registration(round_trip_s=0.5, parked=True, busy_s=0.0, limit=14)  # and never had an order from here
    assert knows_more.pace(100.0) == MemberPace(10, 4, 1.5, 1.0, 14)


def test_who_does_not_compute_is_not_counted_on() -> None:
    assert registration(micro_batch=0).pace(150.0) == MemberPace(10)
    assert registration(micro_batch_s=0.0).pace(150.0) == MemberPace(10)
    assert registration(micro_batch=0).pace_of_the_next() == MemberPace(0)
    assert registration(round_trip_s=0.5).pace_of_the_next() == MemberPace(0, 4, 1.5, 1.0)
