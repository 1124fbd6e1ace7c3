"""A client of a network that is cut trains nearly as fast as its line allows: 20 Mbit/s up, 100 Mbit/s down.

A client needs the gradients of a batch before it can make the activations of the next one, so the line's bound is one
batch after another: the bytes of the activations at the rate up, then those of the gradients at the rate down.
Computing takes no time there, and latency is no part of the bound.
"""

from __future__ import annotations

import asyncio

import pytest
import torch

from minga.simulation.virtual_time import run_virtual
from minga.split.computing.halves import converse
from minga.split.examples.network import CutNetwork, CutShape
from minga.split.examples.samples import example_samples
from tests.worlds.seeds import soaked
from tests.worlds.split_world import SplitPeer, SplitWorld, split_spec

UP_BITS_PER_S, DOWN_BITS_PER_S = 20e6, 100e6
BATCH = 256
SHAPE = CutShape((1, 8, 8), 10, channels=(16,), bottom=(), top=(64,))
"""Cut behind a convolution: 1,024 values a sample."""
BYTES_PER_VALUE = {"float32": 4, "float16": 2}


@pytest.mark.parametrize("codec", [soaked("float32"), "float16"])
def test_the_line_is_nearly_used_up(codec: str) -> None:
    found = run_virtual(_trained(codec, 3, 0), limit_s=3600.0)
    sent = CutNetwork(SHAPE).cut_width * BYTES_PER_VALUE[codec] * 8
    assert 0.8 < found * (sent / UP_BITS_PER_S + sent / DOWN_BITS_PER_S) < 1.0


async def _trained(codec: str, batches: int, seed: int) -> float:
    torch.manual_seed(seed)
    network, samples = CutNetwork(SHAPE), example_samples("digits")
    world = SplitWorld(split_spec(upload_codec=codec, download_codec=codec), seed)
    await world.serve(network.top)
    client = await world.client(network.bottom)
    world.internet.set_rate(client.network, UP_BITS_PER_S / 8, DOWN_BITS_PER_S / 8)
    inputs, labels = samples.inputs[:BATCH], samples.labels[:BATCH]
    await client.network.process.run(_train(client, inputs, labels, 1))  # the first one begins the session
    begun_s = asyncio.get_running_loop().time()
    await client.network.process.run(_train(client, inputs, labels, batches))
    seconds = asyncio.get_running_loop().time() - begun_s
    await world.close()
    return batches * BATCH / seconds


async def _train(client: SplitPeer, inputs: torch.Tensor, labels: torch.Tensor, batches: int) -> None:
    if client.half is None or client.exchange is None:
        raise TypeError("not a client")
    for _ in range(batches):
        await converse(client.half.train(inputs, labels), client.exchange.ask)
