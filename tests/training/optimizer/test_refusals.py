"""What cannot be trained together is refused with a reason."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import minga
from tests.worlds.optimizer_loops import BATCH, STEPS, MakePeer, batches, mean_loss, same, small_model, train


def test_a_number_of_samples_is_needed(host: MakePeer) -> None:
    model = small_model()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(), model=model)
    wrong: list[Any] = [0, -1, True, 1.5, "8", 1 << 30]
    for samples in wrong:
        with pytest.raises(minga.ConfigurationError, match=r"step\(samples=\.\.\.\) needs the number of samples"):
            opt.step(samples=samples)
    with pytest.raises(minga.ConfigurationError, match=r"step\(samples=\.\.\.\), or .*samples_per_step=.*integrations"):
        opt.step()
    opt.step(samples=torch.tensor(4))  # any whole number will do


def test_a_loss_is_one_number(host: MakePeer) -> None:
    model = small_model()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(), model=model)
    mean_loss(model, next(batches(BATCH))).backward()
    wrong: list[tuple[Any, str]] = [
        (torch.ones(3), r"float32 \[3\]"),
        ([0.5], "a list"),
        (torch.ones(1) * 1j, "complex64"),
    ]
    for loss, named in wrong:
        with pytest.raises(minga.ConfigurationError, match=f"one number, got .*{named}"):
            opt.step(samples=BATCH, loss=loss)
    opt.step(samples=BATCH, loss=torch.tensor([[0.5]], dtype=torch.float64))
    assert opt.global_step == 1


def test_the_samples_of_each_step_can_be_told_to_the_constructor(host: MakePeer) -> None:
    model, told = small_model(), iter([4, 8, 0])
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(minga.ConfigurationError, match=r"samples_per_step needs the number of samples .* got 0"):
        minga.Optimizer(inner, host(), samples_per_step=0)
    opt = minga.Optimizer(inner, host(), model=model, samples_per_step=lambda: next(told))
    for expected in (4, 8):
        opt.step(lambda: mean_loss(model, next(batches(4))).backward())
        assert opt.last_samples == expected
    assert opt.global_step == 1
    opt.step(samples=BATCH)  # what a call says goes before
    assert (opt.global_step, opt.last_samples) == (2, BATCH)
    with pytest.raises(minga.ConfigurationError, match=r"samples_per_step\(\) needs the number of samples .* got 0"):
        opt.step()


def test_a_loop_that_says_nothing_equals_one_that_does(host: MakePeer) -> None:
    silent, speaking = small_model(), small_model()
    speaking.load_state_dict(silent.state_dict())
    first = minga.Optimizer(torch.optim.SGD(silent.parameters(), lr=0.1), host(), model=silent, samples_per_step=4)
    second = minga.Optimizer(torch.optim.SGD(speaking.parameters(), lr=0.1), host(), model=speaking)
    for batch in itertools.islice(batches(4), 3 * STEPS):
        mean_loss(silent, batch).backward()
        first.step()
        mean_loss(speaking, batch).backward()
        second.step(samples=4)
    assert first.finished
    assert same(silent, speaking)


def refusals() -> dict[str, tuple[Callable[[nn.Module], dict[str, Any]], str]]:
    sgd = torch.optim.SGD

    def scheduled(kind: Callable[..., Any]) -> Callable[[nn.Module], dict[str, Any]]:
        def make(model: nn.Module) -> dict[str, Any]:
            inner = sgd(model.parameters(), lr=0.1)
            return {"optimizer": inner, "scheduler": kind(inner)}

        return make

    return {
        "batch size": (
            lambda m: {"optimizer": sgd(m.parameters(), lr=0.1), "target_batch_size": BATCH + 1},
            r"target_batch_size=13 disagrees with the run spec, which all peers share: 12",
        ),
        "plateau": (scheduled(lr_scheduler.ReduceLROnPlateau), "needs a metric"),
        "scheduler of another": (
            lambda m: {
                "optimizer": sgd(m.parameters(), lr=0.1),
                "scheduler": lr_scheduler.ExponentialLR(sgd(m.parameters(), lr=0.1), 0.5),
            },
            "belongs to another optimizer",
        ),
        "scheduler that is a function": (
            lambda m: {"optimizer": sgd(m.parameters(), lr=0.1), "scheduler": lambda step: 0.1},
            r"must be a torch LRScheduler, not a function; .*LambdaLR\(optimizer, f\)",
        ),
        "another model": (
            lambda m: {"optimizer": sgd(m.parameters(), lr=0.1), "model": copy.deepcopy(m)},
            "trains no parameter of model=",
        ),
        "lazy": (
            lambda _: {"optimizer": sgd(nn.LazyLinear(3).parameters(), lr=0.1)},
            "run one forward pass first",
        ),
        "lazy elsewhere": (
            lambda m: {"optimizer": sgd(m.parameters(), lr=0.1), "model": nn.ModuleList([m, nn.LazyBatchNorm1d()])},
            "run one forward pass first",
        ),
        "lbfgs": (lambda m: {"optimizer": torch.optim.LBFGS(m.parameters())}, "LBFGS evaluates the loss several times"),
        "sparse adam": (lambda m: {"optimizer": torch.optim.SparseAdam(m.parameters())}, "SparseAdam needs sparse"),
        "norm": (lambda m: {"optimizer": sgd(m.parameters(), lr=0.1), "max_grad_norm": 0.0}, "no positive number"),
        "frozen": (
            lambda m: {"optimizer": sgd(m.requires_grad_(False).parameters(), lr=0.1)},
            "no parameter that requires a gradient",
        ),
        "complex": (
            lambda m: {"optimizer": sgd([*m.parameters(), nn.Parameter(torch.zeros(2, dtype=torch.complex64))])},
            "is complex",
        ),
        "meta": (lambda m: {"optimizer": sgd(m.to("meta").parameters(), lr=0.1)}, "on the device meta"),
    }


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[minga.Peer]:
    """A peer to which no program gives an optimizer that it can take."""
    mapping = {"name": "test", "model": {"recipe": "custom"}, "training": {"target_batch_size": BATCH}}
    options = minga.PeerOptions(ephemeral=True, directory=tmp_path_factory.mktemp("peer"), host="127.0.0.1")
    with minga.host(minga.RunSpec.from_mapping(mapping), options) as peer:
        yield peer


@pytest.mark.parametrize("what", refusals())
def test_what_cannot_be_trained_together_is_refused(waiting: minga.Peer, what: str) -> None:
    make, message = refusals()[what]
    with pytest.raises(minga.ConfigurationError, match=message):
        minga.Optimizer(peer=waiting, **make(small_model()))


class Around(torch.optim.Optimizer):
    """Wraps another one, as Lookahead of timm does, or several by their names."""

    def __init__(self, inner: torch.optim.Optimizer, *, by_name: bool) -> None:
        super().__init__(inner.param_groups, {})
        self._inner, self.param_groups = {"all": inner} if by_name else inner, inner.param_groups

    def step(self, closure: Any = None) -> Any:
        return (self._inner["all"] if isinstance(self._inner, dict) else self._inner).step(closure)


@pytest.mark.parametrize("by_name", [False, True])
def test_an_optimizer_whose_state_newcomers_would_lack_is_refused(host: MakePeer, by_name: bool) -> None:
    model, peer = small_model(), host()
    inner = torch.optim.AdamW(model.parameters(), lr=0.1)
    around = Around(inner, by_name=by_name)
    with pytest.raises(minga.ConfigurationError, match="Around has the state of its AdamW in another place"):
        minga.Optimizer([around], peer, model=model)
    around.state = inner.state
    opt = minga.Optimizer(around, peer, model=model)
    train(opt, model, steps=1)
    digest = opt.digest()
    next(iter(inner.state.values()))["exp_avg"].zero_()
    assert opt.digest() != digest
    around.state["count"] = torch.tensor([0])
    with pytest.raises(minga.ConfigurationError, match="Around keeps state under 'count'"):
        opt.digest()
    del around.state["count"]
    with pytest.raises(minga.ConfigurationError, match="Around has the state of its AdamW in another place"):
        opt.load_state_dict(opt.state_dict())


def test_no_peer_and_no_ranks() -> None:
    with pytest.raises(minga.ConfigurationError, match="peer=None is for ranks other than 0"):
        minga.Optimizer(torch.optim.SGD(small_model().parameters(), lr=0.1), None)


def test_a_second_optimizer_for_one_peer_is_refused(host: MakePeer) -> None:
    first, second = small_model(), small_model()
    peer = host()
    opt = minga.Optimizer(torch.optim.SGD(first.parameters(), lr=0.1), peer, model=first)
    with pytest.raises(minga.ConfigurationError, match="already has an optimizer"):
        minga.Optimizer(torch.optim.SGD(second.parameters(), lr=0.1), peer, model=second)
    with pytest.raises(minga.ConfigurationError, match=r"is a minga\.Optimizer already"):
        minga.Optimizer(opt, peer)
    train(opt, first)
    assert opt.finished


def test_parameters_cannot_be_added(host: MakePeer) -> None:
    model = small_model()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(), model=model)
    with pytest.raises(minga.ConfigurationError, match="parameters cannot be added to a run"):
        opt.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


@pytest.mark.parametrize("way", ["group", "in a group", "together"])
def test_parameters_that_are_added_behind_the_back_of_the_run_are_noticed(host: MakePeer, way: str) -> None:
    model, more = small_model(), nn.Parameter(torch.zeros(2))
    inner = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2])]
    given = inner if way == "together" else torch.optim.SGD(model.parameters(), lr=0.1)
    opt = minga.Optimizer(given, host(), model=model)
    train(opt, model, steps=1)
    if way == "in a group":
        opt.inner.param_groups[0]["params"].append(more)
    else:
        (inner[1] if way == "together" else opt.inner).add_param_group({"params": [more]})
    with pytest.raises(minga.ConfigurationError, match="parameters cannot be added to a run"):
        train(opt, model)
