"""How many samples a second a client trains on over a home line, in the virtual world, and what the line allows.

A client needs the gradients of a batch before it can make the activations of the next one, so the line's bound is one
batch after another: the bytes of the activations at the rate up, then those of the gradients at the rate down.
Computing takes no time there, and latency is no part of the bound.
"""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from minga.simulation.virtual_time import run_virtual
from minga.split.computing.halves import converse
from minga.split.examples.network import CutNetwork, CutShape
from minga.split.examples.samples import example_samples
from tests.worlds.split_world import SplitPeer, SplitWorld, split_spec

UP_BITS_PER_S, DOWN_BITS_PER_S = 20e6, 100e6
BATCH = 256
SHAPE = CutShape((1, 8, 8), 10, channels=(16,), bottom=(), top=(64,))
"""Cut behind a convolution: 1,024 values a sample."""
BYTES_PER_VALUE = {"float32": 4, "float16": 2}


def link_figures(codec: str, batches: int, seed: int) -> dict[str, Any]:
    """Samples a second of one client, with this codec both ways, and the bound."""
    found = run_virtual(_trained(codec, batches, seed), limit_s=3600.0)
    torch.manual_seed(seed)
    sent = CutNetwork(SHAPE).cut_width * BYTES_PER_VALUE[codec] * 8
    bound = 1.0 / (sent / UP_BITS_PER_S + sent / DOWN_BITS_PER_S)
    return {
        "codec": codec,
        "samples_per_s": round(found, 1),
        "bound": round(bound, 1),
        "share": round(found / bound, 3),
    }


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
