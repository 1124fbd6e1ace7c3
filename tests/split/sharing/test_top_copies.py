"""SplitFed v1's copies: they are averaged by samples with what their optimizers keep, whichever optimizer it is."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch

from minga.core.refusal_code import RefusalCode
from minga.core.spec.sections import OptimizerSection
from minga.split.computing.applying import BatchWork
from minga.split.computing.parts import ModelPart, cross_entropy
from minga.split.sharing.splitfed import TopCopies
from minga.split.wire.messages import BatchPlace
from tests.worlds.sharing_world import two_parts
from tests.worlds.split_world import WIDTH, values

OPTIMIZERS = {
    "adamw": OptimizerSection(name="adamw", warmup_steps=2, total_steps=50),
    "lamb": OptimizerSection(name="lamb", warmup_steps=2, total_steps=50),
    "sgd": OptimizerSection(name="sgd", momentum=0.9, warmup_steps=2, total_steps=50),
}


def work(client: str, number: int, samples: int, round: int) -> BatchWork:
    """A batch of random activations."""
    chance = torch.Generator().manual_seed(number)
    tensors = (torch.randn(samples, WIDTH, generator=chance),)
    labels = (torch.randint(0, 3, (samples,), generator=chance),)
    return BatchWork(number, client, "train", tensors, labels, place=BatchPlace(round=round))


def copies(section: OptimizerSection, **settings: Any) -> TopCopies:
    """Of a small top, with an optimizer and a schedule of the run spec."""
    return TopCopies(ModelPart([two_parts()[1]], None, section), cross_entropy, **settings)


def averaged(top: TopCopies) -> dict[str, torch.Tensor]:
    """The state at the end of the round, by name."""
    top.settle()
    return {entry.name: tensor for entry, tensor in top.part.capture().named_tensors()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_average_has_the_state_of_the_optimizer_and_goes_on_elsewhere(name: str) -> None:
    """With one client for all samples it is as if there were no copies."""
    alone, one_copy = ModelPart([two_parts()[1]], None, OPTIMIZERS[name]), copies(OPTIMIZERS[name])
    plain = TopCopies(alone, cross_entropy)
    for number in range(6):
        plain.apply(work("a", number, 4, 0))
        one_copy.apply(work("a", number, 4, number // 2))  # the rounds of one client change nothing
    plain.settle()
    one_copy.settle()
    assert torch.allclose(values(*plain.part.modules), values(*one_copy.part.modules), atol=1e-6)
    assert plain.part.capture().scalars == one_copy.part.capture().scalars
    elsewhere = copies(OPTIMIZERS[name])
    elsewhere.part.restore(one_copy.part.capture())
    assert elsewhere.steps == one_copy.steps == 6
    for each in (one_copy, elsewhere):
        each.apply(work("a", 6, 4, 3))
        each.settle()
    assert torch.equal(values(*one_copy.part.modules), values(*elsewhere.part.modules))


def test_moments_are_averaged_by_samples_and_counts_are_those_of_the_copy_with_most_steps() -> None:
    adam = partial(torch.optim.Adam, lr=0.01)
    served = TopCopies(ModelPart([two_parts()[1]], adam, OptimizerSection()), cross_entropy)
    singles = {
        client: TopCopies(ModelPart([two_parts()[1]], adam, OptimizerSection()), cross_entropy) for client in "ab"
    }
    for client, number, samples in (("a", 0, 2), ("b", 1, 9), ("a", 2, 2)):
        served.apply(work(client, number, samples, 0))
        singles[client].apply(work(client, number, samples, 0))
    assert torch.equal(values(*served.part.modules), values(two_parts()[1])), "until the round ends"
    found, of_a, of_b = (averaged(each) for each in (served, singles["a"], singles["b"]))
    for name, tensor in found.items():
        is_count = name.endswith("/step")
        expected = of_a[name] if is_count else of_a[name] * (4 / 13) + of_b[name] * (9 / 13)
        assert torch.allclose(tensor, expected, atol=1e-7), name
    assert served.steps == 3


def test_a_round_that_a_client_makes_up_keeps_no_other_from_ending_one() -> None:
    """Not even in the first batch that a server gets."""
    served = copies(OPTIMIZERS["sgd"])
    served.apply(work("b", 0, 4, 2**53))
    seen = [values(*served.part.modules)]
    for round in range(5, 9):
        for client in "ac":
            served.apply(work(client, round, 4, round))
        seen.append(values(*served.part.modules))
    changed = [not torch.equal(one, other) for one, other in itertools.pairwise(seen)]
    assert changed == [False, True, True, True], "a round ends with the next one of who was in it"
    assert served.steps == 9


def test_a_batch_that_is_late_ends_no_round_and_neither_does_the_next_of_its_client() -> None:
    served = copies(OPTIMIZERS["sgd"])
    for client in "ab":
        served.apply(work(client, 0, 4, 0))
    served.apply(work("a", 1, 4, 1))
    ended = values(*served.part.modules)
    for round in (0, 1):
        served.apply(work("b", round, 4, round))
        assert torch.equal(values(*served.part.modules), ended)
    served.apply(work("b", 2, 4, 2))
    assert not torch.equal(values(*served.part.modules), ended)


def test_clients_beyond_the_copies_that_there_are_come_again_in_the_next_round() -> None:
    served = copies(OPTIMIZERS["sgd"], max_copies=2)
    for client in "ab":
        assert served.apply(work(client, 0, 4, 0))[0].applied
    (outcome,) = served.apply(work("c", 1, 4, 0))
    assert outcome.refusal is not None
    assert outcome.refusal.code == RefusalCode.BUSY
    assert served.apply(work("a", 2, 4, 1))[0].applied
    assert served.apply(work("c", 3, 4, 0))[0].applied, "late, in the round of now"
