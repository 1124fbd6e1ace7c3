"""The check on held-out samples: a server that sends poisoned gradients is suspicious, an honest one never is."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.split.computing.applying import BatchOutcome, BatchWork, OneTop
from minga.split.computing.halves import Answer, BatchFate, ClientHalf, Question, converse
from minga.split.computing.parts import ModelPart, cross_entropy
from minga.split.held_out import LOOKS_TO_LEARN, HeldOutFinding, HeldOutRule, HeldOutWatch, entropy_of
from minga.split.server.batch_server import BatchServer
from tests.worlds.seeds import seeds, soaked
from tests.worlds.split_world import CLASSES, FEATURES, Desk, layers, make_half, split_spec

Ask = Callable[[Question], Awaitable[Answer | BatchFate]]
adam = partial(torch.optim.Adam, lr=0.01)


class HostileTop(OneTop):
    """Learns as it should, and from `from_step` on sends gradients by which the bottoms unlearn, of the same length."""

    from_step = 0

    def apply(self, work: BatchWork) -> Sequence[BatchOutcome]:
        outcomes = super().apply(work)
        is_hostile = work.kind in ("train", "backward") and self.steps > self.from_step
        return [
            replace(each, tensors=tuple(-3.0 * tensor for tensor in each.tensors)) if is_hostile else each
            for each in outcomes
        ]


class HijackingTop(OneTop):
    """Leads the bottom to activations of its own choice, whatever the task: as large as can be, and all alike."""

    def apply(self, work: BatchWork) -> Sequence[BatchOutcome]:
        pulled = work.tensors[0].detach() - 1.0
        return [replace(each, tensors=(pulled,)) if work.kind == "train" else each for each in super().apply(work)]


def labelled(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of three classes that can be told apart, but not always."""
    chance = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, FEATURES, generator=chance)
    noise = 0.5 * torch.randn(count, CLASSES, generator=chance)
    return inputs, (2.0 * inputs[:, :CLASSES] + noise).argmax(1)


def core_of(spec: RunSpec, top: nn.Module, kind: type[OneTop]) -> BatchServer:
    part = ModelPart([top], adam, spec.optimizer)
    loss = cross_entropy if spec.split.variant == "vanilla" else None
    return BatchServer(kind(part, loss), spec.split, entropy=random.Random(1).randbytes)


async def watched(half: ClientHalf, ask: Ask, batches: int, seed: int) -> list[tuple[int, HeldOutFinding]]:
    """What a client finds, and after which batch; it looks after every ten."""
    watch = HeldOutWatch(*labelled(64, 99), 10, is_cross_entropy=True, max_samples=4096)
    found: list[tuple[int, HeldOutFinding]] = []
    for number in range(1, batches + 1):
        await converse(half.train(*labelled(16, 1000 * seed + number)), ask)
        if watch.is_due():
            finding = watch.rule.take(await converse(half.evaluate(watch.inputs, watch.labels), ask))
            if finding is not None:
                found.append((number, finding))
    return found


def parts_of(spec: RunSpec, kind: type[OneTop], seed: int) -> tuple[ClientHalf, BatchServer]:
    modules, last = layers(seed), None if spec.split.variant == "vanilla" else 5
    head = None if last is None else nn.Sequential(*modules[last:])
    half = make_half(spec, nn.Sequential(*modules[:2]), head, adam)
    return half, core_of(spec, nn.Sequential(*modules[2:last]), kind)


def findings(kind: type[OneTop], variant: str, batches: int, seed: int) -> list[tuple[int, HeldOutFinding]]:
    """Without a network."""
    half, core = parts_of(split_spec(variant), kind, seed)
    return asyncio.run(watched(half, Desk(core).ask, batches, seed))


class LaterHostile(HostileTop):
    from_step = 60


@pytest.mark.parametrize("variant", [soaked("vanilla"), "u-shaped"])
def test_an_honest_server_is_never_suspicious(variant: str) -> None:
    assert findings(OneTop, variant, 150, 0) == []


@pytest.mark.parametrize("variant", ["vanilla", "u-shaped"])
def test_poisoned_gradients_are_suspicious_soon(variant: str) -> None:
    (number, finding), *_ = findings(LaterHostile, variant, 200, 0)
    assert LaterHostile.from_step < number <= 200
    assert "wrong gradients" in finding.why


@pytest.mark.parametrize("seed", seeds(1, of=3))
def test_a_server_that_hijacks_the_features_is_suspicious(seed: int) -> None:
    """With most seeds: where its activations are still good for the task there is nothing to see."""
    assert findings(HijackingTop, "vanilla", 130, seed)


def test_rules_on_given_courses() -> None:
    def found(losses: Sequence[float], guessing: float | None = 2.3) -> list[int]:
        rule = HeldOutRule(guessing)
        return [number for number, loss in enumerate(losses, 1) if rule.take(loss) is not None]

    falling = [2.4 * 0.9**k for k in range(30)]
    assert found(falling) == []
    assert found([*falling, *[falling[-1] + 0.3] * 9]) == [], "it overfits a little"
    assert found([*falling, 1.9, 1.9, 0.2, 1.9, 1.9]) == [], "outliers"
    assert found([*falling, *[1.9] * 9, 0.2, *[1.9] * 9]) == [33, 43]
    assert found([*falling, *[math.nan] * 5]) == [33]
    assert found([2.31] * 40) == [LOOKS_TO_LEARN]
    assert found([2.31] * 19 + [2.2] * 20) == [], "it begins to learn"
    assert found([5.0] * 40) == [LOOKS_TO_LEARN]
    assert found([9.0 * 0.9**k for k in range(30)], None) == [], "of a loss of which nobody knows what guessing has"
    assert found([9.0, 4.0, 3.0, *[12.0] * 3], None) == [6]


def test_entropy_of_labels() -> None:
    assert entropy_of(torch.arange(10)) == pytest.approx(math.log(10))
    assert entropy_of(torch.tensor([0, 0, 0, 1])) == pytest.approx(0.5623, abs=1e-4)
    assert entropy_of(torch.zeros(4, dtype=torch.long)) is None
    assert entropy_of(torch.rand(4)) is None


def test_samples_that_cannot_be_looked_at() -> None:
    inputs, labels = labelled(8, 0)
    for every, count, most in ((0, 8, 8), (1, 8, 7), (1, 0, 8)):
        with pytest.raises(ConfigurationError):
            HeldOutWatch(inputs, labels[:count], every, is_cross_entropy=True, max_samples=most)
