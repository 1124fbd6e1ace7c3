"""A vertical cut equals the unsplit model; a block that does not come costs its sample set, and nothing else."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import nn

from minga.core.errors import ConfigurationError, RejectedError
from minga.core.refusal_code import RefusalCode
from minga.core.spec.sections import OptimizerSection
from minga.simulation.virtual_time import run_virtual
from minga.split import exchange
from minga.split.computing.applying import BatchWork
from minga.split.computing.halves import converse
from minga.split.computing.parts import ModelPart, cross_entropy
from minga.split.sharing.vertical import BlockHalf, Blocks
from minga.split.wire.bodies import send_bodies
from minga.split.wire.messages import BATCH, BEGIN, BatchPlace, BatchReply, BatchRequest, BeginReply, BeginRequest
from minga.split.wire.tensors import TensorWire
from tests.worlds.seeds import seeds
from tests.worlds.sharing_world import LEARNING_RATE, add_client, shared_core, shared_spec
from tests.worlds.split_world import CLASSES, SplitPeer, SplitWorld, batch, values

COLUMNS = ((0, 1), (1, 4), (4, 6))
"""The features of each client."""
WIDTHS = (2, 4, 3)
WAIT_S = 5.0


def bottoms_and_top() -> tuple[list[nn.Module], nn.Module]:
    """One bottom for each block, of different widths, and the top for all."""
    torch.manual_seed(5)
    bottoms: list[nn.Module] = [
        nn.Sequential(nn.Linear(stop - start, width), nn.Tanh())
        for (start, stop), width in zip(COLUMNS, WIDTHS, strict=True)
    ]
    return bottoms, nn.Sequential(nn.Linear(sum(WIDTHS), 8), nn.GELU(), nn.Linear(8, CLASSES))


def whole_model(numbers: Sequence[int]) -> torch.Tensor:
    """The parameters of the unsplit model after these sample sets."""
    bottoms, top = bottoms_and_top()
    modules = nn.ModuleList([*bottoms, top])
    stepper = torch.optim.SGD(modules.parameters(), lr=LEARNING_RATE)
    for number in numbers:
        inputs, labels = batch(number)
        cut = [bottom(inputs[:, start:stop]) for bottom, (start, stop) in zip(bottoms, COLUMNS, strict=True)]
        stepper.zero_grad()
        cross_entropy(top(torch.cat(cut, dim=1)), labels).backward()  # type: ignore[no-untyped-call]
        stepper.step()
    return values(*modules)


class Vertical:
    """Three clients, of which the last has the labels, and a server."""

    def __init__(self, seed: int = 0) -> None:
        self.world = SplitWorld(shared_spec("vertical", blocks=3, wait_s=WAIT_S), seed)
        self.bottoms, self.top = bottoms_and_top()
        self.clients: list[SplitPeer] = []

    async def start(self) -> None:
        self.server = await self.world.serve(self.top, core=shared_core(self.world.spec, self.top))
        for block, bottom in enumerate(self.bottoms):
            self.clients.append(await add_client(self.world, bottom, block=block, up=20_000.0))

    async def train(self, block: int, numbers: Sequence[int], client: SplitPeer | None = None) -> None:
        """One client's part in these sample sets; what came of each stands in its `losses`."""
        peer = client or self.clients[block]
        assert isinstance(peer.half, BlockHalf)
        assert peer.exchange is not None
        for number in numbers:
            inputs, labels = batch(number)
            given = labels if block == 2 else None
            talk = peer.half.train(inputs[:, slice(*COLUMNS[block])], given, number)
            peer.losses[number] = await converse(talk, peer.exchange.ask)

    def run(self, block: int, numbers: Sequence[int], client: SplitPeer | None = None) -> asyncio.Task[None]:
        peer = client or self.clients[block]
        return peer.network.process.run(self.train(block, numbers, client))

    def trained(self) -> list[int]:
        """The sample sets of which each client says that it was trained; all have to say the same."""
        said = [[number for number, loss in each.losses.items() if loss is not None] for each in self.clients]
        assert said[0] == said[1] == said[2]
        return said[0]

    def found(self) -> torch.Tensor:
        return values(*self.bottoms, self.top)


