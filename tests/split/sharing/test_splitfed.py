"""SplitFed v1 and v2 equal their formulas, with the run's own averaging between the clients, whoever dies when."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from minga.simulation.virtual_time import run_virtual
from tests.worlds.seeds import seeds
from tests.worlds.sharing_world import (
    CountedCopies,
    FedClient,
    FedJudge,
    add_fed_client,
    shared_core,
    shared_spec,
    two_parts,
)
from tests.worlds.split_world import SplitWorld, values

ROUNDS = 3


class Applied:
    """Which client's batch the server applied, in order; with the round of the copies if there are some."""

    def __init__(self, applying: object) -> None:
        self.copies = applying if isinstance(applying, CountedCopies) else None
        self.order: list[str] = []

    def log(self) -> list[tuple[str, int]]:
        return [(client, 0) for client in self.order] if self.copies is None else self.copies.log


def scene(
    variant: str, seed: int, samples: tuple[int, ...], *, kills: bool
) -> tuple[FedJudge, torch.Tensor, list[FedClient]]:
    async def play() -> tuple[FedJudge, torch.Tensor, list[FedClient]]:
        chance = random.Random(f"{variant} {seed}")
        spec = shared_spec(variant, training={"target_batch_size": 3 * sum(samples)})
        world = SplitWorld(spec, seed)
        _, top = two_parts()
        core = shared_core(spec, top)
        applied = Applied(core.applying)
        server = await world.serve(top, core=core)
        assert server.service is not None
        server.service.on_finished = lambda each: applied.order.append(each.work.client) if each.applied else None
        clients = [await add_fed_client(world, each) for each in samples]
        tasks = [
            each.peer.network.process.run(each.train(1000 * index, ROUNDS, chance.uniform(0.05, 0.2)))
            for index, each in enumerate(clients)
        ]
        if kills:
            while not all(each.part.replica.lineage.is_founded for each in clients):
                await asyncio.sleep(0.05)  # a founder that dies before another has its state takes the run along
            await asyncio.sleep(chance.uniform(0.3, 3.0))
            world.internet.kill(clients[-1].peer.network)
        living = clients[:-1] if kills else clients
        async with asyncio.timeout(600):
            while not all(each.is_done for each in living):
                await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        judge = FedJudge({each.peer.peer_id: each for each in clients}, copies=variant == "splitfed-1")
        if kills:
            _settle_the_dead(clients)
        for client, round in applied.log():
            judge.apply(client, round)
        core.applying.settle()
        judge.end_round()
        await world.close()
        return judge, values(top), living

    return run_virtual(play(), limit_s=2000)


def _settle_the_dead(clients: list[FedClient]) -> None:
    """Whether the last batches of the dead client counted is what the step of the others says: its members."""
    *living, dead = clients
    counted = [event.fields for event in living[0].peer.said("step.applied")]
    members = {int(str(fields["step"])) - 1: int(str(fields["members"])) for fields in counted}
    dead.log = [(number, begun, taken and members.get(begun, 0) == len(clients)) for number, begun, taken in dead.log]


@pytest.mark.parametrize("variant", ["splitfed-1", "splitfed-2"])
def test_it_equals_its_formula(variant: str) -> None:
    judge, top, clients = scene(variant, 0, (2, 8, 5), kills=False)
    assert torch.allclose(top, values(judge.top), atol=1e-6)
    for client in clients:
        assert client.part.round >= ROUNDS
        assert torch.allclose(values(*client.part.modules), values(judge.bottom(client.part.round)), atol=1e-6)


@pytest.mark.parametrize("seed", seeds(1, of=12))
@pytest.mark.parametrize("variant", ["splitfed-1", "splitfed-2"])
def test_it_equals_its_formula_when_a_client_dies_in_a_round(variant: str, seed: int) -> None:
    judge, top, clients = scene(variant, seed, (2, 8, 5), kills=True)
    assert torch.allclose(top, values(judge.top), atol=1e-6)
    for client in clients:
        assert torch.allclose(values(*client.part.modules), values(judge.bottom(client.part.round)), atol=1e-6)
