"""Makes the optimizer and schedule that a run spec names, and checks which optimizers and models a run can drive."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from minga.averaging.strategy_choice import samples_of_rounds, steps_alike
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import OptimizerSection
from minga.optim import LAMB, LARC, LARS, SGD, AdamW, MomentStorage, Muon
from minga.optim.muon import hidden_matrices
from minga.optim.reproducible import ReproducibleOptimizer
from minga.optim.together import members_of
from minga.training.replica.schedule import parts_of
from minga.training.state.scalars import Json, merge_numbers, number_of

STATE_BYTES: Final[dict[str, int]] = {"lamb": 8, "adamw": 8, "muon": 8, "sgd": 4, "lars": 4, "larc": 4}
"""Bytes of optimizer state for each parameter: two moments in float32, or one. Muon keeps one for the matrices of
hidden layers, which sizes do not tell apart, so two are counted for all.
"""

Decayed = Callable[[str, Tensor], bool]
"""Whether weight decay applies to a parameter, by its name and itself."""


def is_matrix(name: str, parameter: Tensor) -> bool:  # noqa: ARG001
    """The usual rule: decay for matrices and higher; none for biases and the parameters of norms."""
    return parameter.ndim >= 2


def build_optimizer(
    settings: OptimizerSection, model: nn.Module, decayed: Decayed = is_matrix, *, run: RunSpec | None = None
) -> tuple[Optimizer, LRScheduler]:
    """The optimizer of a run, and the scheduler that is to be stepped once per global step.

    LARS does not scale the gradients of parameters that are not `decayed`. `run` says what else counts: Muon gives
    equal bits on all devices, which costs time, unless the run's peers take steps of their own; and the schedule goes
    by the batch that the spec plans for each phase. Gradient clipping is not the optimizer's: it comes after averaging.
    Raises `ConfigurationError` if the model has nothing to train.
    """
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        raise ConfigurationError("the model has no parameter that requires a gradient")
    with_decay = [parameter for name, parameter in trained if decayed(name, parameter)]
    without = [parameter for name, parameter in trained if not decayed(name, parameter)]
    first: dict[str, Any] = {"params": with_decay, "weight_decay": settings.weight_decay}
    second: dict[str, Any] = {"params": without, "weight_decay": 0.0}
    groups = [first, second]
    if settings.name == "lars":
        second["trust_coefficient"] = 0.0
    elif settings.name == "muon":
        hidden = hidden_matrices(model)
        groups = [
            {
                **group,
                "params": [each for each in group["params"] if (each in hidden) == use_muon],
                "use_muon": use_muon,
            }
            for use_muon in (True, False)
            for group in groups
        ]
    exact, sizes = (True, ()) if run is None else (steps_alike(run), samples_of_rounds(run))
    optimizer = _optimizer(settings, [group for group in groups if group["params"]], exact=exact)
    return optimizer, LambdaLR(optimizer, schedule(settings, sizes))


def kept_bytes(model: nn.Module, settings: OptimizerSection) -> int:
    """What the optimizer of a run is going to keep for what it trains of a model."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if settings.name != "muon":
        return moment_bytes([each.numel() for each in trained], settings)
    hidden, of_rest = hidden_matrices(model), settings.model_copy(update={"name": "adamw"})
    matrices = sum(each.numel() for each in trained if each in hidden)
    return 4 * matrices + moment_bytes([each.numel() for each in trained if each not in hidden], of_rest)


