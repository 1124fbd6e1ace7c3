"""A server that dies is followed by another, nothing is applied twice, and of two that serve one gives way."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest
import torch

from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.network.interface import PeerId
from minga.simulation.virtual_time import run_virtual
from minga.split.standby.transfer import fetch
from minga.training.record_kinds import SplitServing
from tests.worlds.seeds import seeds
from tests.worlds.sharing_world import STANDBY_KEYS, add_client, add_server, shared_spec, successions, two_parts
from tests.worlds.split_world import SERVER_KEY, RecordingTop, SplitPeer, SplitWorld, values

EVERY = 5
adam = partial(torch.optim.Adam, lr=0.01)


def contents(server: SplitPeer) -> list[bytes]:
    """The batches that a server applied, by their activations, in order."""
    assert server.core is not None
    assert isinstance(server.core.applying, RecordingTop)
    return [work.tensors[0].detach().numpy().tobytes() for work in server.core.applying.applied]


async def until(is_so: object, limit_s: float = 120.0) -> None:
    """Wait for something to become so."""
    assert callable(is_so)
    async with asyncio.timeout(limit_s):
        while not is_so():
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("seed", seeds(2, of=24))
def test_a_standby_goes_on_when_the_server_dies_at_any_moment(seed: int) -> None:
    async def scene() -> None:
        chance = random.Random(f"server {seed}")
        world = SplitWorld(shared_spec("vanilla", standbys=2, standby_every=EVERY), seed)
        server = await add_server(world, SERVER_KEY, adam)
        standbys = [await add_server(world, key, adam, stands_by=True) for key in STANDBY_KEYS]
        clients = [await add_client(world, two_parts()[0], up=20_000.0) for _ in range(2)]
        tasks = [world.train(each, range(1000 * index, 1000 * index + 40)) for index, each in enumerate(clients)]
        await until(lambda: all(successions[each].checkpoint for each in standbys))
        await asyncio.sleep(chance.uniform(0.0, 2.0))
        world.internet.kill(server.network)
        await asyncio.gather(*tasks)
        serving = [each for each in standbys if successions[each].service is not None]
        assert len(serving) == 1, "one took over, and only one"
        (event,) = serving[0].said("split.took_over")
        begun = int(str(event.fields["step"]))
        before, after = contents(server), contents(serving[0])
        assert len(before) - begun <= 2 * EVERY, "at most what lies between two checkpoints, and one that travels"
        lineage = before[:begun] + after
        assert len(lineage) == len(set(lineage)), "nothing was applied twice"
        assert serving[0].core is not None
        assert serving[0].core.applying.steps == len(lineage)
        # Each client says how many of its requests the new top lacks, and has a loss for all but what was on its way.
        lost = sum(int(str(event.fields["count"])) for each in clients for event in each.said("split.lost"))
        answered = sum(loss is not None for each in clients for loss in each.losses.values())
        given_up = 80 - answered
        assert given_up <= len(clients)
        assert len(lineage) >= answered - lost
        # The other one stands by for the new server.
        await until(
            lambda: any(e.fields["peer"] == serving[0].peer_id for e in _other(standbys, serving).said("split.fetched"))
        )
        await world.close()

    run_virtual(scene(), limit_s=3000.0)


def _other(standbys: list[SplitPeer], serving: list[SplitPeer]) -> SplitPeer:
    return next(each for each in standbys if each not in serving)


def test_a_checkpoint_brings_the_top_its_optimizer_and_what_was_applied_of_each_client() -> None:
    async def scene() -> None:
        world = SplitWorld(shared_spec("vanilla", standbys=1, standby_every=1))
        server = await add_server(world, SERVER_KEY, adam)
        standby = await add_server(world, STANDBY_KEYS[0], adam, stands_by=True)
        client = await add_client(world, two_parts()[0])
        await world.train(client, range(10))
        assert server.core is not None
        assert standby.core is not None
        await until(lambda: successions[standby].step == 10)
        checkpoint = successions[standby].checkpoint
        assert checkpoint is not None
        checkpoint.put(standby.core)
        ours, theirs = server.core.applying.capture(), standby.core.applying.capture()
        assert ours.has_bytes_of(theirs)
        assert ours.scalars == theirs.scalars
        assert any(entry.name.endswith("exp_avg") for entry in theirs.tensors)
        assert standby.core.sessions.states() == server.core.sessions.states()
        assert standby.core.samples == server.core.samples == 80
        await world.close()

    run_virtual(scene(), limit_s=500.0)


def test_of_two_that_serve_the_one_with_fewer_steps_gives_way() -> None:
    """The standby takes over while it sees nobody; when the line is whole again, one goes on."""

    async def scene() -> None:
        world = SplitWorld(shared_spec("vanilla", standbys=1, standby_every=EVERY))
        server = await add_server(world, SERVER_KEY)
        standby = await add_server(world, STANDBY_KEYS[0], stands_by=True)
        client = await add_client(world, two_parts()[0])
        await world.train(client, range(10))
        for other in (server, client):
            world.internet.cut(standby.network, other.network)
        await until(lambda: successions[standby].service is not None)
        await world.train(client, range(10, 20))
        for other in (server, client):
            world.internet.restore(standby.network, other.network)
        await until(lambda: successions[standby].service is None)
        assert [event.fields["peer"] for event in standby.said("split.gave_way")] == [server.peer_id]
        assert not server.said("split.gave_way")
        await until(lambda: successions[standby].step == 20)
        await world.train(client, range(20, 25))
        assert len(contents(server)) == len(set(contents(server))) == 25
        await world.close()

    run_virtual(scene(), limit_s=1000.0)


def test_a_server_that_comes_back_without_its_top_gives_way_to_the_one_that_went_on() -> None:
    async def scene() -> None:
        world = SplitWorld(shared_spec("vanilla", standbys=1, standby_every=EVERY))
        server = await add_server(world, SERVER_KEY)
        standby = await add_server(world, STANDBY_KEYS[0], stands_by=True)
        client = await add_client(world, two_parts()[0])
        await world.train(client, range(10))
        world.internet.kill(server.network)
        await world.train(client, range(10, 20))
        again = await add_server(world, SERVER_KEY)
        await until(lambda: successions[again].service is None)
        await until(lambda: successions[again].step >= 10)
        await world.train(client, range(20, 30))
        assert all(loss is not None for loss in client.losses.values())
        assert not standby.said("split.gave_way")
        # And the other way round: what came back stands by, and follows.
        world.internet.kill(standby.network)
        await world.train(client, range(30, 40))
        assert again.said("split.took_over")
        assert torch.isfinite(values(*again.core.applying.part.modules)).all()  # type: ignore[union-attr]
        await world.close()

    run_virtual(scene(), limit_s=1000.0)


def test_who_is_no_server_gets_no_checkpoint_and_who_has_none_takes_over_nothing() -> None:
    async def scene() -> None:
        world = SplitWorld(shared_spec("vanilla", standbys=1))
        server = await add_server(world, SERVER_KEY)
        client = await add_client(world, two_parts()[0])
        await world.train(client, range(3))

        async def ask() -> None:
            assert server.core is not None
            await fetch(client.session.node, PeerId(server.peer_id), None, server.core.applying.check)

        with pytest.raises(RejectedError) as refusal:
            await client.network.process.run(ask())
        assert refusal.value.code == RefusalCode.ACCESS
        world.internet.kill(server.network)
        standby = await add_server(world, STANDBY_KEYS[0], stands_by=True)
        await asyncio.sleep(60)
        assert successions[standby].service is None
        assert standby.session.board.get(standby.peer_id, SplitServing) is None
        await world.close()

    run_virtual(scene(), limit_s=1000.0)


def test_a_top_of_another_kind_is_refused_before_its_bytes_are_read() -> None:
    async def scene() -> None:
        world = SplitWorld(shared_spec("vanilla", standbys=1, standby_every=EVERY))
        await add_server(world, SERVER_KEY)
        standby = await add_server(world, STANDBY_KEYS[0], stands_by=True)
        assert standby.core is not None
        other = torch.nn.Linear(2, 2)
        standby.core.applying.part.modules = (other,)  # type: ignore[attr-defined]
        await until(lambda: standby.said("split.not_fetched"))
        assert "cannot be used here" in str(standby.said("split.not_fetched")[0].fields["why"])
        assert successions[standby].checkpoint is None
        await world.close()

    run_virtual(scene(), limit_s=500.0)
