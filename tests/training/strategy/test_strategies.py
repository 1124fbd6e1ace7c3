"""Strategies: the conformance suite on each, and one of another package in a whole run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.strategy_choice import STRATEGIES, StrategyChoice, StrategyFacts
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.testing import STRATEGY_CHECKS, Violation
from minga.testing.strategies.contributions import (
    check_alone,
    check_clipping,
    check_facts,
    check_mean,
    check_repeated_calls,
    check_take_back,
    check_uncounted,
    check_unequal_speeds,
)
from minga.testing.strategies.states import check_shared_part
from minga.training.plugins_of_run import check_plugins
from minga.training.strategy.centred import Elastic
from minga.training.strategy.demo import Demo
from minga.training.strategy.interface import Strategy
from minga.training.strategy.leader import Leader
from minga.training.strategy.synchronous import Delayed, Synchronous


@pytest.mark.parametrize("kind", [Synchronous, Delayed, Elastic, Leader, Demo])
@pytest.mark.parametrize("check", STRATEGY_CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Callable[[type[Strategy]], None], kind: type[Strategy]) -> None:
    check(kind)


def test_the_suite_finds_a_strategy_that_loses_what_came_back() -> None:
    class Forgetful(Synchronous):
        def take_back(self) -> None:
            self._forget_complete()

    with pytest.raises(Violation, match="contributed nothing"):
        check_take_back(Forgetful)


def test_the_suite_finds_a_strategy_that_takes_back_what_it_has_taken_back() -> None:
    class Repeating(Synchronous):
        def take_back(self) -> None:
            self._is_contributed = True
            super().take_back()

    with pytest.raises(Violation, match="taking back twice"):
        check_repeated_calls(Repeating)


def test_the_suite_finds_a_strategy_that_averages_peers_instead_of_samples() -> None:
    class Equal(Synchronous):
        def contribution(self) -> tuple[torch.Tensor | None, int]:
            return super().contribution()[0], 1

    with pytest.raises(Violation, match="counted 1 samples, not 4"):
        check_unequal_speeds(Equal)


def test_the_suite_finds_a_strategy_that_weighs_otherwise_than_it_added() -> None:
    class Whole(Synchronous):
        def contribution(self) -> tuple[torch.Tensor | None, int]:
            mean, samples = super().contribution()
            return None if mean is None else mean / self._unit, samples

    with pytest.raises(Violation, match="with unit=256: contributed"):
        check_mean(Whole)
    with pytest.raises(Violation, match="by hand"):
        check_alone(Whole)


def test_the_suite_finds_a_strategy_that_does_not_clip_or_takes_back_what_it_clipped() -> None:
    class Long(Synchronous):
        def contribution(self) -> tuple[torch.Tensor | None, int]:
            self.replica.max_grad_norm = None  # type: ignore[attr-defined]
            return super().contribution()

    class Short(Synchronous):
        def take_back(self) -> None:
            self._clipped = 1.0
            super().take_back()

    with pytest.raises(Violation, match=r"a gradient of norm 11\.1803, where the run's largest is 1"):
        check_clipping(Long)
    with pytest.raises(Violation, match="what it took back"):
        check_clipping(Short)


def test_the_suite_finds_a_strategy_that_goes_uphill() -> None:
    class Uphill(Synchronous):
        def contribution(self) -> tuple[torch.Tensor | None, int]:
            mean, samples = super().contribution()
            return None if mean is None else -mean, samples

    with pytest.raises(Violation, match="alone it came"):
        check_alone(Uphill)


def test_the_suite_finds_a_strategy_that_takes_more_memory_than_it_says() -> None:
    class Modest(Delayed):
        facts = StrategyFacts(max_in_flight=1, keeps_late_micro_batches=True, vectors=1)

    with pytest.raises(Violation, match="it holds 2 vectors, not 1"):
        check_facts(Modest)


def test_the_suite_finds_a_strategy_whose_own_part_is_in_the_digest() -> None:
    class Stepping(Synchronous):
        def micro_batch(self, samples: int) -> bool:
            return super().micro_batch(samples) and self.replica.inner_step()

    with pytest.raises(Violation, match="depends on more than the mean"):
        check_shared_part(Stepping)


def test_the_suite_finds_a_strategy_that_keeps_what_the_residual_keeps() -> None:
    class Keeping(Synchronous):
        def absorb(self, round: int, mean: torch.Tensor, fate: ContributionFate) -> None:
            if fate is not ContributionFate.UNCOUNTED:
                super().absorb(round, mean, fate)

    with pytest.raises(Violation, match="it has 2 samples, not 0"):
        check_uncounted(Keeping)


def test_a_run_needs_a_strategy_and_a_codec_that_are_installed() -> None:
    for section, name in (("training", "strategy"), ("averaging", "codec")):
        spec = RunSpec.from_mapping({"name": "a run", section: {name: "elsewhere"}})
        with pytest.raises(ConfigurationError, match=f"{name}: 'elsewhere' is none of"):
            check_plugins(spec)


def test_what_is_no_strategy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES._builtin, "wrong", "minga.core.spec.run_spec:RunSpec")
    with pytest.raises(ConfigurationError, match="brings as 'wrong' is none"):
        _ = StrategyChoice("wrong").facts


@pytest.mark.parametrize("wrong", [{"max_in_flight": 2}, {"payload": "moments"}])
def test_facts_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="strategy: "):
        replace(Synchronous.facts, **wrong)