def test_it_equals_the_unsplit_model() -> None:
    async def scene() -> None:
        case = Vertical()
        await case.start()
        await asyncio.gather(*(case.run(block, range(1, 31)) for block in range(3)))
        assert case.trained() == list(range(1, 31))
        assert torch.allclose(case.found(), whole_model(range(1, 31)), rtol=0.0, atol=1e-6)
        assert case.server.core is not None
        assert (case.server.core.applying.steps, case.server.core.samples) == (30, 240)
        # Predictions come together in the same way, and change nothing.
        inputs, _ = batch(7)
        asked = []
        for client, columns in zip(case.clients, COLUMNS, strict=True):
            assert client.half is not None
            assert client.exchange is not None
            talk = client.half.predict(inputs[:, slice(*columns)])
            asked.append(client.network.process.run(converse(talk, client.exchange.ask)))
        made = await asyncio.gather(*asked)
        cut = [bottom(inputs[:, slice(*columns)]) for bottom, columns in zip(case.bottoms, COLUMNS, strict=True)]
        for outputs in made:
            assert torch.allclose(outputs, case.top(torch.cat(cut, dim=1)), atol=1e-6)
        await case.world.close()

    run_virtual(scene(), limit_s=1000.0)


def test_connections_that_break_change_nothing() -> None:
    async def scene() -> None:
        chance = random.Random(11)
        case = Vertical()
        await case.start()
        tasks = [case.run(block, range(1, 21)) for block in range(3)]
        together = asyncio.gather(*tasks)
        while not together.done():
            await asyncio.wait(tasks, timeout=chance.uniform(0.05, 0.6))
            broken = chance.choice(case.clients)
            await broken.network.process.run(broken.session.node.disconnect(case.server.peer_id))
        await together
        trained = case.trained()
        assert len(trained) >= 15, "a set may be given up where nobody knows what became of it"
        assert torch.allclose(case.found(), whole_model(trained), rtol=0.0, atol=1e-6)
        await case.world.close()

    run_virtual(scene(), limit_s=1000.0)


@pytest.mark.parametrize("seed", seeds(2, of=12))
def test_a_block_that_does_not_come_costs_its_set_and_the_others_are_told(seed: int) -> None:
    """A client dies at any moment, comes again with a later sample set, and the model is that of the sets trained."""

    async def scene() -> None:
        chance = random.Random(f"vertical {seed}")
        case = Vertical(seed)
        await case.start()
        doomed = chance.randrange(3)
        tasks = [case.run(block, range(1, 31)) for block in range(3) if block != doomed]
        case.run(doomed, range(1, 31))
        await asyncio.sleep(chance.uniform(0.1, 0.8))
        dead = case.clients[doomed]
        case.world.internet.kill(dead.network)
        reached = max(dead.losses, default=0)
        await asyncio.sleep(chance.uniform(0.0, 3 * WAIT_S))
        again = await add_client(case.world, case.bottoms[doomed], block=doomed, key=dead.network.private_key)
        last = case.run(doomed, range(reached + 2, 31), again)
        await asyncio.gather(*tasks, last)
        case.clients[doomed].losses.update(again.losses)
        applied = {
            number
            for block, client in enumerate(case.clients)
            if block != doomed
            for number, loss in client.losses.items()
            if loss is not None
        }
        living = [client.losses for block, client in enumerate(case.clients) if block != doomed]
        assert {number for number, loss in living[0].items() if loss is None} == {
            number for number, loss in living[1].items() if loss is None
        }
        given_up = [number for number, loss in living[0].items() if loss is None]
        assert given_up or reached + 1 in applied, "it died while its answer was on its way"
        assert applied
        assert applied.isdisjoint(given_up)
        assert case.server.core is not None
        assert case.server.core.applying.steps == len(applied)
        assert not case.server.core.applying.half_done()
        await case.world.close()

    run_virtual(scene(), limit_s=2000.0)


def test_sets_that_strangers_make_up_keep_nobody_from_training() -> None:
    part = ModelPart([nn.Linear(8, CLASSES)], partial(torch.optim.SGD, lr=LEARNING_RATE), OptimizerSection())
    blocks, tickets = Blocks(part, cross_entropy, 2), itertools.count()

    def send(client: str, sample_set: int, block: int, *labels: torch.Tensor) -> list[bool]:
        place = BatchPlace(0, sample_set, block)
        work = BatchWork(next(tickets), client, "block", (torch.randn(5, 4),), labels, True, place)
        return [each.refusal is None for each in blocks.apply(work)]

    labels = torch.randint(0, CLASSES, (5,))
    for start in (1, 10):
        for sample_set in range(start, start + 3):
            assert send("a", sample_set, 0, labels) == []
            assert send("b", sample_set, 1) == [True, True]
        assert send("x", 2**53, 0) == []
        assert send("y", 2**53, 1) == [False, False], "nobody sent labels"
        assert send("y", 2**53 - start, 1) == []
    assert blocks.steps == 6


