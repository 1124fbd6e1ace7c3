"""A part of a cut model: its file, how it is clipped, and the buffers of a client's part."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from minga.core.errors import ConfigurationError, NonFiniteError
from minga.core.spec.sections import OptimizerSection
from minga.split.computing.halves import BatchFate
from minga.split.computing.parts import ModelPart
from tests.worlds.split_world import CLASSES, batch, layers, make_half, split_spec, values

adam = partial(torch.optim.AdamW, lr=0.01)


def step(part: ModelPart, number: int) -> None:
    inputs, labels = batch(number)
    nn.functional.cross_entropy(nn.Sequential(*part.modules)(inputs), labels).backward()  # type: ignore[no-untyped-call]
    part.step()


def test_one_file_has_all_modules_of_a_part_and_what_its_optimizer_keeps(tmp_path: Path) -> None:
    path, modules, again = tmp_path / "folder" / "parts.safetensors", layers(3), layers(4)
    part, other = (
        ModelPart([nn.Sequential(*each[:5]), each[5]], adam, OptimizerSection()) for each in (modules, again)
    )
    assert other.load(path) is None
    for number in range(3):
        step(part, number)
    part.save(path, {"beside": torch.arange(3)})
    beside = other.load(path)
    assert beside is not None
    assert beside["beside"].tolist() == [0, 1, 2]
    assert other.steps == 3
    step(part, 3)
    step(other, 3)
    assert torch.equal(values(*modules), values(*again)), "the moments, too, are those of before"
    with pytest.raises(ConfigurationError, match="not this part of the model"):
        ModelPart([modules[0]], adam, OptimizerSection()).load(path)
    path.write_bytes(b"damaged")
    with pytest.raises(ConfigurationError, match="not this part of the model"):
        other.load(path)


def test_a_part_with_the_optimizer_of_the_run_spec_is_clipped_as_that_says() -> None:
    section = OptimizerSection(
        name="sgd",
        learning_rate=1.0,
        momentum=0.0,
        weight_decay=0.0,
        max_grad_norm=0.5,
        schedule="constant",
        warmup_steps=0,
    )
    for own, given, longest in (
        (None, None, 0.5),
        (None, 2.0, 2.0),
        (partial(torch.optim.SGD, lr=1.0), None, math.inf),
    ):
        module = nn.Linear(2, 1, bias=False)
        before = values(module)
        part = ModelPart([module], own, section, given)
        module(torch.full((1, 2), 100.0)).sum().backward()
        part.step()
        moved = float((values(module) - before).norm())
        assert moved == pytest.approx(min(longest, 100.0 * 2**0.5), rel=1e-3)


def test_a_gradient_that_is_not_finite_is_no_step_and_is_forgotten() -> None:
    module = nn.Linear(2, 1, bias=False)
    before = values(module)
    part = ModelPart([module], partial(torch.optim.SGD, lr=1.0), split_spec().optimizer)
    module(torch.tensor([[1.0, math.inf]])).sum().backward()
    with pytest.raises(NonFiniteError):
        part.step()
    assert torch.equal(values(module), before)
    assert (part.steps, module.weight.grad) == (0, None)


def test_a_batch_that_is_not_finite_or_is_given_up_leaves_the_buffers_of_a_client_alone() -> None:
    for spoilt in (False, True):
        bottom = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))
        half, (inputs, labels) = make_half(split_spec(), bottom), batch(1)
        before = [each.clone() for each in bottom.buffers()]
        if spoilt:
            inputs[0, 0] = math.inf
            with pytest.raises(NonFiniteError):
                next(half.train(inputs, labels))
        else:
            talk = half.train(inputs, labels)
            next(talk)
            with pytest.raises(StopIteration) as end:
                talk.send(BatchFate.GIVEN_UP)
            assert end.value.value is None
        assert all(torch.equal(a, b) for a, b in zip(before, bottom.buffers(), strict=True))
