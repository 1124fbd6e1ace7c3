"""A leader tells members that are late from members that are silent."""

from __future__ import annotations

import asyncio

from minga.averaging.matchmaking.former import HERE, serve_here, suspect_the_silent
from minga.averaging.matchmaking.view import Suspects
from tests.worlds.reduce_world import World
from tests.worlds.swarm_tools import virtually

SILENT_S = 2.25
"""Until a call knows that the other side is silent, from the first look on."""


@virtually
async def test_only_the_silent_are_suspected() -> None:
    world, suspects = World(5), Suspects()
    await world.start()
    leader, late, older, stopped, dead = world.parties
    for party in (late, stopped, dead):  # the older one does not know the question
        party.node.serve(HERE, serve_here)
    for party in (late, older, stopped, dead):
        await leader.node.connection(party.peer_id)
    world.internet.stall(stopped.network)
    world.internet.kill(dead.network)
    missing = {party.peer_id for party in (late, older, stopped, dead)}
    asking = asyncio.ensure_future(suspect_the_silent(leader.node, lambda: missing, lambda: suspects))
    await asyncio.sleep(SILENT_S)
    assert suspects.now() == {stopped.peer_id, dead.peer_id}
    assert leader.offences() == []
    asking.cancel()
    world.internet.resume(stopped.network)
    await world.close()


@virtually
async def test_many_are_called_a_few_at_a_time_and_each_once() -> None:
    world, suspects = World(12), Suspects()
    await world.start()
    leader, *others = world.parties
    calls: list[str] = []
    for party in others:

        async def answer(peer, stream, name=party.network.state.name):  # type: ignore[no-untyped-def]
            calls.append(name)
            await serve_here(peer, stream)

        party.node.serve(HERE, answer)
    missing = [party.peer_id for party in others]
    asking = asyncio.ensure_future(suspect_the_silent(leader.node, lambda: missing, lambda: suspects))
    await asyncio.sleep(3.0)
    assert len(calls) == len(set(calls)) == len(others)
    assert suspects.now() == set()
    asking.cancel()
    await world.close()
