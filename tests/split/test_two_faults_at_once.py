"""What breaks a server or a client only when someone means to break it, or when two things go wrong at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from torch import nn

from minga.core.errors import RejectedError, RemoteError, SilentError
from minga.core.refusal_code import RefusalCode
from minga.network.rpc.stream import MessageStream
from minga.simulation.virtual_time import run_virtual
from minga.split.computing import applying as one_top
from minga.split.computing.applying import BatchWork, BrokenPartError, OneTop
from minga.split.computing.halves import Answer, BatchFate, Question, converse
from minga.split.computing.parts import ModelPart
from minga.split.wire.bodies import Room
from minga.split.wire.messages import BATCH, BEGIN, BatchReply, BatchRequest, BeginReply, BeginRequest, TensorHeader
from minga.split.wire.tensors import TensorWire
from tests.worlds.split_world import Desk, SplitWorld, batch, make_core, make_half, sgd, split_spec, values

WIRE = TensorWire("float32", 1 << 20)


def asked(tensors: Sequence[torch.Tensor], labels: Sequence[torch.Tensor] = (), kind: Any = "train") -> Question:
    return Question(kind, WIRE.encode(tensors, ""), WIRE.encode(labels, ""))


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(module: nn.Module, state: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, state[name]) for name, value in module.state_dict().items())


# ---- room


def test_a_stream_that_is_cancelled_while_room_becomes_free_is_cancelled_and_nothing_else() -> None:
    async def scene() -> None:
        room = Room(100)

        async def hold(size: int) -> None:
            async with room.held(size, "a" if size == 80 else str(size)):
                await asyncio.sleep(3600.0)

        first = asyncio.create_task(hold(80))
        await asyncio.sleep(0)
        second, third = asyncio.create_task(hold(60)), asyncio.create_task(hold(70))
        await asyncio.sleep(0)
        second.cancel()
        first.cancel()
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(each) for each in results] == [asyncio.CancelledError] * 2
        await asyncio.sleep(0)
        assert room.taken_bytes == 70
        second = asyncio.create_task(hold(60))
        await asyncio.sleep(0)
        second.cancel()
        third.cancel()
        results = await asyncio.gather(second, third, return_exceptions=True)
        assert [type(each) for each in results] == [asyncio.CancelledError] * 2
        assert room.taken_bytes == 0

    asyncio.run(scene())


# ---- what modules, losses and optimizers of users raise


class Faulty(torch.autograd.Function):
    """Lets the gradient through, or raises what it is told."""

    error: BaseException | None = None

    @staticmethod
    def forward(_: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        if Faulty.error is not None:
            raise Faulty.error
        return gradient


class FaultyTop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        passed: torch.Tensor = Faulty.apply(self.first(inputs))  # type: ignore[no-untyped-call]
        return cast(torch.Tensor, self.last(passed))


@pytest.mark.parametrize("error", [KeyError("x"), torch.OutOfMemoryError("CUDA out of memory"), AssertionError()])
@pytest.mark.parametrize("variant", ["vanilla", "u-shaped"])
def test_what_a_backward_pass_raises_leaves_no_gradient_behind(
    variant: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    tops = FaultyTop(), FaultyTop()
    inputs, labels = batch(1)
    for top, is_faulty in zip(tops, (True, False), strict=True):
        desk = Desk(make_core(split_spec(variant), top))
        first = [asked([inputs], [labels])]
        if variant == "u-shaped":
            first = [asked([inputs], [], "forward"), asked([torch.ones(8, 3)], [], "backward")]
        if is_faulty:
            monkeypatch.setattr(Faulty, "error", error)
            for question in first[:-1]:
                asyncio.run(desk.ask(question))
            with pytest.raises((RejectedError, KeyError, AssertionError)):
                asyncio.run(desk.ask(first[-1]))
            monkeypatch.setattr(Faulty, "error", None)
        for question in first:
            asyncio.run(desk.ask(question))
    assert torch.equal(values(tops[0]), values(tops[1]))


def test_an_optimizer_that_fails_leaves_no_gradient_behind() -> None:
    class Failing(torch.optim.SGD):
        fails = True

        def step(self, closure: Any = None) -> Any:
            if self.fails:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().step(closure)

    tops = nn.Linear(6, 3), nn.Linear(6, 3)
    tops[1].load_state_dict(tops[0].state_dict())
    inputs, labels = batch(1)
    for top, is_faulty in zip(tops, (True, False), strict=True):
        core = make_core(split_spec(), top, lambda parameters: Failing(parameters, lr=0.1))
        desk = Desk(core)
        optimizer = core.applying.part.optimizer  # type: ignore[attr-defined]
        if is_faulty:
            with pytest.raises(BrokenPartError, match="out of memory"):
                asyncio.run(desk.ask(asked([inputs], [labels])))
            assert core.applying.steps == 0
        optimizer.fails = False
        asyncio.run(desk.ask(asked([inputs], [labels])))
    assert torch.equal(values(tops[0]), values(tops[1]))


def test_a_device_without_memory_refuses_a_batch_for_now_and_one_that_fails_every_batch_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs, labels = batch(1)
    monkeypatch.setattr(Faulty, "error", torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RejectedError, match="too little memory") as caught:
        asyncio.run(Desk(make_core(split_spec(), FaultyTop())).ask(asked([inputs], [labels])))
    assert caught.value.code == RefusalCode.BUSY
    computes_nothing = nn.Linear(6, 3, device="meta")  # its loss is no number, as behind an assertion that failed
    with pytest.raises(BrokenPartError, match="meta fails"):
        asyncio.run(Desk(make_core(split_spec(), computes_nothing)).ask(asked([inputs], [labels])))


def norm_top() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


@pytest.mark.parametrize("variant", ["vanilla", "u-shaped"])
@pytest.mark.parametrize("size", [1e30, 1e38])
def test_one_batch_does_not_spoil_the_means_of_a_norm_for_ever(variant: str, size: float) -> None:
    """Such a batch has finite outputs and gradients, and yet its variance is infinite."""
    top = norm_top()
    desk, before = Desk(make_core(split_spec(variant), top)), state_of(top)
    inputs, labels = batch(1)
    kind = "train" if variant == "vanilla" else "forward"
    with pytest.raises(RejectedError):
        asyncio.run(desk.ask(asked([inputs * size], [labels] if kind == "train" else [], kind)))
    assert same(top, before)
    assert not desk.core.applying.half_done()
    assert torch.isfinite(WIRE.decode(asyncio.run(desk.ask(asked([inputs], [], "predict"))).reply.encoded)[0]).all()  # type: ignore[union-attr]


def test_a_batch_that_is_refused_changes_no_buffer() -> None:
    top = norm_top()
    desk, before = Desk(make_core(split_spec(), top)), state_of(top)
    inputs, labels = batch(1)
    for wrong in (labels + 1, labels[:3]):
        with pytest.raises(RejectedError, match="cannot take"):
            asyncio.run(desk.ask(asked([inputs], [wrong])))
    with pytest.raises(RejectedError, match="cannot take"):
        asyncio.run(desk.ask(asked([inputs[:1]], [labels[:1]])))  # a norm needs two samples
    assert same(top, before)


def test_a_loss_that_no_message_can_carry_is_refused_before_it_is_applied() -> None:
    top = nn.Linear(6, 1, bias=False)
    core = make_core(split_spec(), top)
    core.applying._loss = lambda outputs, _: outputs.sum() * 1e20  # type: ignore[attr-defined]
    desk, before = Desk(core), state_of(top)
    with pytest.raises(RejectedError, match="loss"):
        asyncio.run(desk.ask(asked([torch.ones(8, 6)], [torch.ones(8)])))
    assert same(top, before)


# ---- memory that is kept for half done batches


def u_shaped() -> OneTop:
    return OneTop(ModelPart([nn.Linear(6, 3)], sgd, split_spec("u-shaped").optimizer), None)


def forward(client: str, rows: int = 8) -> BatchWork:
    return BatchWork(0, client, "forward", (torch.ones(rows, 6),))


def test_half_done_batches_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    applying = u_shaped()
    monkeypatch.setattr(one_top, "HALF_DONE_BYTES", 3 * 8 * 6 * 4)
    outcomes = [applying.apply(forward(client))[0] for client in "abcd"]
    assert [each.refusal is None for each in outcomes] == [True, True, True, False]
    assert outcomes[3].refusal.code.cause.name == "TEMPORARY"  # type: ignore[union-attr]
    assert applying.apply(forward("a"))[0].refusal is None, "in place of its own"
    for client in "abc":
        applying.drop(client)
    assert applying.apply(forward("d", rows=1000))[0].refusal is None, "one alone may be of any size"


def test_graphs_are_kept_for_a_few_half_done_batches_and_the_others_are_computed_again() -> None:
    applying = u_shaped()
    clients = [f"{number:02}" for number in range(20)]
    for client in clients:
        applying.apply(forward(client))
    with_graph = [client for client, half_done in applying._half_done.items() if half_done.outputs]
    assert len(with_graph) <= one_top.MAX_GRAPHS
    assert with_graph[-1] == clients[-1]
    for client in clients:
        (outcome,) = applying.apply(BatchWork(0, client, "backward", (torch.ones(8, 3),)))
        assert outcome.applied


# ---- servers that never come to an end


def test_a_server_that_never_applies_a_batch_is_given_up() -> None:
    """It says "begin anew" and "not applied" for ever."""

    async def lead(variant: str) -> int:
        count = 0
        bottom, head = (nn.Linear(6, 6), None) if variant == "vanilla" else (nn.Linear(6, 6), nn.Linear(6, 3))

        async def ask(_: Question) -> Answer | BatchFate:
            nonlocal count
            count += 1
            assert count < 1000
            return BatchFate.NOT_APPLIED

        with pytest.raises(RemoteError, match="anew"):
            await converse(make_half(split_spec(variant), bottom, head).train(*batch(0)), ask)
        return count

    for variant in ("vanilla", "u-shaped"):
        assert asyncio.run(lead(variant)) > 5


async def hostile_server(answer: Callable[[str, MessageStream], Any], patience_s: float) -> tuple[SplitWorld, Any]:
    world = SplitWorld(split_spec(max_elements=100_000))
    server = await world.serve(nn.Linear(6, 3))
    client = await world.client(nn.Linear(6, 6), patience_s=patience_s)
    server.session.node.serve(BATCH, answer)
    return world, client


def test_a_server_that_announces_tensors_and_sends_none_is_given_up() -> None:
    async def scene() -> None:
        async def answer(_: str, stream: MessageStream) -> None:
            await stream.receive(BatchRequest)
            await stream.send(BatchReply((TensorHeader("float32", (8, 6), 192),), 1.0, 1))
            await asyncio.sleep(100_000.0)

        world, client = await hostile_server(answer, 60.0)
        with pytest.raises(SilentError):
            await asyncio.wait_for(asyncio.shield(world.train(client, [0])), 3000.0)
        await world.close()

    run_virtual(scene(), limit_s=8000.0)


# ---- interrupted


def test_after_an_interrupted_batch_the_next_one_gets_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a notebook, and the next cell at once: what was interrupted still ends when that begins."""
    close = MessageStream.close

    async def close_slowly(stream: MessageStream) -> None:
        await asyncio.sleep(0.01)
        await close(stream)

    monkeypatch.setattr(MessageStream, "close", close_slowly)

    async def scene() -> None:
        world = SplitWorld(split_spec(), 3)
        server = await world.serve(nn.Linear(6, 3))
        client = await world.client(nn.Linear(6, 6))
        await world.train(client, [0])
        assert server.core is not None
        assert client.exchange is not None
        applied: list[BatchWork] = server.core.applying.applied  # type: ignore[attr-defined]
        for number, seconds in enumerate((0.005, 0.015, 0.025, 0.035, 0.045, 0.06), 1):
            question = asked([torch.full((8, 6), float(number))], [batch(number)[1]])
            task = client.network.process.run(client.exchange.ask(question))
            await asyncio.sleep(seconds)
            task.cancel()
            steps = server.core.applying.steps
            await world.train(client, [100 + number])
            assert server.core.applying.steps > steps
            assert not torch.equal(applied[-1].tensors[0], torch.full((8, 6), float(number))), "its own was applied"
            await asyncio.gather(task, return_exceptions=True)
        await world.close()

    run_virtual(scene(), limit_s=600.0)


