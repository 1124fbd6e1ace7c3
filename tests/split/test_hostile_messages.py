"""What no honest client or server sends is refused before it costs memory, and changes nothing."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from minga.core.errors import ConfigurationError, NonFiniteError, ProtocolError, RejectedError
from minga.core.refusal_code import RefusalCode
from minga.network.rpc.connections import MAX_OFFENCES
from minga.network.rpc.stream import MessageStream
from minga.simulation.virtual_time import run_virtual
from minga.split.computing.halves import Answer, Question, converse
from minga.split.server.service import MAX_STREAMS
from minga.split.wire.messages import BATCH, BEGIN, BatchReply, BatchRequest, BeginReply, BeginRequest, TensorHeader
from minga.split.wire.tensors import EncodedReply, EncodedTensors, InvalidTensorsError, TensorWire
from tests.worlds.split_world import (
    Desk,
    RecordingTop,
    SplitPeer,
    SplitWorld,
    batch,
    layers,
    make_core,
    make_half,
    sgd,
    split_spec,
    values,
)

WIRE = TensorWire("float32", 10_000)
NONE = EncodedTensors()


def top() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(6, 3)


def question(tensors: list[torch.Tensor], labels: list[torch.Tensor], kind: Any = "train") -> Question:
    return Question(kind, WIRE.encode(tensors, ""), WIRE.encode(labels, ""))


def header(dtype: Any, shape: tuple[int, ...], size_bytes: int) -> TensorHeader:
    return TensorHeader(dtype, shape, size_bytes)


@pytest.mark.parametrize(
    "headers",
    [
        (header("float32", (10_001,), 40_004),),
        (header("float32", (2**28,) * 8, 4),),
        (header("float32", (100, 100), 40_000), header("float32", (1,), 4)),
        (header("float32", (2, 2), 15),),
        (header("float32", (2, 2), 17),),
        (header("int64", (2,), 8),),
        (header("bool", (2,), 1),),
    ],
)
def test_headers_beyond_the_limits_are_refused_before_memory_is_reserved(headers: tuple[TensorHeader, ...]) -> None:
    with pytest.raises(InvalidTensorsError):
        WIRE.check(headers)
    with pytest.raises(ProtocolError):
        make_core(split_spec(max_elements=10_000), top()).check("a", BatchRequest("train", 1, 1, headers, headers))


def check_and_decode(wire: TensorWire, encoded: EncodedTensors) -> None:
    wire.check(encoded.headers)
    wire.decode(encoded)


@pytest.mark.parametrize("codec", ["float32", "float16", "int8", "int4", "topk", "sign", "adaptive"])
def test_bytes_of_another_codec_or_of_none_are_refused(codec: str) -> None:
    wire, chance = TensorWire(codec, 10_000), torch.Generator().manual_seed(5)
    encoded = wire.encode([torch.randn(40, 6, generator=chance)], "x")
    assert wire.decode(encoded)[0].shape == (40, 6)
    size = encoded.headers[0].size_bytes
    other = TensorWire("float16" if codec != "float16" else "float32", 10_000).encode([torch.randn(40, 6)], "")
    if other.headers[0].size_bytes != size:
        with pytest.raises(InvalidTensorsError):
            check_and_decode(wire, other)
    with pytest.raises(InvalidTensorsError):
        wire.decode(EncodedTensors(encoded.headers, (bytes(encoded.bodies[0])[:-1],)))
    for _ in range(50):  # garbage is refused, or is finite numbers that an encoder could have made
        garbage = torch.randint(0, 256, (size,), generator=chance, dtype=torch.uint8).numpy().tobytes()
        try:
            (found,) = wire.decode(EncodedTensors(encoded.headers, (garbage,)))
        except InvalidTensorsError:
            continue
        assert bool(torch.isfinite(found).all())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_neither_sent_nor_taken(value: float) -> None:
    with pytest.raises(NonFiniteError):
        WIRE.encode([torch.tensor([1.0, value])], "")
    forged = EncodedTensors((header("float32", (2,), 8),), (struct.pack("<2f", 1.0, value),))
    with pytest.raises(InvalidTensorsError):
        WIRE.decode(forged)
    narrow = EncodedTensors((header("float16", (1,), 4),), (struct.pack("<f", 1e30),))
    with pytest.raises(InvalidTensorsError, match="not finite as float16"):
        WIRE.decode(narrow)
    with pytest.raises(InvalidTensorsError, match="neither 0 nor 1"):
        WIRE.decode(EncodedTensors((header("bool", (2,), 2),), (b"\x01\x02",)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool])
def test_types_come_back(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1], [1, 1]]).to(dtype).t()
    encoded = WIRE.encode([tensor], "")
    WIRE.check(encoded.headers)
    (found,) = WIRE.decode(encoded)
    assert found.dtype == dtype
    assert torch.equal(found, tensor)
    with pytest.raises(ConfigurationError, match="cannot be sent"):
        WIRE.encode([torch.zeros(2, dtype=torch.complex64)], "")


def refused(make: Callable[[torch.Tensor, torch.Tensor], Question], variant: str = "vanilla") -> RejectedError:
    """Send a question that cannot be applied between two that can: the top is as if it had not been there."""
    core, quiet = make_core(split_spec(variant), top()), make_core(split_spec(variant), top())
    inputs, labels = batch(0)

    async def scene() -> RejectedError:
        good = question([inputs], [labels])
        desk, other = Desk(core), Desk(quiet)
        await desk.ask(good)
        with pytest.raises(RejectedError) as caught:
            await desk.ask(make(inputs, labels))
        await desk.ask(good)
        for _ in range(2):
            await other.ask(good)
        return caught.value

    error = asyncio.run(scene())
    assert isinstance(core.applying, RecordingTop)
    assert isinstance(quiet.applying, RecordingTop)
    assert torch.equal(values(*core.applying.part.modules), values(*quiet.applying.part.modules))
    return error


@pytest.mark.parametrize(
    "make",
    [
        lambda inputs, labels: question([inputs[:, :5].contiguous()], [labels]),
        lambda inputs, labels: question([inputs.long()], [labels]),
        lambda inputs, labels: question([inputs, inputs], [labels]),
        lambda inputs, labels: question([inputs], [labels.float()]),
        lambda inputs, labels: question([inputs], [labels[:3]]),
        lambda inputs, labels: question([inputs], [labels + 1]),
        lambda inputs, labels: question([inputs], [labels - 50]),
        lambda inputs, labels: question([inputs * 1e38], [labels]),
    ],
    ids=["shape", "whole numbers", "two tensors", "float labels", "few labels", "class 3", "class -50", "overflow"],
)
def test_what_the_top_cannot_take_is_refused_and_changes_nothing(
    make: Callable[[torch.Tensor, torch.Tensor], Question],
) -> None:
    assert refused(make).code == RefusalCode.REFUSED


def test_gradients_that_belong_to_no_batch_or_to_another_one() -> None:
    core = make_core(split_spec("u-shaped"), top())
    inputs, _ = batch(0)

    async def scene() -> None:
        desk = Desk(core)
        gradients = question([torch.ones(8, 3)], [], "backward")
        with pytest.raises(RejectedError) as caught:
            await desk.ask(gradients)
        assert caught.value.code == RefusalCode.SESSION
        await desk.ask(question([inputs], [], "forward"))
        with pytest.raises(RejectedError, match="other shapes") as caught:
            await desk.ask(question([torch.ones(8, 2)], [], "backward"))
        assert caught.value.code == RefusalCode.REFUSED
        assert core.applying.steps == 0
        await desk.ask(question([inputs], [], "forward"))
        await desk.ask(gradients)
        assert core.applying.steps == 1

    asyncio.run(scene())


async def hostile_world() -> tuple[SplitWorld, SplitPeer, SplitPeer]:
    world = SplitWorld(split_spec(max_elements=100_000))
    server = await world.serve(top())
    hostile = await world.client(nn.Identity())
    return world, server, hostile


async def send(hostile: SplitPeer, server: SplitPeer, request: BatchRequest, *bodies: bytes) -> BatchReply:
    async with hostile.session.node.open(server.peer_id, BATCH, bulk=True) as stream:
        await stream.send(request)
        for body in bodies:
            await stream.send_bulk(body)
        await stream.finish()
        return await stream.receive(BatchReply)


def test_a_client_that_breaks_the_protocol_is_named_and_cut_off_and_takes_no_room() -> None:
    async def scene() -> None:
        world, server, hostile = await hostile_world()
        assert server.service is not None
        huge = header("float32", (2**20, 2**8), 2**30)
        label = header("int64", (8,), 64)
        wrong = [
            BatchRequest("train", 1, 1, (huge,), (label,)),
            BatchRequest("forward", 1, 1, (header("float32", (8, 6), 192),)),
            BatchRequest("train", 1, 1, (header("float32", (8, 6), 192),)),
            BatchRequest("train", 1, 1, (header("float32", (), 4),), (label,)),
            BatchRequest("train", 1, 1, (header("float32", (5000, 1), 20_000),), (label,)),
        ]
        for number in range(MAX_OFFENCES):
            with pytest.raises(Exception, match=r"stream|cut off|connection|peer"):
                await hostile.network.process.run(send(hostile, server, wrong[number % len(wrong)]))
            assert server.service.room.taken_bytes == 0
        await asyncio.sleep(1.0)
        assert [event.fields["peer"] for event in server.said("peer.cut_off")] == [hostile.peer_id]
        assert len(server.said("split.refused")) == MAX_OFFENCES
        honest = await world.client(nn.Identity())
        await world.train(honest, range(3))
        assert all(loss is not None for loss in honest.losses.values())
        await world.close()

    run_virtual(scene(), limit_s=300.0)


def test_numbers_that_go_backwards_and_forged_bytes_over_the_network() -> None:
    async def scene() -> None:
        world, server, hostile = await hostile_world()
        await world.train(hostile, range(3))
        exchange, inputs, labels = hostile.exchange, *batch(7)
        assert exchange is not None
        assert server.core is not None
        good = question([inputs], [labels])
        bodies = (*map(bytes, good.tensors.bodies), *map(bytes, good.labels.bodies))
        for number in (0, 1, 2, 5, 2**40):
            request = BatchRequest("train", exchange._session, number, good.tensors.headers, good.labels.headers)
            with pytest.raises(RejectedError, match="begin anew"):
                await hostile.network.process.run(send(hostile, server, request, *bodies))
        request = BatchRequest("train", exchange._session, 4, good.tensors.headers, good.labels.headers)
        forged = struct.pack("<f", math.nan) * (len(bodies[0]) // 4)
        with pytest.raises(Exception, match=r"stream|connection|peer"):
            await hostile.network.process.run(send(hostile, server, request, forged, bodies[1]))
        assert server.core.applying.steps == 3
        assert (await hostile.network.process.run(send(hostile, server, request, *bodies))).step == 4
        assert len(server.said("peer.offence")) == 1
        await world.close()

    run_virtual(scene(), limit_s=300.0)


def test_one_client_has_a_few_streams_at_most_and_one_that_sends_nothing_loses_its_room() -> None:
    async def scene() -> None:
        world, server, hostile = await hostile_world()
        assert server.service is not None
        room = server.service.room
        begun = await hostile.network.process.run(
            hostile.session.node.call(server.peer_id, BEGIN, BeginRequest(), BeginReply)
        )
        label = header("int64", (8,), 64)
        request = BatchRequest("train", begun.session, 1, (header("float32", (8, 6), 192),), (label,))
        tasks = [hostile.network.process.run(send(hostile, server, request)) for _ in range(MAX_STREAMS + 2)]
        await asyncio.sleep(1.0)
        assert room.taken_bytes <= MAX_STREAMS * request.size_bytes
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, Exception) for result in results)
        await asyncio.sleep(60.0)
        assert room.taken_bytes == 0
        await world.close()

    run_virtual(scene(), limit_s=600.0)


@pytest.mark.parametrize(
    "reply",
    [
        EncodedReply(BatchReply((header("float32", (8, 5), 160),), 1.0, 1), (bytes(160),)),
        EncodedReply(BatchReply((), 1.0, 1)),
        EncodedReply(BatchReply((header("float32", (8, 6), 192),), None, 1), (bytes(192),)),
        EncodedReply(BatchReply((header("float32", (8, 6), 192),), 1.0, 1), (struct.pack("<f", math.nan) * 48,)),
        EncodedReply(BatchReply((header("float32", (8, 6), 190),), 1.0, 1), (bytes(190),)),
        EncodedReply(BatchReply((header("int64", (8, 6), 384),), 1.0, 1), (bytes(384),)),
    ],
    ids=["shape", "none", "no loss", "not finite", "size", "whole numbers"],
)
def test_a_server_that_answers_nonsense_changes_no_client(reply: EncodedReply) -> None:
    bottom = nn.Sequential(nn.Linear(6, 6))
    half = make_half(split_spec(), bottom)
    before = values(bottom).clone()

    async def ask(_: Question) -> Answer:
        return Answer("server", reply)

    with pytest.raises(ProtocolError):
        asyncio.run(converse(half.train(*batch(0)), ask))
    assert torch.equal(values(bottom), before)
    assert half.part.steps == 0
    assert all(each.grad is None for each in half.part.parameters)


def test_replies_beyond_the_limits_are_refused_before_memory_is_reserved() -> None:
    async def scene() -> None:
        world = SplitWorld(split_spec(max_elements=1000))
        server = await world.serve(top())
        client = await world.client(nn.Linear(6, 6))

        async def answer(_: str, stream: MessageStream) -> None:
            await stream.receive(BatchRequest)
            await stream.send(BatchReply((header("float32", (2**20, 2**8), 2**30),), 1.0, 1))
            await asyncio.sleep(5.0)

        server.session.node.serve(BATCH, answer)
        with pytest.raises(ProtocolError, match=r"268435456 elements"):
            await world.train(client, [0])
        await world.close()

    run_virtual(scene(), limit_s=300.0)


def test_what_cannot_be_sent_is_said_here() -> None:
    half = make_half(split_spec(max_samples=4), nn.Linear(6, 6))
    with pytest.raises(ConfigurationError, match=r"from 1 to split.max_samples = 4 samples"):
        next(half.train(*batch(0)))
    half = make_half(split_spec(max_elements=10), nn.Linear(6, 6))
    with pytest.raises(ConfigurationError, match=r"split.max_elements = 10"):
        next(half.train(*batch(0)))
    with pytest.raises(ConfigurationError, match="needs a head"):
        make_half(split_spec("u-shaped"), layers()[0])
    with pytest.raises(ConfigurationError, match="has no head"):
        make_half(split_spec(), layers()[0], layers()[5])
    with pytest.raises(ConfigurationError, match=r"lacks 2 of the parameters of this part of the model, 0\.weight"):
        make_half(split_spec(), layers()[0], optimizer=sgd(list(layers()[5].parameters())))
    bottom, head = layers()[0], layers()[5]
    with pytest.raises(ConfigurationError, match=r"lacks 2 of the parameters of this part of the model, 1\.weight"):
        make_half(split_spec("u-shaped"), bottom, head, optimizer=sgd(list(bottom.parameters())))
    head.requires_grad_(False)
    make_half(split_spec("u-shaped"), bottom, head, optimizer=sgd(list(bottom.parameters())))
