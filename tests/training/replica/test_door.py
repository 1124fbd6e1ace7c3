"""The door: whoever trains something else than the run is refused by name, or brought to what the run trains."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR

from minga.core.errors import ConfigurationError, UnfitError
from minga.optim import SGD, AdamW
from minga.training.replica.replica import Replica
from minga.training.state.manifest import build_manifest
from minga.training.state.scalars import TRAINS
from minga.training.state.snapshot import StateSnapshot
from tests.worlds.swarm_tools import make_spec

pytestmark = pytest.mark.promise("all-peers-train-the-same")

ScheduleOf = Callable[[torch.optim.Optimizer], Any]


class Net(nn.Module):
    """A body and a head of one shape each, in the order that a program chooses; alike for equal seeds."""

    def __init__(self, order: str = "body head", *, wide: int = 3, seed: int = 0, norm: bool = False) -> None:
        super().__init__()
        made: dict[str, nn.Module] = {}
        for place, name in enumerate(("body", "head")):
            torch.manual_seed(10 * seed + place)
            made[name] = nn.Sequential(nn.Linear(wide, wide), nn.Linear(wide, wide))
        for name in order.split():
            self.add_module(name, made[name])
        if norm:
            self.norm = nn.BatchNorm1d(wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.body(x))
        return torch.as_tensor(self.head(self.norm(hidden) if hasattr(self, "norm") else hidden))


class Packed(nn.Module):
    """A layer as the libraries for 4 bits have it: packed weights, and scales that it saves beside them."""

    def __init__(self, scale: float, *, as_buffer: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(12, dtype=torch.uint8).view(12, 1), requires_grad=False)
        self.as_buffer = as_buffer
        if as_buffer:
            self.register_buffer("absmax", torch.tensor([scale]))
        else:
            self.absmax = torch.tensor([scale])

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not self.as_buffer:
            destination[f"{prefix}weight.absmax"] = self.absmax


def replica(
    model: nn.Module | None = None,
    *,
    frozen: tuple[str, ...] = (),
    left_out: tuple[str, ...] = (),
    kind: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    groups: Callable[[list[tuple[str, nn.Parameter]]], Any] = lambda named: [p for _, p in named],
    schedule: ScheduleOf | None = None,
    lr: float = 0.1,
    buffers: str = "average",
    **settings: Any,
) -> Replica:
    model = Net() if model is None else model
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    given = [(name, each) for name, each in model.named_parameters() if not name.startswith(left_out or "-")]
    optimizer = kind(groups(given), lr=lr)
    scheduler = None if schedule is None else schedule(optimizer)
    spec = make_spec(4, training={"buffers": buffers})
    return Replica(spec, optimizer, model=settings.pop("named_by", model), scheduler=scheduler, **settings)


def two_groups(named: list[tuple[str, nn.Parameter]], part: str = "bias") -> Any:
    with_it = [p for name, p in named if part in name]
    return [{"params": [p for name, p in named if part not in name]}, {"params": with_it}]


class OwnAdamW(torch.optim.AdamW):
    """A class of a program's own."""


