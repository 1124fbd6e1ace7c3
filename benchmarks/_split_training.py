"""Training of `benchmarks.split` in one process: the whole network, and its parts by clients that take turns.

Clients and server are the code of production, with its messages, checks and codecs, without a network between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from minga.core.spec.run_spec import RunSpec
from minga.recipes.initial import new_model
from minga.recipes.registry import load_recipe
from minga.recipes.split.recipe import SplitRecipe, figures_of
from minga.split.computing.applying import OneTop
from minga.split.computing.halves import ClientHalf, converse
from minga.split.computing.parts import ModelPart, cross_entropy
from minga.split.examples.samples import LabelledSamples
from minga.split.server.batch_server import BatchServer
from tests.worlds.split_world import Desk

BATCH = 64
ADAM = partial(torch.optim.Adam, lr=1e-3)


def split_recipe(
    variant: str, clients: int, seed: int, *, sections: Mapping[str, Any] | None = None, **split: Any
) -> tuple[RunSpec, SplitRecipe]:
    """A run of the digits, and its recipe; `sections` are further ones of the run spec, or others."""
    spec = RunSpec.from_mapping(
        {
            "name": "split digits",
            "model": {"recipe": "split"},
            "recipe": {"split": {"clients": clients}},
            "split": {"variant": variant, **split},
            "training": {"seed": seed},
            **(sections or {}),
        }
    )
    recipe = load_recipe(spec)
    if not isinstance(recipe, SplitRecipe):
        raise TypeError("another recipe has the name split")
    return spec, recipe


def heldout_accuracy(recipe: SplitRecipe, model: nn.Module) -> float:
    """The share of the held-out samples that are recognised."""
    samples = recipe.heldout_samples()
    if samples is None:
        raise TypeError("the digits hold samples out")
    return figures_of(model, samples)["heldout_accuracy"]


def shuffled_batches(samples: LabelledSamples, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One pass over samples, in an order by the seed."""
    order = torch.randperm(len(samples.labels), generator=torch.Generator().manual_seed(seed))
    return [(samples.inputs[rows], samples.labels[rows]) for rows in order.split(BATCH)]


def train_centrally(epochs: int, clients: int, seed: int) -> float:
    """The accuracy of the whole network that is trained on the samples of all clients together."""
    _, recipe = split_recipe("none", clients, seed)
    model = new_model(recipe)
    parts = [recipe.client_samples({}, number) for number in range(clients)]
    inputs, labels = torch.cat([each.inputs for each in parts]), torch.cat([each.labels for each in parts])
    everything = LabelledSamples(inputs, labels, parts[0].classes, parts[0].picture)
    optimizer = ADAM(model.parameters())
    for epoch in range(epochs):
        for some, classes in shuffled_batches(everything, 1000 * seed + epoch):
            optimizer.zero_grad()
            cross_entropy(model(some), classes).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return heldout_accuracy(recipe, model)


def train_in_turns(variant: str, epochs: int, clients: int, seed: int) -> float:
    """The accuracy of a cut network: in each epoch each client in turn makes one pass over its samples, with the bottom
    as the client before it left it.
    """
    spec, recipe = split_recipe(variant, clients, seed)
    bottom, top, head = recipe.parts(u_shaped=variant == "u-shaped")
    core = BatchServer(OneTop(ModelPart([top], ADAM, spec.optimizer), None if head else cross_entropy), spec.split)
    part = ModelPart([bottom] if head is None else [bottom, head], ADAM, spec.optimizer)
    halves = [
        ClientHalf(bottom, head, part, cross_entropy, spec.split, f"client {number}", recipe.penalty)
        for number in range(clients)
    ]
    desks = [Desk(core, f"client {number}") for number in range(clients)]

    async def train() -> None:
        for epoch in range(epochs):
            for number, (half, desk) in enumerate(zip(halves, desks, strict=True)):
                samples = recipe.client_samples({}, number)
                for some, classes in shuffled_batches(samples, 1000 * seed + epoch):
                    await converse(half.train(some, classes), desk.ask)

    asyncio.run(train())
    return heldout_accuracy(recipe, nn.Sequential(bottom, top, *([] if head is None else [head])))
