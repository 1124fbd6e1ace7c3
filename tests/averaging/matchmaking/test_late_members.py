"""Members for whom a round takes longer than for its aggregators are waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from minga.averaging.allreduce.round import IDLE_S, LATE
from minga.averaging.clocking.batch_size import BatchSize
from minga.averaging.clocking.standby import Standby
from minga.averaging.group import GroupSettings
from minga.averaging.matchmaking.attempt import MOST_S, GroupAttempt
from minga.averaging.matchmaking.votes import UNFORESEEN_S, Position, Vote
from minga.averaging.messages import GroupMember, Part, Plan, Report
from minga.network.interface import Address, PeerId
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from tests.worlds.reduce_world import one_vector
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import make_spec, pull, vector_replica, virtually

pytestmark = pytest.mark.promise("the-plan-and-lies-about-rates")

MB = 1e6
FAST = (20.0, 20.0)


@pytest.mark.parametrize(
    ("numel", "trainers", "auxiliary"),
    [
        soaked(500_000, [(2.0, 20.0)], (50.0, 50.0)),
        (500_000, [(0.6, 20.0)], (50.0, 50.0)),
        soaked(1_000_000, [FAST, FAST, FAST], (5.0, 1.0)),
        (1_000_000, [FAST, FAST, FAST, (5.0, 1.0)], None),
    ],
)
def test_nobody_falls_out_because_its_line_is_slow(
    numel: int, trainers: list[tuple[float, float]], auxiliary: tuple[float, float] | None
) -> None:
    """Computing takes no time here: as soon as a round is over somewhere, the next batch is there."""

    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(32, digest_every=1000), seed=3, make_replica=vector_replica(numel), gradient=pull)
        for up, down in trainers:
            swarm.add(HostSettings(up * MB, down * MB), TrainerSettings(4, 0.02))
        if auxiliary is not None:
            swarm.add(HostSettings(auxiliary[0] * MB, auxiliary[1] * MB), auxiliary=True)
        count = len(swarm.peers)
        await swarm.run_until_step(4)
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(17.0)
        late = [logged for logged in swarm.log.of("round.begun") if logged.event.time > begun]
        assert len(late) > 3 * count
        assert {logged.event.fields["members"] for logged in late} == {count}
        assert not [logged for logged in swarm.log.of("member.out_of_sync") if logged.event.time > begun]
        await swarm.close()

    main()


@pytest.mark.parametrize(("foreseen_s", "waits_s"), [(None, UNFORESEEN_S), (10.0, LATE * 10.0), (1e9, LATE * IDLE_S)])
def test_nobody_is_waited_for_for_ever_whatever_a_plan_foresees(foreseen_s: float | None, waits_s: float) -> None:
    me, other = PeerId("a" * 64), PeerId("b" * 64)

    @virtually
    async def main() -> None:
        sight: Any = SimpleNamespace(alive=lambda: [me, other], at=lambda step: [], averaging=lambda step: [other])
        node: Any = SimpleNamespace(peer_id=me, has_just_ended=lambda _: False)
        settings, trainer = GroupSettings(1, one_vector(1), aggregates=True), SimpleNamespace()
        batch, standby = BatchSize(settings), Standby(node, trainer)  # type: ignore[arg-type]
        attempt = GroupAttempt(node, settings, sight, trainer, batch, standby, Position(me))  # type: ignore[arg-type]
        members = tuple(GroupMember(Address(peer), True) for peer in (me, other))
        attempt.enter(Plan("0" * 32, 4, members, (Part(10, 0),), 1 << 16, 1, predicted_s=foreseen_s))
        attempt = attempt.next(5)
        await asyncio.sleep(0.99 * waits_s)
        assert attempt.at_work() == {other}
        await asyncio.sleep(0.02 * waits_s)
        assert attempt.at_work() == set()

    main()


def attempt_after(
    alive: list[PeerId],
    position: Position,
    through: Collection[PeerId] = (),
    syncing: Mapping[PeerId, float] | None = None,
) -> GroupAttempt:
    """That of a peer which sees these, some `through` with the run, and others `syncing` for so many seconds."""
    sight: Any = SimpleNamespace(
        alive=lambda: alive,
        is_behind=lambda step: False,
        ahead=lambda step: [],
        through=lambda step: through,
        syncing=lambda step: syncing or {},
        links=dict,
    )
    node: Any = SimpleNamespace(peer_id=position.me, events=SimpleNamespace(emit=lambda event: None))
    settings, trainer = GroupSettings(1, one_vector(1), aggregates=True), SimpleNamespace()
    batch, standby = BatchSize(settings), Standby(node, trainer)  # type: ignore[arg-type]
    return GroupAttempt(node, settings, sight, trainer, batch, standby, position)  # type: ignore[arg-type]


def test_those_that_lost_touch_in_their_first_round_are_no_majority_of_it() -> None:
    old, new = [PeerId(each * 64) for each in "abc"], [PeerId(each * 64) for each in "56789"]
    me = new[0]

    @virtually
    async def main() -> None:
        attempt = attempt_after(new, Position(me).come_back(dict.fromkeys(old, 0), 0.0))
        members = tuple(GroupMember(Address(peer), True) for peer in (*old, *new))
        attempt.enter(Plan("0" * 32, 4, members, (Part(10, 0),), 1 << 16, 1, voters=(0, 1, 2), electorate=3))
        attempt.position = attempt.position.come_back(dict.fromkeys(old, 0) | dict.fromkeys(new[1:], 1), 1.0)
        attempt = attempt.next(5)
        assert not attempt.may_close(dict.fromkeys(new, Vote(0)), [])
        assert attempt.may_close(dict.fromkeys([*old, *new], Vote(0)), [])

    main()


def test_who_gave_its_state_and_was_through_then_is_not_waited_for() -> None:
    """The organiser let the run go on when that had taken its last step, or while it compared that with others."""
    me, given, both = (PeerId(each * 64) for each in "abc")

    @virtually
    async def main() -> None:
        through, alive = set[PeerId](), [me, given, both]
        attempt = attempt_after(alive, Position(me).come_back({given: 0, both: 0}, 0.0), through)
        attempt.position = replace(attempt.position, seen=(me, given, both))
        alone = {me: Vote(0)}
        assert not attempt.may_close(alone, [])
        through.add(given)
        assert attempt.may_close(alone | {both: Vote(0)}, [])
        through.add(both)
        assert attempt.may_close(alone, [])
        alive.clear()  # both died as they were
        assert attempt.may_close(alone, [])
        assert attempt.may_join(PeerId("d" * 64))
        through.clear()  # both were started again: they may be anywhere
        assert not attempt.may_close(alone, [])
        assert not attempt.may_join(PeerId("d" * 64))

    main()


def test_a_leader_that_does_nothing_is_due_though_most_said_goodbye_or_are_through() -> None:
    me, leader, *gone = (PeerId(each * 64) for each in "abcde")
    member = replace(Position(me), view=(me, leader, *gone), departed=frozenset(gone), has_vote=True)
    newcomer = Position(me).come_back(dict.fromkeys(gone, 0), 0.0)

    @virtually
    async def main() -> None:
        report = Report(samples=1, parked=True)
        assert attempt_after([me, leader], member).is_due(report)
        assert attempt_after([me, leader], newcomer, gone).is_due(report)
        assert not attempt_after([me, leader], newcomer).is_due(report)
        assert not attempt_after([me, leader], replace(member, departed=frozenset())).is_due(report)

    main()


def test_followers_have_patience_for_a_leader_that_may_hold_a_full_step_for_a_newcomer() -> None:
    me, newcomer, *others = (PeerId(each * 64) for each in "abcde")
    member = replace(Position(me), view=(me, *others), has_vote=True)

    @virtually
    async def main() -> None:
        assert attempt_after([me, *others], member).longest_hold_s() == 0.0
        assert attempt_after([me, *others], member, syncing={newcomer: 1.0}).longest_hold_s() == MOST_S

    main()


def test_who_was_through_and_comes_back_is_one_of_those_that_decide() -> None:
    """All members of its first round have to count it, also those that saw it through before."""
    me, *others, back = (PeerId(each * 64) for each in "abcd")

    @virtually
    async def main() -> None:
        before = replace(Position(me, others[1]), step=20, view=(me, *others), has_vote=True)
        attempt = attempt_after([me, back], before, {back})
        assert not attempt.may_close({me: Vote(1)}, [me])  # the others are out of sight for a moment
        members = tuple(GroupMember(Address(peer), True) for peer in (me, *others, back))
        plan = Plan("0" * 32, 20, members, (Part(10, 0),), 1 << 16, 1, voters=(0, 1, 2), electorate=3)
        attempt.position = attempt.position.promising(me)
        attempt.enter(plan)
        for step in (21, 22):
            attempt.position = attempt.position.after(plan).at(step)
            assert set(attempt.position.electorate()) == {me, *others, back}
        # The record of its former process may still be the newest that is seen of it.
        stale = attempt_after([me, *others, back], attempt.position, {back})
        half = dict.fromkeys((me, others[0]), Vote(1))
        assert not stale.may_close(half, half.keys()), "the other half has the tie-breaker, and may go on"

    main()
