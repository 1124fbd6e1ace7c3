"""Members that misuse the repair of a round: it ends soon, and with a result for all others."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from minga.averaging.allreduce.messages import FREEZE, LOST, ChunkMap, Done, Freeze, Lost
from minga.averaging.allreduce.round import RoundOutcome
from minga.core.errors import RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.network.interface import PeerId
from minga.network.rpc.stream import MessageStream
from tests.averaging.allreduce.test_repair import LAYOUT, RATE, vectors_of
from tests.worlds.reduce_world import ROUND, World
from tests.worlds.swarm_tools import virtually


@pytest.mark.parametrize("lies", [False, True])
def test_one_member_that_refuses_to_freeze_does_not_end_the_round(lies: bool) -> None:
    """It calls itself slow, and answers each question with "a repair is under way"."""

    @virtually
    async def main() -> None:
        world = World(5, seed=1, up_bytes_per_s=RATE, down_bytes_per_s=RATE, latency_s=0.02)
        await world.start()
        liar = world.parties[4]
        asked = 0

        async def refuse(_: PeerId, stream: MessageStream) -> None:
            nonlocal asked
            asked += 1
            term = (await stream.receive(Freeze)).term
            raise RejectedError(f"a repair of term {term} is under way", code=RefusalCode.TERM)

        async def complain() -> None:
            await asyncio.sleep(0.3)
            await liar.node.call(world.parties[0].peer_id, LOST, Lost(ROUND, (), (4,)), Done, timeout_s=300.0)

        if lies:
            liar.node.serve(FREEZE, refuse)
        complaint = liar.network.process.run(complain())
        begun_s = asyncio.get_running_loop().time()
        _, outcomes = await world.reduce(world.plan(LAYOUT), LAYOUT, list(vectors_of(5)), [1] * 5)
        took_s = asyncio.get_running_loop().time() - begun_s
        complaint.cancel()
        await asyncio.gather(complaint, return_exceptions=True)
        await world.close()
        told = f"{took_s:.0f} s, asked {asked} times: {outcomes[:4]}"
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes[:4]), told
        assert took_s < 20.0, told

    main()


@pytest.mark.parametrize("dead", [None, (), (0,)])
def test_a_freeze_without_a_repair_does_not_hold_the_round_up_for_ever(dead: tuple[int, ...] | None) -> None:
    """Frozen members hold nothing, and ask the coordinator, to which nobody is lost."""

    @virtually
    async def main() -> None:
        world = World(5, seed=1, up_bytes_per_s=RATE, down_bytes_per_s=RATE, latency_s=0.02)
        await world.start()
        liar = world.parties[1]

        async def freeze() -> None:
            await asyncio.sleep(0.5)
            for other in world.parties[2:]:
                with contextlib.suppress(RemoteError):  # it is told no
                    await liar.node.call(other.peer_id, FREEZE, Freeze(ROUND, 1, dead, ()), ChunkMap)

        freezing = liar.network.process.run(freeze() if dead is not None else asyncio.sleep(0.0))
        reducing = asyncio.ensure_future(world.reduce(world.plan(LAYOUT), LAYOUT, list(vectors_of(5)), [1] * 5))
        done, _ = await asyncio.wait({reducing}, timeout=1000.0)
        offences = [party.offences() for party in world.parties]
        if not done:
            for party in world.parties:
                party.all_reduce.retire()
        _, outcomes = await reducing
        await freezing
        await world.close()
        assert done, f"the round still runs after 1000 s; offences: {offences}"
        if dead != (0,):  # else the members may give the round up
            assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes), outcomes

    main()
