"""What all peers have to have alike for their updates: a state of peers with something else is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from minga.core.errors import ConfigurationError
from minga.optim import AdamW
from minga.training.replica.replica import Replica
from minga.training.state.manifest import build_manifest
from minga.training.state.scalars import UPDATES
from minga.training.state.snapshot import StateSnapshot
from tests.worlds.swarm_tools import make_spec


def model_of(frozen: tuple[int, ...] = ()) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    for place in frozen:
        model[place].requires_grad_(False)
    return model


class OwnAdamW(torch.optim.AdamW):
    """A class of a program's own."""


def replica(
    *,
    frozen: tuple[int, ...] = (),
    left_out: int = 0,
    kind: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    lr: float = 0.1,
    **settings: Any,
) -> Replica:
    model = model_of(frozen)
    return Replica(make_spec(4), kind([*model.parameters()][left_out:], lr=lr), model=model, **settings)


@pytest.mark.parametrize(
    ("run", "here", "message"),
    [
        ({}, {"frozen": (0,)}, r"0.bias is trained in the run and frozen here \(1 other differs\)"),
        ({"frozen": (0,)}, {}, r"0.bias is frozen in the run and trained here \(1 other differs\)"),
        ({}, {"left_out": 2}, "0.bias is trained in the run and frozen here"),
        ({"kind": torch.optim.SGD}, {}, "trained by SGD, and the optimizer here is AdamW"),
        ({}, {"kind": torch.optim.SGD}, "trained by AdamW, and the optimizer here is SGD"),
        (
            {"kind": partial(torch.optim.SGD, momentum=0.9, nesterov=True)},
            {"kind": torch.optim.SGD},
            r"SGD \(nesterov\)",
        ),
        ({}, {"max_grad_norm": 0.5}, "max_grad_norm=None, and here it is 0.5"),
        ({"max_grad_norm": 2}, {"max_grad_norm": 0.5}, "max_grad_norm=2.0, and here it is 0.5"),
    ],
)
def test_a_state_of_peers_that_update_otherwise_is_refused(
    run: dict[str, Any], here: dict[str, Any], message: str
) -> None:
    theirs, mine = replica(**run), replica(**here)
    theirs.apply(torch.ones(theirs.vector.numel), 1)
    before = mine.digest()
    for state in (theirs.capture(), build_manifest(theirs.capture())):
        with pytest.raises(ConfigurationError, match=message):
            mine.check(state)
    with pytest.raises(ConfigurationError, match=message):
        mine.restore(theirs.capture())
    assert mine.digest() == before


@pytest.mark.parametrize(
    ("run", "here"),
    [
        ({"lr": 0.1}, {"lr": 0.2}),
        ({"kind": AdamW}, {}),
        ({"kind": OwnAdamW}, {}),
        ({"frozen": (0,)}, {"frozen": (0,), "left_out": 2}),
        ({"max_grad_norm": 1}, {"max_grad_norm": 1.0}),
        ({}, {"kind": torch.optim.SGD, "frozen": (0,), "reads": True}),
    ],
)
def test_what_makes_no_other_update_is_taken(run: dict[str, Any], here: dict[str, Any]) -> None:
    theirs, mine = replica(**run), replica(**here)
    theirs.apply(torch.ones(theirs.vector.numel), 1)
    mine.restore(theirs.capture())
    assert mine.step == 1
    assert mine.optimizer.param_groups[0]["lr"] == theirs.optimizer.param_groups[0]["lr"]


def test_a_newcomer_is_not_refused_for_what_was_amended() -> None:
    theirs, mine = replica(max_grad_norm=1.0), replica(max_grad_norm=1.0)
    theirs.amend({"optimizer.max_grad_norm": "off", "optimizer.learning_rate": 0.5})
    mine.restore(theirs.capture())
    assert mine.digest() == theirs.digest()


def test_a_state_of_an_earlier_build_is_taken_and_a_malformed_one_is_not() -> None:
    mine, snapshot = replica(frozen=(0,)), replica().capture()
    earlier = {name: value for name, value in snapshot.scalars.items() if name != UPDATES}
    mine.restore(_with_scalars(snapshot, earlier))
    assert mine.capture().scalars != earlier
    for said in (None, [], {}, {"frozen": "0.weight"}):
        with pytest.raises(ConfigurationError, match="malformed"):
            mine.check(_with_scalars(snapshot, {**earlier, UPDATES: said}))


def test_a_parameter_that_changes_sides_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    one = replica(frozen=(2,))
    parameters = dict(one._state.parameters())
    mean = torch.ones(one.vector.numel)
    with caplog.at_level(logging.WARNING, "minga"):
        one.apply(mean, 1)
        assert not caplog.messages
        parameters["2.weight"].requires_grad_(True)
        parameters["0.weight"].requires_grad_(False)
        for step in (2, 3):
            one.apply(mean, step)
    thawed, frozen = caplog.messages
    assert "2.weight requires a gradient now" in thawed
    assert "does not train it" in thawed
    assert "0.weight requires no gradient now" in frozen
    assert "rules=" in frozen


def test_what_rests_by_rules_may_require_no_gradient(caplog: pytest.LogCaptureFixture) -> None:
    class Unfreezing:
        def frozen(self, step: int) -> frozenset[str]:
            return frozenset({"0.weight", "0.bias"}) if step < 2 else frozenset()

        def constrain(self, model: nn.Module, step: int) -> None:
            pass

    one = replica(rules=Unfreezing())
    weight = one._state.parameters()["0.weight"]
    weight.requires_grad_(False)
    before, mean = weight.clone(), torch.ones(one.vector.numel)
    with caplog.at_level(logging.WARNING, "minga"):
        for step in (1, 2):
            one.apply(mean, step)
            assert torch.equal(weight, before)
        weight.requires_grad_(True)
        one.apply(mean, 3)
    assert not torch.equal(weight, before)
    assert not caplog.messages


def _with_scalars(snapshot: StateSnapshot, scalars: dict[str, Any]) -> StateSnapshot:
    return StateSnapshot(snapshot.step, snapshot.tensors, scalars, snapshot.buffer)
