"""In a U-shaped run no label reaches the server, in any tensor or in any byte on the wire."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from minga.core.errors import ProtocolError
from minga.network.interface import Buffer
from minga.network.virtual.connection import VirtualStream
from minga.simulation.virtual_time import run_virtual
from minga.split.computing.halves import converse
from minga.split.wire.messages import BatchRequest
from minga.split.wire.tensors import TensorWire
from tests.worlds.split_world import RecordingTop, SplitWorld, batch, layers, make_core, split_spec

SAMPLES = 64


def traced(variant: str, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, list[Any]]:
    """Train, evaluate and predict; every byte that any peer sent, and what the server's part was given."""
    sent = bytearray()
    write = VirtualStream.write

    async def record(stream: VirtualStream, data: Buffer) -> None:
        sent.extend(bytes(data))
        await write(stream, data)

    monkeypatch.setattr(VirtualStream, "write", record)

    async def scene() -> list[Any]:
        modules = layers()
        last = None if variant == "vanilla" else 5
        world = SplitWorld(split_spec(variant))
        server = await world.serve(nn.Sequential(*modules[2:last]))
        client = await world.client(nn.Sequential(*modules[:2]), None if last is None else modules[5])
        await world.train(client, range(5), samples=SAMPLES)
        assert client.half is not None
        assert client.exchange is not None
        await converse(client.half.evaluate(*batch(0, SAMPLES)), client.exchange.ask)
        assert server.core is not None
        assert isinstance(server.core.applying, RecordingTop)
        await world.close()
        return server.core.applying.given

    return run_virtual(scene()), bytes(sent)  # type: ignore[return-value]


def forms(labels: torch.Tensor) -> list[bytes]:
    """The labels in every type in which they could be sent."""
    dtypes = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.float64, torch.float32, torch.float16)
    hot = nn.functional.one_hot(labels, 3)
    return [each.to(dtype).numpy().tobytes() for dtype in dtypes for each in (labels, hot)]


def test_no_label_reaches_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    given, sent = traced("u-shaped", monkeypatch)
    assert {work.kind for work in given} == {"forward", "backward", "predict"}  # type: ignore[attr-defined]
    for work in given:
        assert not work.labels  # type: ignore[attr-defined]
        assert all(each.is_floating_point() for each in work.tensors)  # type: ignore[attr-defined]
    for number in range(5):
        assert not [form for form in forms(batch(number, SAMPLES)[1]) if form in sent]


def test_the_trace_would_find_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given, sent = traced("vanilla", monkeypatch)
    labels = batch(0, SAMPLES)[1]
    assert labels.numpy().tobytes() in sent
    assert torch.equal(given[0].labels[0], labels)  # type: ignore[attr-defined]


def test_a_server_of_a_u_shaped_run_takes_no_labels_even_from_a_client_that_sends_them() -> None:
    spec = split_spec("u-shaped")
    core = make_core(spec, nn.Linear(6, 3))
    wire = TensorWire("float32", 1000)
    inputs, labels = batch(0)
    tensors, sent = wire.encode([inputs], ""), wire.encode([labels], "")
    for kind in ("train", "forward", "predict"):
        with pytest.raises(ProtocolError):
            core.check("a", BatchRequest(kind, 1, 1, tensors.headers, sent.headers))  # type: ignore[arg-type]
