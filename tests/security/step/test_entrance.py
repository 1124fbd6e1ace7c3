"""What newcomers of runs with strangers do about those who claim what nobody shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from minga.core.errors import SilentError
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.security.messaging.past_steps import LOOK, WATCH, AwaitStep, GetState, PastStep, PastSteps, Seen
from minga.security.protocol.protocol_state import ProtocolState
from minga.security.protocol.statements import Phase, Slot, StateClaim, Statement, state
from minga.security.step.observer import Discovery
from tests.worlds.node_world import RUN_ID, World, identity_of
from tests.worlds.swarm_tools import virtually

SILENT = 30


def stands(node: Node, standing: bytes) -> Statement:
    return state(identity_of(node), RUN_ID, Slot(0, 0, Phase.STANDING), StateClaim(standing, bytes(32)))


def claim(node: Node, standing: bytes, asked: list[PeerId]) -> None:
    """Say that this is where the members stand, and never show it."""

    async def tell(_: PeerId, stream: MessageStream) -> None:
        await stream.receive(AwaitStep)
        await stream.send(Seen((stands(node, standing),)))

    async def be_silent(_: PeerId, stream: MessageStream) -> None:
        await stream.receive(GetState)
        asked.append(node.peer_id)
        await asyncio.Event().wait()

    handlers: dict[str, Callable[[PeerId, MessageStream], Awaitable[None]]] = {WATCH: tell, LOOK: be_silent}
    for method, handler in handlers.items():
        node.serve(method, handler)  # type: ignore[arg-type]


@virtually
async def test_claims_that_nobody_shows_do_not_hold_a_newcomer_up() -> None:
    world = World()
    members, silent = [await world.node() for _ in range(3)], [await world.node() for _ in range(SILENT)]
    newcomer = await world.node()
    standing = ProtocolState.first(RUN_ID, [node.peer_id for node in members])
    for node in members:
        PastSteps(node).keep(PastStep(standing, {}, stands(node, standing.digest)))
    for number, node in enumerate(silent):
        claim(node, bytes([number]) * 32, [])
    entrance = Discovery(newcomer, [node.peer_id for node in members])
    found, _, signers = await entrance.find(3.0)
    assert (found, len(signers)) == (standing, 3)


@virtually
async def test_who_did_not_show_a_standing_is_not_asked_for_it_again() -> None:
    world = World()
    silent, newcomer, asked = [await world.node() for _ in range(3)], await world.node(), list[PeerId]()
    for number, node in enumerate(silent):
        claim(node, bytes([number]) * 32, asked)
    with pytest.raises(SilentError):
        await Discovery(newcomer, [node.peer_id for node in silent]).find(60.0)
    assert sorted(asked) == sorted(node.peer_id for node in silent)
