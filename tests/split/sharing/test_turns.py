"""Round-robin: clients train in turns, the part goes from one to the next, and a client that dies loses its turn."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from minga.core.refusal_code import RefusalCode
from minga.core.spec.sections import OptimizerSection
from minga.simulation.virtual_time import run_virtual
from minga.split.computing.applying import BatchOutcome, BatchWork
from minga.split.computing.halves import Question, converse
from minga.split.computing.parts import ModelPart, cross_entropy
from minga.split.server.service import SplitService
from minga.split.sharing.round_robin import TurnHalf, Turns, WrongPartError, pack, unpack
from minga.split.wire.messages import Kind
from minga.split.wire.tensors import EncodedTensors
from tests.worlds.seeds import seeds
from tests.worlds.sharing_world import LEARNING_RATE, add_client, shared_core, shared_spec, two_parts
from tests.worlds.split_world import SplitPeer, SplitWorld, batch, values

TURN, WAIT_S = 4, 5.0


class Round:
    """A server and some clients, whose bottoms begin with other values; `applied` are their batches in order."""

    def __init__(self, clients: int, seed: int = 0, *, hand_over: bool = True) -> None:
        self.world = SplitWorld(shared_spec("round-robin", turn_batches=TURN, wait_s=WAIT_S, hand_over=hand_over), seed)
        _, self.top = two_parts()
        self.bottoms = [two_parts(seed=10 + index)[0] for index in range(clients)]
        self.clients: list[SplitPeer] = []
        self.applied: list[int] = []

    async def start(self) -> None:
        self.server = await self.world.serve(self.top, core=shared_core(self.world.spec, self.top))
        assert isinstance(self.server.service, SplitService)
        self.server.service.on_finished = lambda each: (
            self.applied.append(self.index(each.work.client)) if each.applied else None
        )
        for bottom in self.bottoms:
            self.clients.append(await add_client(self.world, bottom, up=20_000.0))

    def index(self, client: str) -> int:
        return [each.peer_id for each in self.clients].index(client)  # type: ignore[arg-type]

    def run(self, index: int, numbers: Sequence[int]) -> asyncio.Task[None]:
        return self.world.train(self.clients[index], numbers)


def judge(order: Sequence[int], bottoms: list[nn.Module], *, hand_over: bool) -> torch.Tensor:
    """The same as a plain loop: whose turn it is goes on with the bottom of the one before, or with its own."""
    _, top = two_parts()
    done, before = [0] * len(bottoms), order[0]
    for client in order:
        if client != before and hand_over:
            bottoms[client].load_state_dict(bottoms[before].state_dict())
        before = client
        model = nn.Sequential(bottoms[client], top)
        stepper = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        inputs, labels = batch(1000 * client + done[client])
        done[client] += 1
        cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        stepper.step()
        model.zero_grad()
    return values(*bottoms, top)


@pytest.mark.parametrize("hand_over", [True, False])
def test_clients_train_in_turns_and_it_equals_a_plain_loop(hand_over: bool) -> None:
    async def scene() -> None:
        case = Round(3, hand_over=hand_over)
        await case.start()
        await asyncio.gather(*(case.run(index, range(1000 * index, 1000 * index + 3 * TURN)) for index in range(3)))
        turns = [case.applied[start : start + TURN] for start in range(0, 9 * TURN, TURN)]
        assert all(len(set(turn)) == 1 for turn in turns), "nobody trains in the turn of another"
        assert [turn[0] for turn in turns] == [turns[0][0], turns[1][0], turns[2][0]] * 3
        assert {turn[0] for turn in turns} == {0, 1, 2}
        expected = judge(case.applied, [two_parts(seed=10 + i)[0] for i in range(3)], hand_over=hand_over)
        assert torch.allclose(values(*case.bottoms, case.top), expected, rtol=0.0, atol=1e-6)
        await case.world.close()

    run_virtual(scene(), limit_s=1000.0)


@pytest.mark.parametrize("seed", seeds(2, of=12))
def test_a_client_that_dies_loses_its_turn_and_the_next_goes_on(seed: int) -> None:
    async def scene() -> None:
        chance = random.Random(f"turns {seed}")
        case = Round(3, seed)
        await case.start()
        tasks = [case.run(index, range(1000 * index, 1000 * index + 4 * TURN)) for index in range(3)]
        await asyncio.sleep(chance.uniform(0.1, 1.5))
        doomed = chance.randrange(3)
        case.world.internet.kill(case.clients[doomed].network)
        living = [index for index in range(3) if index != doomed]
        async with asyncio.timeout(4 * TURN * WAIT_S):
            await asyncio.gather(*(tasks[index] for index in living))
        for index in living:
            assert all(loss is not None for loss in case.clients[index].losses.values())
            assert case.applied.count(index) == 4 * TURN
        assert case.server.core is not None
        assert case.server.core.applying.steps == len(case.applied)
        await case.world.close()

    run_virtual(scene(), limit_s=1000.0)


def test_a_client_that_pauses_for_too_long_loses_its_turn_is_told_and_comes_again() -> None:
    async def scene() -> None:
        case = Round(2)
        await case.start()
        await case.run(0, range(2))
        other = case.run(1, range(1000, 1000 + TURN))
        await asyncio.sleep(2 * WAIT_S)
        assert other.done(), "it did not have to wait for the first one's return"
        await case.run(0, range(2, 6))
        losses = list(case.clients[0].losses.values())
        assert [loss is None for loss in losses] == [False, False, True, False, False, False]
        assert len(case.clients[0].said("split.given_up")) == 1
        # Its bottom is that of the other one, and what it trained since; then it ends, in the middle of its turn.
        half, exchange = case.clients[0].half, case.clients[0].exchange
        assert isinstance(half, TurnHalf)
        assert exchange is not None
        await case.clients[0].network.process.run(converse(half.leave(), exchange.ask))
        await case.run(1, [2000])
        assert case.clients[1].losses[2000] is not None
        await case.world.close()

    run_virtual(scene(), limit_s=1000.0)


def test_who_asks_for_its_turn_again_and_again_and_never_trains_loses_it() -> None:
    async def ask_for_ever(client: SplitPeer) -> None:
        while True:
            await client.exchange.ask(Question("turn", EncodedTensors()))
            await asyncio.sleep(WAIT_S / 5)

    async def play() -> list[int]:
        round = Round(2)
        await round.start()
        hog = round.clients[0]
        asking = hog.network.process.run(ask_for_ever(hog))
        await asyncio.sleep(1.0)
        async with asyncio.timeout(20 * WAIT_S):
            await round.run(1, range(2 * TURN))
        asking.cancel()
        await round.world.close()
        return round.applied

    assert run_virtual(play()) == [1] * 2 * TURN


def test_who_has_waited_long_for_its_turn_still_waits_for_a_server_whose_connection_broke() -> None:
    async def scene() -> None:
        case = Round(2)
        case.world.spec = shared_spec("round-robin", turn_batches=10**6, wait_s=30.0)
        await case.start()
        slow = case.clients[1]
        assert slow.exchange is not None
        slow.exchange._patience_s = 8.0
        case.world.internet.set_rate(case.clients[0].network, 2_000.0, None)  # a few batches, and as long a turn
        busy = case.run(0, range(10**6))
        await asyncio.sleep(1.0)
        waits = case.run(1, range(5))
        await asyncio.sleep(10.0)
        assert not waits.done()
        await slow.network.process.run(slow.session.node.disconnect(case.server.peer_id))
        await asyncio.sleep(5.0)
        assert not waits.done()
        busy.cancel()
        async with asyncio.timeout(300.0):
            await waits
        await case.world.close()

    run_virtual(scene(), limit_s=1000.0)


class Turned:
    """Whoever has the top, and what each client asks of it."""

    def __init__(self, bottom: nn.Module | None = None) -> None:
        part = ModelPart([two_parts()[1]], partial(torch.optim.SGD, lr=LEARNING_RATE), OptimizerSection())
        self.turns, self._tickets = Turns(part, cross_entropy, TURN, bottom), itertools.count()

    def ask(self, client: str, kind: Kind, part: nn.Module | None = None) -> list[BatchOutcome]:
        tensors, digest = ((), "") if part is None else pack(part)
        return list(self.turns.apply(BatchWork(next(self._tickets), client, kind, tensors, digest=digest)))


def test_a_server_that_is_started_again_hands_on_what_was_handed_over(tmp_path: Path) -> None:
    before, after, own = Turned(), Turned(), two_parts(seed=1)[0]
    before.ask("a", "turn")
    before.ask("a", "hand_over", own)
    before.turns.save(tmp_path / "top")
    after.turns.load(tmp_path / "top")
    (granted,) = after.ask("b", "turn")
    other = two_parts(seed=2)[0]
    unpack(other, granted.tensors, granted.digest)
    assert torch.equal(values(own), values(other))


def test_a_server_that_has_the_clients_part_gives_it_to_the_first_and_takes_none_of_other_sizes() -> None:
    bottom = two_parts(seed=1)[0]
    turned = Turned(bottom)
    (granted,) = turned.ask("a", "turn")
    assert granted.digest == pack(bottom)[1]
    assert turned.ask("b", "turn") == []
    refused, granted = turned.ask("a", "hand_over", nn.Linear(2, 2))
    assert refused.refusal is not None
    assert refused.refusal.code == RefusalCode.REFUSED
    assert (granted.work.client, granted.digest) == ("b", pack(bottom)[1])
    ended, *_ = turned.ask("b", "hand_over", two_parts(seed=2)[0])
    assert ended.refusal is None


def test_a_part_arrives_as_it_was_sent_or_not_at_all() -> None:
    def made(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    first, second = made(1), made(2)
    first(torch.randn(5, 3))
    vectors, digest = pack(first)
    assert [each.dtype for each in vectors] == [torch.float32, torch.int64]
    unpack(second, vectors, digest)
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )
    third = made(3)
    before = values(third)
    changed = vectors[0].clone()
    changed[0] += 1.0
    with pytest.raises(WrongPartError, match="digest"):
        unpack(third, (changed, vectors[1]), digest)
    with pytest.raises(WrongPartError, match="sizes"):
        unpack(third, vectors[:1], digest)
    with pytest.raises(WrongPartError, match="digest"):
        unpack(nn.Sequential(nn.Tanh(), *made(1).children()), vectors, digest)
    assert torch.equal(values(third), before)
    assert pack(nn.Tanh())[0] == ()
