"""A model that is cut takes the same steps as the whole one, wherever it is cut."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from minga.optim import LAMB, AdamW
from minga.split.computing.halves import converse
from minga.split.computing.parts import cross_entropy
from tests.worlds.split_world import (
    Desk,
    SplitWorld,
    batch,
    layers,
    make_core,
    make_half,
    split_spec,
    train_whole,
    values,
)
from tests.worlds.swarm_tools import virtually

STEPS = 20
COUNT = len(layers())
OPTIMIZERS = [
    partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    partial(torch.optim.Adam, lr=0.01),
    partial(AdamW, lr=0.01),
    partial(LAMB, lr=0.01),
]


async def split_training(
    first: int, last: int | None, optimizer: Any, lose: Any = lambda: False
) -> tuple[torch.Tensor, list[float | None]]:
    """Train, cut before layer `first` and, U-shaped, before layer `last`; all parameters, and the losses."""
    spec = split_spec("vanilla" if last is None else "u-shaped")
    modules = layers()
    bottom, top = nn.Sequential(*modules[:first]), nn.Sequential(*modules[first:last])
    head = None if last is None else nn.Sequential(*modules[last:])
    desk = Desk(make_core(spec, top, optimizer), lose=lose)
    half = make_half(spec, bottom, head, optimizer)
    losses = [await converse(half.train(*batch(number)), desk.ask) for number in range(STEPS)]
    assert desk.core.applying.steps == half.part.steps == STEPS
    return values(*modules), losses


@pytest.mark.parametrize(
    ("first", "optimizer"),
    [(first, OPTIMIZERS[0]) for first in range(COUNT + 1)] + [(2, optimizer) for optimizer in OPTIMIZERS[1:]],
)
def test_vanilla(first: int, optimizer: Any) -> None:
    found, losses = asyncio.run(split_training(first, None, optimizer))
    whole = layers()
    assert losses == pytest.approx(train_whole(whole, range(STEPS), optimizer), abs=1e-6)
    assert torch.allclose(found, values(*whole), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(
    ("first", "last"),
    [(first, last) for first in range(COUNT + 1) for last in sorted({first, min(first + 2, COUNT), COUNT})],
)
def test_u_shaped(first: int, last: int) -> None:
    found, losses = asyncio.run(split_training(first, last, OPTIMIZERS[0]))
    whole = layers()
    assert losses == pytest.approx(train_whole(whole, range(STEPS)), abs=1e-6)
    assert torch.allclose(found, values(*whole), rtol=0.0, atol=1e-6)


@virtually
async def test_over_a_network_predictions_and_losses_are_those_of_the_whole_model() -> None:
    for variant in ("vanilla", "u-shaped"):
        modules, whole = layers(), layers()
        last = None if variant == "vanilla" else 5
        world = SplitWorld(split_spec(variant))
        await world.serve(nn.Sequential(*modules[2:last]))
        head = None if last is None else nn.Sequential(*modules[last:])
        client = await world.client(nn.Sequential(*modules[:2]), head)
        await world.train(client, range(STEPS))
        assert list(client.losses.values()) == pytest.approx(train_whole(whole, range(STEPS)), abs=1e-6)
        assert torch.allclose(values(*modules), values(*whole), rtol=0.0, atol=1e-6)
        inputs, labels = batch(99)
        assert client.half is not None
        assert client.exchange is not None
        ask = client.exchange.ask
        expected = nn.Sequential(*whole)(inputs).detach()
        assert torch.allclose(await converse(client.half.predict(inputs), ask), expected, atol=1e-6)
        found = await converse(client.half.evaluate(inputs, labels), ask)
        assert found == pytest.approx(float(cross_entropy(expected, labels)), abs=1e-6)
        await world.close()