def test_who_asks_by_one_number_for_two_sets_has_one_of_them_and_harms_nobody() -> None:
    async def scene() -> None:
        case = Vertical()
        await case.start()
        node, wire = case.clients[0].session.node, TensorWire("float32", 1 << 20)
        begun = await case.clients[0].network.process.run(
            node.call(case.server.peer_id, BEGIN, BeginRequest(), BeginReply)
        )

        async def ask(number: int, sample_set: int) -> BatchReply:
            encoded, place = wire.encode([torch.zeros(8, WIDTHS[0])], ""), BatchPlace(0, sample_set, 0)
            async with node.open(case.server.peer_id, BATCH, bulk=True) as stream:
                await stream.send(BatchRequest("block", begun.session, number, encoded.headers, (), True, place))
                await send_bodies(stream, encoded.bodies, node.clockwork.timeout)
                await stream.finish()
                return await stream.receive(BatchReply)

        tasks = []
        for number, sample_set in ((1, 1), (2, 99), (1, 2)):
            tasks.append(case.clients[0].network.process.run(ask(number, sample_set)))
            await asyncio.sleep(0.5)
        with pytest.raises(RejectedError) as caught:
            await tasks[1]
        assert caught.value.code == RefusalCode.BUSY
        await asyncio.gather(*(case.run(block, (1, 2)) for block in (1, 2)))
        for client in case.clients[1:]:
            assert client.losses[1] is not None
            assert client.losses[2] is None
        assert case.server.core is not None
        assert case.server.core.applying.steps == 1
        assert await tasks[0] == await tasks[2], "the same request"
        await case.world.close()

    run_virtual(scene(), limit_s=500.0)


def test_a_client_is_as_patient_as_the_server_is_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ANSWER_S", 10.0)

    async def scene() -> None:
        case = Vertical()
        case.world.spec = shared_spec("vertical", blocks=3, wait_s=30.0)
        await case.start()
        assert case.clients[0].exchange is not None
        case.clients[0].exchange._patience_s = 8.0
        await case.run(0, [1])
        assert case.clients[0].losses == {1: None}, "told that it was given up, after more than patience_s"
        await case.world.close()

    run_virtual(scene(), limit_s=300.0)


def test_clients_that_do_not_agree_are_told_so() -> None:
    async def scene() -> None:
        case = Vertical()
        await case.start()
        first, second, third = case.clients
        for half in (first.half, second.half, third.half):
            assert isinstance(half, BlockHalf)
        inputs, labels = batch(1)

        def talk(client: SplitPeer, block: int, count: int, given: torch.Tensor | None) -> asyncio.Task[float | None]:
            assert isinstance(client.half, BlockHalf)
            assert client.exchange is not None
            half = client.half.train(inputs[:count, slice(*COLUMNS[block])], given)
            return client.network.process.run(converse(half, client.exchange.ask))

        for labelled, counts, why in (
            ((), (8, 8, 8), "0 clients sent labels"),
            ((0, 2), (8, 8, 8), "2 clients sent labels"),
            ((2,), (8, 8, 7), "other numbers of samples"),
        ):
            tasks = [
                talk(client, block, counts[block], labels if block in labelled else None)
                for block, client in enumerate(case.clients)
            ]
            for found in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(found, RejectedError)
                assert why in found.message
        # A second client with a block that is there already is refused; the set waits for the right one.
        other = await add_client(case.world, case.bottoms[0], block=0)
        waits = talk(first, 0, 8, None)
        await asyncio.sleep(1)
        assert isinstance(other.half, BlockHalf)
        other.half._train_set = 3
        with pytest.raises(RejectedError, match="another client"):
            await talk(other, 0, 8, None)
        results = await asyncio.gather(waits, talk(second, 1, 8, None), talk(third, 2, 8, labels))
        assert results[0] == results[1] == results[2] is not None
        await case.world.close()

    run_virtual(scene(), limit_s=1000.0)


def test_blocks_and_sets_are_checked_at_the_client() -> None:
    async def scene() -> None:
        case = Vertical()
        await case.start()
        for block in (None, 3, -1):
            with pytest.raises(ConfigurationError, match="blocks 0 to 2"):
                await add_client(case.world, case.bottoms[0], block=block)
        half = case.clients[0].half
        assert isinstance(half, BlockHalf)
        half._train_set = 4
        with pytest.raises(ConfigurationError, match="ascending"):
            next(half.train(torch.zeros(2, 1), None, 4))
        await case.world.close()

    run_virtual(scene(), limit_s=500.0)