# ---- clients that hold others up


async def begin(peer: Any, server: Any) -> int:
    call = peer.session.node.call(server.peer_id, BEGIN, BeginRequest(), BeginReply)
    begun: BeginReply = await peer.network.process.run(call)
    return begun.session


def test_a_client_that_announces_much_and_sends_nothing_holds_others_up_for_a_minute_at_most() -> None:
    async def scene() -> None:
        world = SplitWorld(split_spec(max_elements=1 << 23))
        server = await world.serve(nn.Linear(6, 3), room_bytes=1 << 26)
        hostile, honest = await world.client(nn.Identity()), await world.client(nn.Linear(6, 6))
        session = await begin(hostile, server)
        huge = TensorHeader("float32", (4096, 2048), 1 << 25)
        request = BatchRequest("train", session, 1, (huge,), (TensorHeader("int64", (8,), 64),))

        async def hold() -> None:
            async with hostile.session.node.open(server.peer_id, BATCH, bulk=True) as stream:
                await stream.send(request)
                await stream.receive(BatchReply)

        tasks = [hostile.network.process.run(hold()) for _ in range(4)]
        await asyncio.sleep(1.0)
        loop = asyncio.get_running_loop()
        started = loop.time()
        await world.train(honest, range(3))
        assert loop.time() - started < 90.0
        await asyncio.gather(*tasks, return_exceptions=True)
        await world.close()

    run_virtual(scene(), limit_s=50_000.0)


def test_a_client_with_a_slow_line_comes_through_with_batches_in_two_requests() -> None:
    """Gradients that take minutes to upload belong to a batch that is waited for."""

    async def scene() -> None:
        world = SplitWorld(split_spec("u-shaped", max_elements=1 << 22))
        server = await world.serve(nn.Linear(6, 3000))
        client = await world.client(nn.Linear(6, 6), nn.Linear(3000, 3), up=25_000.0)
        await asyncio.wait_for(asyncio.shield(world.train(client, [0], samples=256)), 600.0)
        assert server.core is not None
        assert server.core.applying.steps == 1
        assert not server.said("split.dropped")
        await world.close()

    run_virtual(scene(), limit_s=2000.0)
