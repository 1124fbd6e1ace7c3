"""What every strategy must do, as checks to be run against its class.

    @pytest.mark.parametrize("check", STRATEGY_CHECKS)
    def test_my_strategy(check):
        check(MyStrategy)

Each check raises `StrategyViolation` with the case that failed. All numbers are exact in float32, so that all sums are.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Final

import torch

from minga.averaging.strategy_choice import StrategyFacts
from minga.core.errors import NonFiniteError
from minga.training.strategy.interface import Strategy

_NUMEL: Final = 5


class StrategyViolation(AssertionError):
    """A strategy broke a promise of the interface."""


def _require(holds: bool, kind: type[Strategy], what: str) -> None:
    if not holds:
        raise StrategyViolation(f"{kind.__name__}: {what}")


def _begin(kind: type[Strategy], unit: int = 1) -> Strategy:
    return kind(lambda: torch.zeros(_NUMEL), threading.Condition(), unit=unit)


def _feed(strategy: Strategy, *micro_batches: tuple[float, int]) -> None:
    """Micro-batches by the value of their mean gradients and their samples."""
    for value, samples in micro_batches:

        def accumulate(vector: torch.Tensor, weight: float = value * samples) -> bool:
            vector.add_(weight)
            return True

        strategy.micro_batch(accumulate)
        strategy.count(samples)


def _contribution(kind: type[Strategy], strategy: Strategy, value: float, samples: int, what: str) -> None:
    mean, weight = strategy.contribution()
    wanted = torch.full((_NUMEL,), value)
    good = mean is not None and weight == samples and torch.equal(mean, wanted)
    _require(good, kind, f"{what}: contributed {mean} of {weight} samples, not {value} of {samples}")


def check_facts(kind: type[Strategy]) -> None:
    """The facts are facts of the class, equal for every instance."""
    _require(isinstance(kind.facts, StrategyFacts) and kind.facts.vectors >= 1, kind, "its facts are none")
    _require(_begin(kind).facts == kind.facts == _begin(kind, 7).facts, kind, "its facts differ between instances")
    vectors = []
    kind(lambda: vectors.append(0) or torch.zeros(_NUMEL), threading.Condition(), unit=1)  # type: ignore[func-returns-value]
    _require(len(vectors) == kind.facts.vectors, kind, f"it holds {len(vectors)} vectors, not {kind.facts.vectors}")


def check_mean(kind: type[Strategy]) -> None:
    """A contribution is the mean by samples of all that came before it was closed, whatever `unit` is."""
    strategy = _begin(kind)
    _feed(strategy, (2.0, 1), (6.0, 3))
    _require(strategy.samples == 4, kind, "samples are miscounted")
    strategy.close()
    _require(strategy.complete_samples == 4, kind, "not all samples are complete once they are closed")
    _contribution(kind, strategy, 5.0, 4, "two micro-batches")


def check_take_back(kind: type[Strategy]) -> None:
    """After `take_back` a new contribution is the same, and micro-batches that came meanwhile count as well."""
    strategy = _begin(kind)
    _feed(strategy, (2.0, 2), (4.0, 2))
    strategy.close()
    _contribution(kind, strategy, 3.0, 4, "the first time")
    strategy.take_back()
    _contribution(kind, strategy, 3.0, 4, "after take_back")
    if kind.facts.keeps_late_micro_batches:
        _feed(strategy, (11.0, 4))
    strategy.take_back()
    if strategy.has_leftover:
        strategy.merge()
    if not kind.facts.keeps_late_micro_batches:
        _feed(strategy, (11.0, 4))
    _require(strategy.samples == 8, kind, "samples were lost or doubled by take_back")
    strategy.close()
    _contribution(kind, strategy, 7.0, 8, "after take_back and more micro-batches")


def check_repeated_calls(kind: type[Strategy]) -> None:
    """A contribution gives the same bytes again, and taking it back twice takes it back once."""
    strategy = _begin(kind, unit=8)
    _feed(strategy, (0.3, 3), (0.7, 4))
    strategy.close()
    first, samples = strategy.contribution()
    before = None if first is None else first.clone()
    again, samples_again = strategy.contribution()
    same = before is not None and again is not None and torch.equal(before, again) and samples == samples_again
    _require(same, kind, "a second contribution of the same samples differs")
    strategy.take_back()
    once = strategy.samples, strategy.contribution()[0].clone()  # type: ignore[union-attr]
    strategy.take_back()
    strategy.take_back()
    twice = strategy.samples, strategy.contribution()[0]
    good = once[0] == twice[0] == 7 and twice[1] is not None and torch.allclose(once[1], twice[1], rtol=1e-6)
    _require(good, kind, "taking back twice is not taking back once")


def check_late_micro_batches(kind: type[Strategy]) -> None:
    """Micro-batches after a contribution was closed, however many, all count after it is taken back."""
    if not kind.facts.keeps_late_micro_batches:
        return
    for late in (1, 2, 5):
        strategy = _begin(kind)
        _feed(strategy, (4.0, 2))
        strategy.close()
        strategy.contribution()
        _feed(strategy, *[(8.0, 2)] * late)
        strategy.take_back()
        if strategy.has_leftover:
            strategy.merge()
        strategy.close()
        _contribution(kind, strategy, (8.0 + 16.0 * late) / (2 + 2 * late), 2 + 2 * late, f"{late} late micro-batches")


def check_alone(kind: type[Strategy]) -> None:
    """One peer, whose mean is its own contribution, descends exactly as a hand-written loop does: sign and scale."""
    by_hand = through = torch.full((_NUMEL,), 8.0)
    strategy = _begin(kind)
    for _ in range(20):
        micro_batches = [(1.0, 1), (2.0, 3)]  # targets, samples
        gradient = sum((by_hand - target) * samples for target, samples in micro_batches) / 4
        by_hand = by_hand - 0.5 * gradient
        _feed(strategy, *[(float(through[0] - target), samples) for target, samples in micro_batches])
        strategy.close()
        mean, samples = strategy.contribution()
        if mean is None or samples != 4:
            raise StrategyViolation(f"{kind.__name__}: alone it contributed {mean} of {samples} samples")
        through = through - 0.5 * mean
        strategy.absorb(everything=False)
    _require(torch.allclose(by_hand, through, rtol=1e-6), kind, f"alone it came to {through}, by hand to {by_hand}")


def check_unequal_speeds(kind: type[Strategy]) -> None:
    """Peers with 1, 4 and 16 times the samples contribute with these weights: the mean is over samples, not peers."""
    total, weights = torch.zeros(_NUMEL), 0
    for value, speed in ((32.0, 1), (16.0, 4), (2.0, 16)):
        strategy = _begin(kind)
        _feed(strategy, *[(value, 1)] * speed)
        strategy.close()
        mean, weight = strategy.contribution()
        _require(mean is not None and weight == speed, kind, f"it counted {weight} samples, not {speed}")
        if mean is not None:
            total += mean * weight
            weights += weight
    wanted = (32.0 + 64.0 + 32.0) / 21
    good = weights == 21 and torch.allclose(total / weights, torch.full((_NUMEL,), wanted), rtol=1e-6)
    _require(good, kind, f"the mean over samples is {total / weights}, not {wanted}")


def check_absorb(kind: type[Strategy]) -> None:
    """`absorb` forgets what was complete and nothing that came after it, unless it is to forget everything."""
    strategy = _begin(kind)
    _feed(strategy, (2.0, 2))
    strategy.close()
    strategy.contribution()
    late = 4 if kind.facts.keeps_late_micro_batches else 0
    if late:
        _feed(strategy, (8.0, late))
    strategy.absorb(everything=False)
    _require(strategy.samples == late and strategy.complete_samples in (0, late), kind, "absorb forgot other samples")
    _feed(strategy, (16.0, 4))
    strategy.close()
    _contribution(kind, strategy, 12.0 if late else 16.0, late + 4, "after absorb")
    _feed(strategy, (1.0, 1))
    strategy.absorb(everything=True)
    _require(strategy.samples == 0, kind, "absorb kept samples that it was to forget")
    _feed(strategy, (5.0, 1))
    strategy.close()
    _contribution(kind, strategy, 5.0, 1, "after everything was forgotten")


def check_nothing(kind: type[Strategy]) -> None:
    """Without samples there is no contribution, of weight 0; and the round may count or come to nothing."""
    strategy = _begin(kind)
    for _ in range(2):
        strategy.close()
        _require(strategy.contribution() == (None, 0), kind, "it contributed something without samples")
        strategy.take_back()
        strategy.absorb(everything=False)


def check_not_finite(kind: type[Strategy]) -> None:
    """A sum that is not finite raises `NonFiniteError` and is forgotten."""
    for value in (math.nan, math.inf, 1e38):
        strategy = _begin(kind)
        _feed(strategy, (value, 1))
        strategy.close()
        try:
            strategy.contribution()
        except NonFiniteError:
            _require(strategy.samples == 0, kind, f"samples of a sum of {value} still count")
        else:
            raise StrategyViolation(f"{kind.__name__}: a sum of {value} was contributed")
        _feed(strategy, (3.0, 1))
        strategy.close()
        _contribution(kind, strategy, 3.0, 1, "after a sum that was not finite")


def check_interrupted(kind: type[Strategy]) -> None:
    """A micro-batch that fails half-way leaves nothing behind in the open sum."""
    strategy = _begin(kind)

    def broken(vector: torch.Tensor) -> bool:
        vector[0] = 7.0
        raise KeyboardInterrupt

    try:
        strategy.micro_batch(broken)
    except KeyboardInterrupt:
        pass
    else:
        raise StrategyViolation(f"{kind.__name__}: an interrupt was swallowed")
    _feed(strategy, (3.0, 1))
    strategy.close()
    _contribution(kind, strategy, 3.0, 1, "after an interrupt")


STRATEGY_CHECKS: Final[tuple[Callable[[type[Strategy]], None], ...]] = (
    check_facts,
    check_mean,
    check_take_back,
    check_repeated_calls,
    check_late_micro_batches,
    check_alone,
    check_unequal_speeds,
    check_absorb,
    check_nothing,
    check_not_finite,
    check_interrupted,
)
"""All checks, each taking the class and raising `StrategyViolation` if it fails."""


def check_strategy(kind: type[Strategy]) -> None:
    """Run every check in turn. Raises the first failure."""
    for check in STRATEGY_CHECKS:
        check(kind)