def refusals() -> dict[str, tuple[Callable[[], Replica], Callable[[], Replica], str]]:
    """Of each kind of difference: the run, a program that comes to it, and what that hears."""
    sgd, adam, one_frozen = torch.optim.SGD, torch.optim.Adam, {"frozen": ("body",), "left_out": ("body",)}

    def base(seed: int) -> Replica:
        model = Net(seed=seed)
        model.head = Net(seed=0).head  # the adapter is alike, and what it is trained on is not
        return replica(model, **one_frozen)

    def packed(scale: float, buffers: str = "average", **how: Any) -> Replica:
        model = nn.ModuleDict({"net": Net(), "base": Packed(scale, **how)})
        return replica(model, left_out=("base",), buffers=buffers)

    return {
        "shape": (
            replica,
            lambda: replica(Net(wide=4)),
            r"the run's model has `body.0.weight` \[3, 3\], this program's has \[4, 4\] \(7 others differ\)",
        ),
        "dtype": (
            replica,
            lambda: replica(Net().double()),
            r"the run's model has `body.0.weight` float32 \[3, 3\], this program's has float64 \[3, 3\]",
        ),
        "layer more": (
            replica,
            lambda: replica(nn.ModuleDict({"body": Net().body, "head": Net().head, "last": nn.Linear(2, 2)})),
            r"the run's model has no `last.weight`, this program's has float32 \[2, 2\]",
        ),
        "layer less": (
            lambda: replica(norm_net()),
            replica,
            r"the run's model has `norm.\w+` float32 \[3\], this program's has no such tensor",
        ),
        "without names": (
            replica,
            lambda: replica(named_by=None),
            r"the other does not; pass model=\.\.\. to minga\.Optimizer",
        ),
        "frozen here": (
            replica,
            lambda: replica(frozen=("head.1",)),
            r"`head.1.bias` is trained in the run and frozen in this program \(and 1 other\)",
        ),
        "frozen there": (
            lambda: replica(frozen=("head.1",)),
            replica,
            r"`head.1.bias` is frozen in the run and trained in this program \(and 1 other\)",
        ),
        "left out": (
            replica,
            lambda: replica(left_out=("head.1",)),
            "`head.1.bias` is trained in the run and frozen in this program",
        ),
        "another base": (
            partial(base, 0),
            partial(base, 1),
            r"`body.0.weight` is frozen and has other values in the run than in this program \(and 3 others\)",
        ),
        "other scales": (
            partial(packed, 0.5),
            partial(packed, 0.25),
            "`base.weight.absmax` is frozen and has other values in the run than in this program",
        ),
        "other scales in a buffer": (
            partial(packed, 0.5, as_buffer=True),
            partial(packed, 0.25, as_buffer=True),
            "`base.absmax`",
        ),
        "other scales in a buffer of its own": (
            partial(packed, 0.5, "local", as_buffer=True),
            partial(packed, 0.25, "local", as_buffer=True),
            "`base.absmax` is frozen",
        ),
        "groups": (
            lambda: replica(groups=two_groups),
            replica,
            r"the run's optimizer has 2 parameter groups, this program's has 1",
        ),
        "order of groups": (
            lambda: replica(groups=two_groups),
            lambda: replica(groups=lambda named: two_groups(named)[::-1]),
            "`body.0.bias` is in parameter group 1 of the run's optimizer, and in group 0 of this program's",
        ),
        "other groups": (
            lambda: replica(groups=two_groups),
            lambda: replica(groups=partial(two_groups, part="head")),
            r"`body.0.bias` is in parameter group 1 of the run's optimizer, and in group 0 of this program's",
        ),
        "optimizer": (
            lambda: replica(kind=sgd),
            replica,
            "the run is trained by SGD, this program's optimizer is AdamW",
        ),
        "switch": (
            lambda: replica(kind=partial(sgd, momentum=0.9, nesterov=True)),
            lambda: replica(kind=sgd),
            r"the run is trained by SGD \(nesterov\), this program's optimizer is SGD",
        ),
        "switch of torch's Adam": (
            lambda: replica(kind=partial(adam, decoupled_weight_decay=True)),
            lambda: replica(kind=adam),
            "the run is trained by AdamW, this program's optimizer is Adam",
        ),
        "bits": (
            replica,
            lambda: replica(kind=eight_bits),
            "optimizer has no number state_bits, this program's has one",
        ),
        "scheduler": (
            lambda: replica(schedule=lambda o: LambdaLR(o, float)),
            replica,
            "the run's learning-rate scheduler is LambdaLR, this program's is none",
        ),
        "other scheduler": (
            lambda: replica(schedule=lambda o: LambdaLR(o, float)),
            lambda: replica(schedule=lambda o: ExponentialLR(o, 0.5)),
            "the run's learning-rate scheduler is LambdaLR, this program's is ExponentialLR",
        ),
        "norm": (
            lambda: replica(max_grad_norm=2),
            lambda: replica(max_grad_norm=0.5),
            r"the run began with max_grad_norm=2.0, this program has 0.5",
        ),
        "largest element": (
            replica,
            lambda: replica(max_grad_value=0.5),
            "the run began with max_grad_value=None, this program has 0.5",
        ),
        "unit": (
            replica,
            lambda: replica(unit="tokens"),
            "the run counts samples, this program counts tokens: the target batch size is in samples",
        ),
    }


