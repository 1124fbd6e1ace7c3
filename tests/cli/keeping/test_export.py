"""Fetching the state of a run for an export, in virtual swarms."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minga.cli.keeping import models
from minga.cli.keeping.models import newest_state
from minga.core.errors import UnreachableError
from minga.identity.keys.keys import Identity
from minga.simulation.swarm.simulated_peer import SimulatedPeer
from minga.simulation.swarm.swarm import Swarm
from minga.training.session import Session, SessionSettings
from minga.training.transfer.download import DownloadedState, download
from tests.worlds.swarm_tools import make_spec, virtually


async def looker(swarm: Swarm, entry: SimulatedPeer) -> Session:
    """Somebody who only looks on."""
    network = swarm.internet.host(name="looker")
    identity = Identity.from_seed(network.private_key)
    session = Session(network, identity, swarm.spec.run_id, SessionSettings("monitor"), [entry.network.address])
    await session.start()
    return session


@virtually
async def test_a_finished_run_is_exported_as_long_as_somebody_stays() -> None:
    swarm = Swarm(make_spec(8, training={"stop_after_steps": 3}))
    first, second = swarm.add(), swarm.add()
    await swarm.run_until_step(3)
    await asyncio.sleep(300.0)
    await second.session.close()
    session = await looker(swarm, first)
    snapshot = await newest_state(session, first.replica.check)
    assert snapshot.step == 3
    await session.close()
    await swarm.close()


@virtually
async def test_an_export_takes_no_old_state_that_is_still_ready_for_newcomers() -> None:
    swarm = Swarm(make_spec(8, training={"stop_after_steps": 4}))
    first = swarm.add()
    await swarm.run_until_step(1)
    session = await looker(swarm, first)
    early = await newest_state(session, first.replica.check)
    await swarm.run_until_step(4)
    assert early.step < 4
    assert (await newest_state(session, first.replica.check)).step == 4
    await session.close()
    await swarm.close()


def test_peers_that_go_on_or_leave_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = iter(range(models.ATTEMPTS - 1))

    async def fail_at_first(*arguments: Any, **options: Any) -> DownloadedState:
        if next(fails, None) is not None:
            raise UnreachableError("they were leaving")
        return await download(*arguments, **options)

    monkeypatch.setattr(models, "download", fail_at_first)

    @virtually
    async def play() -> None:
        swarm = Swarm(make_spec(8))
        peer = swarm.add()
        await swarm.run_until_step(2)
        session = await looker(swarm, peer)
        assert (await newest_state(session, peer.replica.check)).step >= 2
        monkeypatch.setattr(models, "download", refuse)
        with pytest.raises(UnreachableError, match="nobody"):
            await newest_state(session, peer.replica.check)
        await session.close()
        await swarm.close()

    play()


async def refuse(*_: Any, **__: Any) -> DownloadedState:
    """Nobody serves anything."""
    raise UnreachableError("nobody")
