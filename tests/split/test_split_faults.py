"""Connections, clients and servers that break at any moment: nothing is applied twice, and nobody is held up."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from torch import nn

from minga.core.rate_cap import RateCap
from minga.simulation.virtual_time import run_virtual
from tests.worlds.seeds import seeds, soaked
from tests.worlds.split_world import (
    RecordingTop,
    SplitPeer,
    SplitWorld,
    layers,
    split_spec,
    train_whole,
    values,
)

BATCHES = 12


def parts(variant: str) -> tuple[nn.Module, nn.Module, nn.Module | None]:
    """Bottom, top and head of one model."""
    modules = layers()
    last = None if variant == "vanilla" else 5
    head = None if last is None else nn.Sequential(*modules[last:])
    return nn.Sequential(*modules[:2]), nn.Sequential(*modules[2:last]), head


def applied(server: SplitPeer) -> list[tuple[str, bytes]]:
    """Which batches a server applied: client and content, in order."""
    assert server.core is not None
    assert isinstance(server.core.applying, RecordingTop)
    return [(work.client, work.tensors[0].detach().numpy().tobytes()) for work in server.core.applying.applied]


@pytest.mark.parametrize("seed", seeds(1, of=12))
@pytest.mark.parametrize("variant", ["vanilla", "u-shaped"])
def test_connections_that_break_at_any_moment_change_nothing(variant: str, seed: int) -> None:
    """Requests and answers are lost in every part of an exchange, and the result is that of a quiet network."""

    async def scene() -> tuple[torch.Tensor, list[float | None], int]:
        chance = random.Random(f"{variant} {seed}")
        bottom, top, head = parts(variant)
        world = SplitWorld(split_spec(variant), seed)
        server = await world.serve(top)
        client = await world.client(bottom, head, up=4_000.0)
        world.internet.set_rate(server.network, 4_000.0, None)
        task = world.train(client, range(BATCHES))
        while not task.done():
            await asyncio.wait([task], timeout=chance.uniform(0.05, 0.6))
            broken = chance.choice([server, client])
            other = client if broken is server else server
            await broken.network.process.run(broken.session.node.disconnect(other.peer_id))
        await task
        contents = applied(server)
        assert len(contents) == len(set(contents)) == BATCHES
        await world.close()
        assert head is not None or variant == "vanilla"
        found = values(bottom, top, *([] if head is None else [head]))
        return found, list(client.losses.values()), len(client.said("split.retried"))

    found, losses, retried = run_virtual(scene(), limit_s=3000.0)
    whole = layers()
    assert losses == pytest.approx(train_whole(whole, range(BATCHES)), abs=1e-6)
    assert torch.allclose(found, values(*whole), rtol=0.0, atol=1e-6)
    assert retried >= BATCHES // 3, "the faults hit"


@pytest.mark.parametrize("seed", seeds(1, of=12))
@pytest.mark.parametrize("variant", [soaked("vanilla"), "u-shaped"])
def test_a_client_that_is_killed_at_any_moment_holds_nobody_up(variant: str, seed: int) -> None:
    async def scene() -> None:
        chance = random.Random(f"client {variant} {seed}")
        bottom, top, head = parts(variant)
        world = SplitWorld(split_spec(variant), seed)
        server = await world.serve(top)
        first = await world.client(bottom, head, up=20_000.0)
        other_bottom, _, other_head = parts(variant)
        second = await world.client(other_bottom, other_head, up=20_000.0)
        doomed, task = world.train(first, range(10_000)), world.train(second, range(100, 115))
        await asyncio.sleep(chance.uniform(0.2, 3.0))
        before = len(applied(server))
        assert before > 0
        world.internet.kill(first.network)
        started = asyncio.get_running_loop().time()
        await task
        assert asyncio.get_running_loop().time() - started < 7.5, "15 batches take about as long as without the other"
        assert all(loss is not None for loss in second.losses.values())
        contents = applied(server)
        assert len(contents) == len(set(contents))
        await asyncio.gather(doomed, return_exceptions=True)
        # It comes again with its key, and goes on.
        third_bottom, _, third_head = parts(variant)
        third = await world.client(third_bottom, third_head, key=first.network.private_key)
        await world.train(third, range(200, 205))
        assert all(loss is not None for loss in third.losses.values())
        await asyncio.sleep(2 * world.spec.split.wait_s)
        assert server.core is not None
        assert not server.core.applying.half_done(), "what it left half done was dropped"
        assert server.service is not None
        assert server.service.waiting == 0
        await world.close()

    run_virtual(scene(), limit_s=3000.0)


@pytest.mark.parametrize("seed", seeds(1, of=12))
@pytest.mark.parametrize("variant", [soaked("vanilla"), "u-shaped"])
def test_a_server_that_is_killed_and_comes_again_at_any_moment(variant: str, seed: int) -> None:
    """With its top as after some batch; what it has applied of each client, it cannot know."""

    async def scene() -> None:
        chance = random.Random(f"server {variant} {seed}")
        world = SplitWorld(split_spec(variant), seed)
        tops = [parts(variant)[1]]
        server = await world.serve(tops[0])
        clients = []
        for _ in range(2):
            bottom, _, head = parts(variant)
            clients.append(await world.client(bottom, head, up=20_000.0))
        tasks = [world.train(client, range(100 * k, 100 * k + 40)) for k, client in enumerate(clients)]
        for _ in range(3):
            await asyncio.sleep(chance.uniform(0.5, 2.0))
            weights = {name: value.clone() for name, value in tops[-1].state_dict().items()}
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            contents = applied(server)
            assert len(contents) == len(set(contents))
            world.internet.kill(server.network)
            await asyncio.sleep(chance.uniform(0.0, 3.0))
            tops.append(parts(variant)[1])
            tops[-1].load_state_dict(weights)
            server = await world.serve(tops[-1])
        await asyncio.gather(*tasks)
        given_up = [sum(loss is None for loss in client.losses.values()) for client in clients]
        assert all(count <= 3 for count in given_up), "at most one batch for each end of the server"
        for client, count in zip(clients, given_up, strict=True):
            assert client.half is not None
            assert client.half.part.steps == 40 - count
            assert len(client.said("split.given_up")) >= count
        await world.close()

    run_virtual(scene(), limit_s=3000.0)


def test_batches_of_several_clients_overlap_on_the_way() -> None:
    """With uploads that take a second each, four clients are served in little more time than one."""

    async def seconds(count: int) -> float:
        world = SplitWorld(split_spec("vanilla"))
        await world.serve(parts("vanilla")[1])
        clients = [await world.client(parts("vanilla")[0], up=8_000.0) for _ in range(count)]
        for client in clients:
            await world.train(client, [0], samples=256)  # connect, begin
        started = asyncio.get_running_loop().time()
        await asyncio.gather(*(world.train(client, range(1, 6), samples=256) for client in clients))
        passed = asyncio.get_running_loop().time() - started
        await world.close()
        return passed

    alone, together = run_virtual(seconds(1), limit_s=600.0), run_virtual(seconds(4), limit_s=600.0)
    assert alone > 5.0, "8 KiB of activations at 8 kB/s, five times"
    assert together < 1.2 * alone


def test_full_room_holds_clients_back_and_all_come_to_their_turn() -> None:
    async def scene() -> None:
        size = 4 * 256 * 8 + 8 * 256
        world = SplitWorld(split_spec("vanilla"))
        server = await world.serve(parts("vanilla")[1], room_bytes=2 * size)
        clients = [await world.client(parts("vanilla")[0], up=20_000.0) for _ in range(5)]
        tasks = [world.train(client, range(10 * k, 10 * k + 4), samples=256) for k, client in enumerate(clients)]
        most = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.02)
            assert server.service is not None
            most = max(most, server.service.room.taken_bytes)
        for task in tasks:
            task.result()
        assert size <= most <= 2 * size
        assert len(applied(server)) == 20
        assert all(loss is not None for client in clients for loss in client.losses.values())
        await world.close()

    run_virtual(scene(), limit_s=600.0)


def test_a_cap_of_uploads_holds_for_activations() -> None:
    async def scene() -> None:
        world = SplitWorld(split_spec("vanilla"))
        await world.serve(parts("vanilla")[1])
        client = await world.client(parts("vanilla")[0], max_upload=RateCap.parse("160kbit", "max_upload"))
        await world.train(client, [0], samples=256)
        loop = asyncio.get_running_loop()
        sent, started = client.session.node.traffic()[0], loop.time()
        await world.train(client, range(1, 11), samples=256)
        sent, passed = client.session.node.traffic()[0] - sent, loop.time() - started
        assert sent >= 10 * (4 * 256 * 8 + 8 * 256), "activations and labels"
        assert sent / passed < 1.1 * 20_000.0
        await world.close()

    run_virtual(scene(), limit_s=600.0)