def norm_net() -> nn.Module:
    return Net(norm=True)


def eight_bits(parameters: Any, lr: float) -> torch.optim.Optimizer:
    from minga.optim import MomentStorage

    return AdamW(parameters, lr=lr, storage=MomentStorage(bits=8))


@pytest.mark.parametrize("what", refusals())
def test_a_program_that_trains_something_else_is_refused_by_name(what: str) -> None:
    make_run, make_mine, message = refusals()[what]
    run, mine = make_run(), make_mine()
    assert run.trains != mine.trains
    run.apply(torch.ones(run.vector.numel), 1)
    before = mine.digest()
    for state in (run.capture(), build_manifest(run.capture())):
        with pytest.raises(UnfitError, match=message):
            mine.check(state)
    with pytest.raises(UnfitError, match=message):
        mine.restore(run.capture())
    assert mine.digest() == before


@pytest.mark.parametrize(
    ("run", "here"),
    [
        ({"lr": 0.1}, {"lr": 0.2}),
        ({"kind": AdamW}, {}),
        ({"kind": OwnAdamW}, {}),
        ({"frozen": ("head.1",)}, {"frozen": ("head.1",), "left_out": ("head.1",)}),
        ({"max_grad_norm": 1}, {"max_grad_norm": 1.0}),
        ({"unit": "tokens"}, {"unit": "tokens"}),
        ({}, {"kind": torch.optim.SGD, "frozen": ("head.1",), "reads": True}),
    ],
)
def test_what_makes_no_other_update_is_taken(run: dict[str, Any], here: dict[str, Any]) -> None:
    theirs, mine = replica(**run), replica(**here)
    theirs.apply(torch.ones(theirs.vector.numel), 1)
    mine.restore(theirs.capture())
    assert mine.step == 1
    assert mine.optimizer.param_groups[0]["lr"] == theirs.optimizer.param_groups[0]["lr"]
    if not here.get("reads"):
        assert (mine.trains, mine.digest()) == (theirs.trains, theirs.digest())


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def compiled(module: nn.Module) -> nn.Module:
    """As `torch.compile` makes it, without the compiler."""
    wrapper = nn.Module()
    wrapper._orig_mod = module
    wrapper.forward = module.forward
    return wrapper


def unlike_programs() -> dict[str, Callable[[], nn.Module]]:
    def changed(change: Callable[[Net], object]) -> Callable[[], nn.Module]:
        def make() -> nn.Module:
            model = Net(norm=True)
            change(model)
            return model

        return make

    return {
        "layers in another order": lambda: Net("head body", norm=True),
        "one layer compiled": changed(lambda m: setattr(m, "head", compiled(m.head))),
        "a layer in a layer compiled": changed(lambda m: m.body.__setitem__(1, compiled(m.body[1]))),
        "one layer under DDP": changed(lambda m: setattr(m, "body", DistributedDataParallel(m.body))),
        "all of it, both ways": lambda: compiled(DistributedDataParallel(Net("head body", norm=True))),
        "a copy that is compiled": changed(lambda m: setattr(m, "a_copy", compiled(m.head))),
    }


