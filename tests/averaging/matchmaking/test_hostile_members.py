"""Members and strangers that misbehave while a group forms: no step is stopped, and no leader ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import pytest

from minga.averaging.matchmaking.attempt import JOIN, PROBE
from minga.averaging.messages import FromLeader, Join, Redirect, Report, SignedPlan, Update
from minga.core.aio import end
from minga.core.errors import RemoteError
from minga.network.interface import PeerId
from minga.network.rpc.stream import MessageStream
from tests.averaging.matchmaking.test_formation import Camp, Member, Party, join_of
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import virtually

Act = tuple[Party, Coroutine[Any, Any, None]]


async def sit_in(guest: Party, victim: Member, make: Callable[[], Join]) -> None:
    """Be in each group that the victim leads, with such a join."""
    while True:
        await asyncio.sleep(0.1)
        with contextlib.suppress(RemoteError):
            async with guest.node.open(victim.party.peer_id, JOIN) as stream:
                await stream.send(make())
                while not isinstance(await stream.receive_one_of(FromLeader), Redirect | SignedPlan):
                    pass


async def steps_of(
    camp: Camp, misbehave: Callable[[Member], list[Act]], until_then: Sequence[asyncio.Task[None]] = ()
) -> list[int]:
    """How many steps the members take in 20 s, while what `misbehave` returns for each of them runs."""
    await camp.begin()
    await camp.until_step(1)
    for member in camp.members:
        for party, act in misbehave(member):
            party.network.process.run(act)
    await asyncio.sleep(20.0)
    steps = [member.step for member in camp.members]
    await end(*until_then)
    await camp.close()
    return steps


def test_numbers_that_nobody_can_be_raised_to_stop_no_step() -> None:
    """The first raises the leader's own promise by 900: the second one's 1,800 must not count for that."""

    @virtually
    async def main() -> None:
        camp = Camp(5, batch=100)
        above = (900, 1800)
        liars = [camp.stranger() for _ in above]

        def join(liar: Party, victim: Member, more: int) -> Join:
            promised = victim.formation.position.promised  # `Prepare` tells it to members with a low number
            return join_of(liar, step=victim.step, ballot=promised + more)

        def misbehave(member: Member) -> list[Act]:
            pairs = zip(liars, above, strict=True)
            return [(liar, sit_in(liar, member, partial(join, liar, member, more))) for liar, more in pairs]

        assert min(await steps_of(camp, misbehave)) > 6

    main()


def test_machines_that_stall_by_turns_do_not_stop_the_others() -> None:
    """At each moment one of them is quiet, as among many overloaded machines one always may be."""

    @virtually
    async def main() -> None:
        camp = Camp(5, batch=100)
        guests = [camp.stranger() for _ in range(3)]

        async def stall(guest: Party, first_s: float) -> None:
            await asyncio.sleep(first_s)
            try:
                while True:
                    camp.internet.stall(guest.network)
                    await asyncio.sleep(1.1)
                    camp.internet.resume(guest.network)
                    await asyncio.sleep(0.4)
            finally:
                camp.internet.resume(guest.network)

        def misbehave(member: Member) -> list[Act]:
            return [(guest, sit_in(guest, member, lambda g=guest: join_of(g, step=member.step))) for guest in guests]

        stalling = [asyncio.ensure_future(stall(guest, 5.0 + 0.5 * number)) for number, guest in enumerate(guests)]
        steps = await steps_of(camp, misbehave, stalling)
        assert min(steps) > 3, steps

    main()


async def take_in(_: PeerId, stream: MessageStream) -> None:
    await stream.receive(Join)
    while True:
        await stream.receive(Update)


async def call_away(liar: Party, victim: Member, seats: int) -> None:
    while True:
        await asyncio.sleep(0.1)
        with contextlib.suppress(RemoteError):
            await liar.node.call(victim.party.peer_id, PROBE, join_of(liar, step=victim.step, seats=seats), Redirect)


def test_a_stranger_that_says_it_leads_many_stops_no_step() -> None:
    """It takes all in that are sent to it, lives, and closes no group."""

    @virtually
    async def main() -> None:
        camp = Camp(5, batch=100)
        liar = camp.stranger()
        liar.node.serve(JOIN, take_in)
        steps = await steps_of(camp, lambda member: [(liar, call_away(liar, member, 999))])
        assert min(steps) > 6, steps

    main()


@pytest.mark.parametrize("micro_batch_s", [soaked(1e-300), 5e-324])
def test_no_report_ends_a_leader(micro_batch_s: float) -> None:
    """Micro-batches that take no time made numbers that have no floor, or that no message can hold."""
    report = Report(samples=1, rate=1.0, micro_batch=1000, busy_s=0.1, micro_batch_s=micro_batch_s)

    @virtually
    async def main() -> None:
        camp = Camp(3, batch=60)
        liar = camp.stranger()
        await camp.start()
        lives = []
        for member in camp.members:
            member.party.network.process.run(member.train())
            lives.append(member.party.network.process.run(member.live()))
        await camp.until_step(1)
        for member in camp.members:
            make = partial(lambda m: join_of(liar, step=m.step, report=report), member)
            liar.network.process.run(sit_in(liar, member, make))
        await asyncio.sleep(30.0)
        ended = [repr(life.exception()) for life in lives if life.done()]
        await camp.close()
        assert not ended, ended

    main()