def moment_bytes(tensors: Sequence[int], optimizer: OptimizerSection) -> int:
    """What the optimizer keeps for parameters of so many elements each."""
    if optimizer.name in ("sgd", "lars", "larc") and not optimizer.momentum:
        return 0
    if optimizer.state_bits != 8:
        return sum(tensors) * STATE_BYTES[optimizer.name]
    total = 0
    for numel in tensors:
        if optimizer.name == "muon":  # a matrix keeps its one of float32
            total += 4 * numel if numel >= optimizer.state_min_numel else 8 * numel
        elif numel < optimizer.state_min_numel:
            total += STATE_BYTES[optimizer.name] * numel
        else:
            total += 2 * (numel + 4 * -(-numel // optimizer.state_block))
    return total


def _optimizer(settings: OptimizerSection, groups: list[dict[str, Any]], *, exact: bool) -> Optimizer:
    rate, betas = settings.learning_rate, settings.betas
    storage = MomentStorage(settings.state_bits, settings.state_block, settings.state_min_numel)
    match settings.name:
        case "lamb":
            return LAMB(
                groups,
                lr=rate,
                betas=betas,
                eps=settings.epsilon,
                clamp_value=settings.clamp_value,
                debias=settings.debias,
                storage=storage,
            )
        case "adamw":
            return AdamW(groups, lr=rate, betas=betas, eps=settings.epsilon, storage=storage)
        case "muon":
            return Muon(
                groups,
                lr=rate,
                momentum=settings.momentum,
                exact=exact,
                betas=betas,
                eps=settings.epsilon,
                storage=storage,
            )
        case "lars":
            return LARS(groups, lr=rate, momentum=settings.momentum)
        case "larc":
            return LARC(groups, lr=rate, momentum=settings.momentum)
        case "sgd":
            return SGD(groups, lr=rate, momentum=settings.momentum)


def schedule(settings: OptimizerSection, sizes: Sequence[tuple[int, int]] = ()) -> Callable[[int], float]:
    """The learning rate's factor of update number `step` (from 0), a function of the global step alone.

    Where `sizes` plan rounds of several sizes (see `samples_of_rounds`), the settings count those of the first size,
    and a larger one is as many of them: the rate goes by the batch that the spec plans. It does not follow a batch that
    peers measure (`target_batch_size = "auto"`) or that an amendment changes: such a round counts as it was planned.

    It rises linearly from `warmup_learning_rate` over the warm-up, of which the last update has the full rate (the
    first is not wasted on a rate of 0). Then it falls to `final_learning_rate` at `total_steps`, linearly or along half
    a cosine, or stays. The rate belongs to the state that peers compare, so it is computed by operations that round
    alike everywhere.
    """
    warmup, total, kind = settings.warmup_steps, settings.total_steps, settings.schedule
    lowest = settings.warmup_learning_rate / settings.learning_rate
    last = settings.final_learning_rate / settings.learning_rate

    def factor(step: int) -> float:
        done, next_done = (_rounds_before(each, sizes) for each in (step, step + 1))
        if done < warmup:
            return lowest + (1.0 - lowest) * min(1.0, next_done / warmup)
        if kind == "constant":
            return 1.0
        left = max(0.0, (total - done) / max(1, total - warmup))
        return last + (1.0 - last) * (left if kind == "linear" else _half_cosine(left))

    return factor


def _rounds_before(step: int, sizes: Sequence[tuple[int, int]]) -> float:
    """The samples of all steps before `step`, in rounds of the first size; without phases these are as many steps."""
    if len(sizes) < 2:
        return step
    ends = [*(start for start, _ in sizes[1:]), step]
    samples = [size * max(0, min(end, step) - start) for (start, size), end in zip(sizes, ends, strict=True)]
    return sum(samples) / sizes[0][1]


def _half_cosine(left: float) -> float:
    """Return (1 - cos(π left)) / 2, `left` from 0 to 1, as the square of the sine's Taylor series of order 23.

    Libraries of mathematics differ in the last bit of a cosine.
    """
    angle = left * (math.pi / 2)
    square, ratio = angle * angle, 1.0
    for order in range(22, 0, -2):
        ratio = 1.0 - square / (order * (order + 1)) * ratio
    sine = angle * ratio
    return sine * sine


_PEAKS: Final = ("max_lr", "initial_lr")
"""Where schedulers keep in a group the rate that they scale: OneCycleLR, and the others. CyclicLR keeps its peaks
itself, and in the groups the lowest rates: so the greatest of all is the one.
"""
_IN_GROUPS: Final = ("lr", *_PEAKS, "min_lr", "swa_lr")
_IN_SCHEDULERS: Final = ("base_lrs", "max_lrs", "eta_min")
"""Where they keep rates."""


def set_learning_rate(optimizer: Optimizer, scheduler: LRScheduler | None, rate: float) -> None:
    """Make `rate` the learning rate of the first parameter group that does not rest at 0, with a scheduler the one that
    it scales, and change all others in proportion. Nothing changes if it has this rate already.

    All numbers stand in the state that peers share, and one rounding each makes them equal everywhere.
    """
    schedulers = list(parts_of(scheduler))
    before = next(filter(None, (_peak(group, schedulers) for group in optimizer.param_groups)), 0.0)
    if before == rate:
        return
    holders: list[tuple[dict[str, Any], Sequence[str]]] = [(group, _IN_GROUPS) for group in optimizer.param_groups]
    holders += [(vars(each), _IN_SCHEDULERS) for each in schedulers]
    # A tensor may stand in several places: all are computed before any is written.
    scaled = [(held, key, _scaled(held[key], before, rate)) for held, keys in holders for key in keys if key in held]
    for held, key, value in scaled:
        held[key] = merge_numbers(held[key], value)


def _peak(group: Mapping[str, Any], schedulers: Sequence[LRScheduler]) -> float:
    peaks = [float(group[key]) for key in _PEAKS if key in group and schedulers]
    for each in schedulers:
        rates = zip(each.optimizer.param_groups, getattr(each, "max_lrs", None) or (), strict=False)
        peaks += [float(rate) for theirs, rate in rates if theirs is group]
    return max(peaks, default=float(group["lr"] or 0.0))


def _scaled(value: Any, before: float, after: float) -> Json:
    """A rate, or several, in proportion; exactly `after` where it was `before`."""
    if isinstance(value, list | tuple):
        return [_scaled(each, before, after) for each in value]
    number = number_of(value)
    if number is None:  # the optimizer finds it itself
        return None
    return after if number == before or not before else number * (after / before)


# ---- Checks of which optimizers and models a run can drive by averaged gradients alone.


_OPTIONAL: Final = inspect.Parameter("closure", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raise `ConfigurationError` unless `optimizer` can step by dense gradients alone, and has its state itself."""
    for each in members_of(optimizer):
        name = type(each).__name__
        if isinstance(each, torch.optim.SparseAdam):
            raise ConfigurationError(f"{name} needs sparse gradients, and averaged ones are dense; use Adam")
        if inspect.signature(each.step).parameters.get("closure", _OPTIONAL).default is inspect.Parameter.empty:
            raise ConfigurationError(
                f"{name} evaluates the loss several times per step, which peers cannot do together"
            )
        values = (
            value if isinstance(value, list | tuple) else value.values() if isinstance(value, Mapping) else [value]
            for value in vars(each).values()
        )
        inner = next(
            (one for one in chain(*values) if isinstance(one, Optimizer) and one.state is not each.state), None
        )
        if inner is not None:
            raise ConfigurationError(
                f"{name} has the state of its {type(inner).__name__} in another place than its own: newcomers and "
                "checkpoints would lack it. Pass the inner optimizer (several as a list), or make the `state` of both "
                "one dictionary"
            )


def rounds_alike(optimizer: torch.optim.Optimizer) -> bool:
    """Whether equal gradients give equal bits on every device: those of `minga.optim`, with settings that do so."""
    return all(isinstance(each, ReproducibleOptimizer) and each.rounds_alike for each in members_of(optimizer))


def check_model(model: nn.Module | None, optimizer: torch.optim.Optimizer) -> None:
    """Raise `ConfigurationError` unless all parameters have shapes, and `optimizer` trains some of `model`."""
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = [] if model is None else list(model.parameters())
    if any(map(is_lazy, chain(trained, own, () if model is None else model.buffers()))):
        raise ConfigurationError(
            "a lazy layer of the model, such as LazyLinear, has no shape yet: run one forward pass first, then make "
            "the optimizer"
        )
    if model is not None and not {id(each) for each in trained} & {id(each) for each in own}:
        raise ConfigurationError(
            "the optimizer trains no parameter of model=...: make it of the parameters of this very model (a "
            "copy has others)"
        )


def check_plain_descent(strategy: str, optimizer: torch.optim.Optimizer, *, is_clipped: bool) -> None:
    """Raise `ConfigurationError` unless `optimizer` moves parameters by the learning rate times what a strategy says,
    and by weight decay, no more.
    """
    is_plain = type(optimizer) in (torch.optim.SGD, SGD) and not any(
        group.get("momentum") or group.get("dampening") or group.get("maximize") for group in optimizer.param_groups
    )
    if not is_plain:
        raise ConfigurationError(
            f'training.strategy = "{strategy}" brings its own optimizer instead of {type(optimizer).__name__}: take '
            'optimizer.name = "sgd" with optimizer.momentum = 0, or training.strategy = "synchronous"'
        )
    if is_clipped:
        raise ConfigurationError(
            f'training.strategy = "{strategy}" does not step by gradients: set optimizer.max_grad_norm = "off"'
        )