@pytest.mark.parametrize("name", unlike_programs())
def test_unlike_programs_average_the_same_layers_and_hold_the_same_bits(name: str, one_process: None) -> None:
    """Listed in another order, equal shapes were averaged with one another, and other shapes made two runs."""

    def groups(named: list[tuple[str, nn.Parameter]]) -> Any:
        return [p for _, p in named[::-1]]

    kind = partial(SGD, momentum=0.9)
    first, second, plain = Net(norm=True), unlike_programs()[name](), Net(norm=True)
    one = replica(first, kind=kind)
    other = replica(second, kind=kind, groups=groups)
    assert (one.vector.layout, one.trains, one.digest()) == (other.vector.layout, other.trains, other.digest())
    other.restore(one.capture())
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for step in (1, 2):
        mean = one.vector.new()
        reference.zero_grad()
        for place, (peer, model) in enumerate(((one, first), (other, second))):
            backward(model, seed=2 * step + place)
            assert peer.accumulate(mean, 0.5)
            backward(plain, seed=2 * step + place, share=0.5)
        for peer in (one, other):
            peer.apply(mean, step)
        reference.step()
        assert one.digest() == other.digest()
    for (_, value), (_, expected) in zip(first.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)


def backward(model: nn.Module, seed: int, share: float = 1.0) -> None:
    inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
    (model(inputs).square().mean() * share).backward()


def test_layers_keep_their_order_where_names_count_them() -> None:
    model = nn.Sequential(*(nn.Linear(1, 1 + place, bias=False) for place in range(11)))
    assert replica(model).vector.layout.numels == (*range(1, 12), 11)  # at last what says which had a gradient


def test_names_given_to_the_optimizer_count_without_a_model() -> None:
    first, second = Net("body head"), compiled(Net("head body"))
    one, other = (Replica(make_spec(4), torch.optim.SGD(model.named_parameters(), lr=0.1)) for model in (first, second))
    assert (one.trains, one.digest()) == (other.trains, other.digest())
    backward(first, seed=1)
    backward(second, seed=1)
    sums = one.vector.new(), other.vector.new()
    assert one.accumulate(sums[0], 1.0)
    assert other.accumulate(sums[1], 1.0)
    assert torch.equal(*sums)
    twice = [{"params": list(nn.Linear(2, 2).named_parameters())} for _ in range(2)]
    with pytest.raises(ConfigurationError, match="two parameters are called weight: pass the model that has both"):
        Replica(make_spec(4), torch.optim.SGD(twice, lr=0.1))


def test_tied_parameters_go_by_one_name_whichever_comes_first() -> None:
    def tied(order: str) -> Net:
        model = Net(order)
        model.head[1].weight = model.body[1].weight
        return model

    one, other = replica(tied("body head")), replica(tied("head body"))
    assert (one.vector.layout, one.trains, one.digest()) == (other.vector.layout, other.trains, other.digest())


def test_numbers_of_the_run_replace_those_of_the_program_and_it_hears_which(caplog: pytest.LogCaptureFixture) -> None:
    run = replica(kind=partial(torch.optim.AdamW, weight_decay=0.5))
    mine = replica(lr=0.7)
    with caplog.at_level(logging.WARNING, "minga"):
        for _ in range(2):
            mine.restore(run.capture())
    assert mine.digest() == run.digest()
    (heard,) = caplog.messages
    assert "weight_decay = 0.01 of this program's optimizer gives way to the run's 0.5" in heard
    assert "lr" not in heard


# ---- what a program does later


def changes() -> dict[str, tuple[Callable[[Net], object], str]]:
    return {
        "replaced": (
            lambda m: setattr(m, "head", Net().head),
            "the optimizer trains 4 tensors that the model no longer has, such as `head.0.bias`",
        ),
        "grown": (
            lambda m: m.head.__setitem__(1, nn.Linear(3, 5)),
            "the optimizer trains 2 tensors that the model no longer has, such as `head.1.bias`",
        ),
        "added": (
            lambda m: m.add_module("adapter", nn.Linear(3, 3)),
            "the model has 2 tensors that it had not when minga.Optimizer was made, such as `adapter.bias`",
        ),
        "gone": (lambda m: delattr(m, "norm"), "the optimizer trains 2 tensors that the model no longer has"),
        "cast": (lambda m: m.body.half(), r"`body.0.bias` of the model is float16 \[3\], and was float32 \[3\]"),
        "another buffer": (
            lambda m: setattr(m.norm, "running_mean", torch.zeros(3)),
            "`norm.running_mean` of the model is another tensor since",
        ),
    }


