"""One top for several clients: in turn, and with what happens between the two requests of a U-shaped batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.split.computing import applying as one_top
from minga.split.computing.applying import BatchWork, OneTop
from minga.split.computing.halves import Answer, Question, converse
from minga.split.computing.parts import ModelPart
from tests.worlds.split_world import Desk, batch, cross_entropy, layers, make_core, make_half, sgd, split_spec, values


def make_top() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))


def one(top: nn.Module, *, vanilla: bool = False) -> OneTop:
    return OneTop(ModelPart([top], sgd, split_spec().optimizer), cross_entropy if vanilla else None)


def work(client: str, kind: str, tensors: Sequence[torch.Tensor]) -> BatchWork:
    return BatchWork(0, client, kind, tuple(each.clone() for each in tensors))  # type: ignore[arg-type]


def test_a_batch_between_two_requests_of_another() -> None:
    """The second gradient is one of the parameters of then, by the draws of the first time; buffers see it once."""
    top = make_top()
    applying = one(top)
    (first, _), (second, _) = batch(1), batch(2)
    torch.manual_seed(11)
    applying.apply(work("a", "forward", [first]))
    torch.manual_seed(12)
    applying.apply(work("b", "forward", [second]))
    seen = int(top[1].num_batches_tracked)  # type: ignore[index]
    gradient = torch.randn(8, 3, generator=torch.Generator().manual_seed(3))
    (given_a,) = applying.apply(work("a", "backward", [gradient]))
    parameters = {name: value.clone() for name, value in top.named_parameters()}
    buffers = {name: value.clone() for name, value in top.named_buffers()}
    draws = torch.random.get_rng_state()
    (given_b,) = applying.apply(work("b", "backward", [gradient]))
    assert torch.equal(torch.random.get_rng_state(), draws), "what others draw does not depend on it"
    assert all(torch.equal(value, buffers[name]) for name, value in top.named_buffers())
    assert int(top[1].num_batches_tracked) == seen == 2  # type: ignore[index]
    assert applying.steps == 2

    again = make_top()
    again.load_state_dict({**parameters, **buffers})
    leaf = second.clone().requires_grad_()
    torch.manual_seed(12)
    again(leaf).backward(gradient)
    assert leaf.grad is not None
    assert torch.equal(given_b.tensors[0], leaf.grad)

    alone = make_top()
    leaf = first.clone().requires_grad_()
    torch.manual_seed(11)
    alone(leaf).backward(gradient)
    assert leaf.grad is not None
    assert torch.equal(given_a.tensors[0], leaf.grad)


def test_what_is_half_done_is_bounded_and_can_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_top, "MAX_HALF_DONE", 2)
    applying = one(make_top())
    inputs, _ = batch(1)
    for client in ("a", "b", "a"):
        assert not applying.apply(work(client, "forward", [inputs]))[0].refusal
    (third,) = applying.apply(work("c", "forward", [inputs]))
    assert third.refusal is not None
    assert third.refusal.code == RefusalCode.BUSY
    assert sorted(applying.half_done()) == ["a", "b"]
    assert not applying.drop("a")
    assert not applying.apply(work("c", "forward", [inputs]))[0].refusal
    (late,) = applying.apply(work("a", "backward", [torch.ones(8, 3)]))
    assert late.refusal is not None
    assert late.refusal.code == RefusalCode.SESSION


class TwoOut(nn.Module):
    """A bottom with two outputs, one of them whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, inputs: torch.Tensor, *, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(inputs), positions


class TwoIn(nn.Module):
    """A top that takes both."""

    def __init__(self, *, bfloat: bool = False) -> None:
        super().__init__()
        self.table, self.outer = nn.Embedding(5, 4), nn.Linear(4, 3)
        if bfloat:
            self.to(torch.bfloat16)

    def forward(self, cut: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.outer(cut + self.table(positions))


@pytest.mark.parametrize("bfloat", [False, True])
def test_several_tensors_at_the_cut_and_parts_of_other_types(bfloat: bool) -> None:
    spec = split_spec()
    torch.manual_seed(0)
    bottom, top = TwoOut(), TwoIn(bfloat=bfloat)
    half, desk = make_half(spec, bottom), Desk(make_core(spec, top))
    inputs, labels = batch(0)
    positions = torch.arange(8) % 5
    asked: list[Question] = []

    async def ask(question: Question) -> Answer:
        asked.append(question)
        answer = await desk.ask(question)
        assert isinstance(answer, Answer)
        return answer

    before = values(bottom).clone()
    for _ in range(3):
        asyncio.run(converse(half.train({"inputs": inputs, "positions": positions}, labels), ask))
    assert [header.dtype for header in asked[0].tensors.headers] == ["float32", "int64"]
    assert not torch.equal(values(bottom), before)
    outputs = asyncio.run(converse(half.predict({"inputs": inputs, "positions": positions}), ask))
    expected = top(bottom(inputs, positions=positions)[0].to(top.outer.weight.dtype), positions)
    assert torch.equal(outputs, expected)


def test_a_part_without_parameters_needs_no_optimizer() -> None:
    spec = split_spec()
    half, desk = make_half(spec, nn.Flatten(), optimizer=None), Desk(make_core(spec, layers()[5], optimizer=None))
    with pytest.raises(RejectedError, match="cannot take"):
        asyncio.run(converse(half.train(*batch(0)), desk.ask))
    half = make_half(spec, nn.Sequential(*layers()[:5]))
    desk = Desk(make_core(spec, nn.Linear(8, 3)))
    assert asyncio.run(converse(half.train(*batch(0)), desk.ask)) is not None


def test_modes_of_modules_are_as_before_after_a_prediction() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2))
    module[2].eval()
    part = ModelPart([module], sgd, split_spec().optimizer)
    with part.predicting():
        assert not any(each.training for each in module.modules())
        assert not torch.is_grad_enabled()
    assert [each.training for each in module] == [True, True, False]
