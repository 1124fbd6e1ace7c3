"""A leader tells members that are late from members that are silent."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from minga.averaging.clocking.batch_size import BatchSize
from minga.averaging.clocking.sample_quota import Registration
from minga.averaging.clocking.standby import Standby
from minga.averaging.group import GroupSettings
from minga.averaging.matchmaking.attempt import HERE, GroupAttempt
from minga.averaging.matchmaking.former import serve_here
from minga.averaging.matchmaking.leader import GroupLeader
from minga.averaging.matchmaking.votes import Position
from minga.averaging.messages import Join, Report
from minga.averaging.strategy_choice import StrategyFacts
from minga.network.interface import PeerId
from tests.worlds.reduce_world import Party, World, one_vector
from tests.worlds.swarm_tools import virtually

SILENT_S = 2.25
"""Until a call knows that the other side is silent, from the first look on."""


def leading(party: Party, expected: Collection[PeerId]) -> GroupLeader:
    """A party leads a group at step 0 that these should join."""
    settings, trainer = (
        GroupSettings(1, one_vector(1), aggregates=True),
        SimpleNamespace(facts=StrategyFacts(0, False, 1)),
    )
    sight: Any = SimpleNamespace(alive=lambda: expected, at=lambda step: expected)
    sizes, standby = BatchSize(settings), Standby(party.node, trainer)  # type: ignore[arg-type]
    position = Position(party.peer_id, step=0)
    attempt = GroupAttempt(party.node, settings, sight, trainer, sizes, standby, position)  # type: ignore[arg-type]
    join = Join(0, "0" * 32, party.network.address, True, True, None, None, Report())
    return GroupLeader(attempt, Registration(join, join.report, 0.0))


@virtually
async def test_only_the_silent_are_suspected() -> None:
    world = World(5)
    await world.start()
    leader, late, older, stopped, dead = world.parties
    for party in (late, stopped, dead):  # the older one does not know the question
        party.node.serve(HERE, serve_here)
    for party in (late, older, stopped, dead):
        await leader.node.connection(party.peer_id)
    world.internet.stall(stopped.network)
    world.internet.kill(dead.network)
    missing = {party.peer_id for party in (late, older, stopped, dead)}
    group = leading(leader, missing)
    asking = asyncio.ensure_future(group.suspect_the_silent())
    await asyncio.sleep(SILENT_S)
    assert group.attempt.suspects.now() == {stopped.peer_id, dead.peer_id}
    assert leader.offences() == []
    asking.cancel()
    world.internet.resume(stopped.network)
    await world.close()


@virtually
async def test_many_are_called_a_few_at_a_time_and_each_once() -> None:
    world = World(12)
    await world.start()
    leader, *others = world.parties
    calls: list[str] = []
    for party in others:

        async def answer(peer, stream, name=party.network.state.name):  # type: ignore[no-untyped-def]
            calls.append(name)
            await serve_here(peer, stream)

        party.node.serve(HERE, answer)
    missing = [party.peer_id for party in others]
    group = leading(leader, missing)
    asking = asyncio.ensure_future(group.suspect_the_silent())
    await asyncio.sleep(3.0)
    assert len(calls) == len(set(calls)) == len(others)
    assert group.attempt.suspects.now() == set()
    asking.cancel()
    await world.close()