@pytest.mark.parametrize("what", changes())
def test_what_becomes_of_the_model_later_is_noticed_at_the_next_checkpoint_or_comparison(what: str) -> None:
    model = Net(norm=True)
    one = replica(model)
    one.digest()
    one.capture()
    change, message = changes()[what]
    change(model)
    for look in (one.digest, one.capture, one.capture_all):
        with pytest.raises(UnfitError, match=message):
            look()


def test_frozen_values_that_a_program_changes_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model, twin = Net(), Net()
    one = replica(model, frozen=("body",))
    with caplog.at_level(logging.WARNING, "minga"):
        one.restore(replica(twin, frozen=("body",)).capture())
        one.digest()
        with torch.no_grad():
            model.body[0].weight.mul_(1.0)  # the values are the same
        one.digest()
        assert not caplog.messages
        model.body[0].weight.data = model.body[0].weight.data * 2
        one.digest()
        one.capture()
    (heard,) = caplog.messages
    assert "body.0.weight is frozen in the run, and this program changed its values" in heard


def test_a_parameter_that_changes_sides_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model = Net()
    one = replica(model, frozen=("head",))
    mean = torch.ones(one.vector.numel)
    with caplog.at_level(logging.WARNING, "minga"):
        one.apply(mean, 1)
        assert not caplog.messages
        model.head[0].weight.requires_grad_(True)
        model.body[0].weight.requires_grad_(False)
        for step in (2, 3):
            one.apply(mean, step)
    thawed, frozen = caplog.messages
    assert "head.0.weight requires a gradient now" in thawed
    assert "does not train it" in thawed
    assert "body.0.weight requires no gradient now" in frozen
    assert "rules=" in frozen


def test_what_rests_by_rules_may_require_no_gradient(caplog: pytest.LogCaptureFixture) -> None:
    class Unfreezing:
        def frozen(self, step: int) -> frozenset[str]:
            return frozenset({"body._orig_mod.0.weight", "body.0.bias"}) if step < 2 else frozenset()

        def constrain(self, model: nn.Module, step: int) -> None:
            pass

    model = Net()
    weight = model.body[0].weight
    model.body = compiled(model.body)
    one = replica(model, rules=Unfreezing())
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


# ---- what stands in states


def test_a_newcomer_is_not_refused_for_what_was_amended() -> None:
    theirs, mine = replica(max_grad_norm=1.0), replica(max_grad_norm=1.0)
    theirs.amend({"optimizer.max_grad_norm": "off", "optimizer.learning_rate": 0.5})
    mine.restore(theirs.capture())
    assert mine.digest() == theirs.digest()


def test_a_state_that_does_not_say_what_trains_or_lies_about_it_is_refused() -> None:
    mine, snapshot = replica(frozen=("head",)), replica().capture()
    said: Any = snapshot.scalars[TRAINS]
    without = {name: value for name, value in snapshot.scalars.items() if name != TRAINS}
    lies = [{**said, name: value} for name in said for value in ([{}], {"a": 1}, 3) if "max_grad" not in name]
    lies += [{**said, "unit": word} for word in ("\x1b[2J", "x" * 1000)]
    for lie in (None, [], {}, {"frozen": "head"}, *lies):
        with pytest.raises(ConfigurationError):
            mine.check(_with_scalars(snapshot, {**without, TRAINS: lie}))
    with pytest.raises(ConfigurationError, match="do not say what trains"):
        mine.check(_with_scalars(snapshot, without))


@pytest.mark.parametrize("unit", ["", " ", "a\nb", "x" * 41])
def test_a_unit_is_a_word(unit: str) -> None:
    with pytest.raises(ConfigurationError, match="is no word for what"):
        replica(unit=unit)


def _with_scalars(snapshot: StateSnapshot, scalars: dict[str, Any]) -> StateSnapshot:
    return StateSnapshot(snapshot.step, snapshot.tensors, scalars, snapshot.buffer)
