"""NoPeek as the further loss of a client: its gradients meet the bottom alone, and the server sees nothing of it."""

from __future__ import annotations

import asyncio
import copy
from functools import partial
from typing import Literal

import pytest
import torch
from torch import nn
from torch.nn import functional

from minga.core.errors import ConfigurationError
from minga.core.spec.sections import OptimizerSection, SplitSection
from minga.split import NoPeek, distance_correlation
from minga.split.computing.applying import OneTop
from minga.split.computing.halves import Answer, ClientHalf, Question, converse
from minga.split.computing.parts import ModelPart, cross_entropy
from minga.split.server.batch_server import BatchServer
from minga.split.wire.messages import BatchRequest, BeginRequest
from minga.split.wire.tensors import EncodedReply

ADAM = partial(torch.optim.Adam, lr=1e-2)


def parts(variant: Literal["vanilla", "u-shaped"]) -> tuple[nn.Module, nn.Module, nn.Module | None]:
    torch.manual_seed(0)
    bottom = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
    top, end = nn.Sequential(nn.ReLU(), nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, 3)
    return (bottom, top, end) if variant == "u-shaped" else (bottom, nn.Sequential(top, end), None)


def batches(count: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(32, 8, generator=generator), torch.randint(3, (32,), generator=generator)) for _ in range(count)
    ]


async def trained(variant: Literal["vanilla", "u-shaped"], penalty: NoPeek | None) -> tuple[nn.ModuleList, list[float]]:
    """All parts after some batches by client and server without a network, and the losses."""
    bottom, top, head = parts(variant)
    section, optimizer = SplitSection(variant=variant), OptimizerSection()
    own = [bottom] if head is None else [bottom, head]
    half = ClientHalf(bottom, head, ModelPart(own, ADAM, optimizer), cross_entropy, section, "a", penalty)
    core = BatchServer(OneTop(ModelPart([top], ADAM, optimizer), None if head else cross_entropy), section)
    session, number, losses = core.begin("a", BeginRequest())[0].session, 0, []

    async def ask(question: Question) -> Answer:
        nonlocal number
        number += 1
        tensors, labels = question.tensors, question.labels
        request = BatchRequest(
            question.kind, session, number, tensors.headers, labels.headers, question.wants_gradients
        )
        core.check("a", request)
        (finished,) = core.take("a", request, (*tensors.bodies, *labels.bodies))
        core.note(request, finished)
        assert isinstance(finished.reply, EncodedReply)
        return Answer("server", finished.reply)

    for inputs, labels in batches():
        loss = await converse(half.train(inputs, labels), ask)
        assert loss is not None
        losses.append(loss)
    return nn.ModuleList([bottom, top] if head is None else [bottom, top, head]), losses


@pytest.mark.parametrize("variant", ["vanilla", "u-shaped"])
def test_training_with_it_equals_that_of_the_whole_model_by_the_sum_of_both_losses(
    variant: Literal["vanilla", "u-shaped"],
) -> None:
    found, losses = asyncio.run(trained(variant, NoPeek(2.0)))
    modules = nn.ModuleList([each for each in copy.deepcopy(parts(variant)) if each is not None])
    optimizer, expected = ADAM(modules.parameters()), []
    for inputs, labels in batches():
        cut = outputs = modules[0](inputs)
        for module in modules[1:]:
            outputs = module(outputs)
        loss = functional.cross_entropy(outputs, labels)
        expected.append(float(loss.detach()))
        optimizer.zero_grad()
        (loss + 2.0 * distance_correlation(inputs, cut)).backward()
        optimizer.step()
    assert losses == pytest.approx(expected, abs=1e-5)
    for own, wanted in zip(found.parameters(), modules.parameters(), strict=True):
        torch.testing.assert_close(own, wanted, atol=1e-5, rtol=0.0)


def test_several_tensors_count_as_one_row_for_each_sample() -> None:
    inputs, other = torch.randn(10, 4), torch.randint(5, (10, 2))
    joined = torch.cat([inputs, other.float()], 1)
    cut = torch.randn(10, 2, 3)
    expected = 3.0 * distance_correlation(joined, cut)
    assert torch.equal(NoPeek(3.0)({"x": inputs, "ids": other}, (cut,)), expected)
    assert torch.equal(NoPeek(3.0)((inputs, other), [cut[:, :1], cut[:, 1:]]), expected)


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf"), 1e7])
def test_weights_that_make_no_sense_are_refused(weight: float) -> None:
    with pytest.raises(ConfigurationError, match="weight of NoPeek"):
        NoPeek(weight)
