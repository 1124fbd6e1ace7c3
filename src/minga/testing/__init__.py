"""Conformance suites that every implementation of one of minga's seams must pass, and a check for programs' tests.

`guard_threads()` makes what belongs to a peer's event loop raise where it is used on another thread.
"""

from __future__ import annotations

from minga.core._thread_guard import guard_threads
from minga.testing._aggregator_suite import AGGREGATOR_CHECKS, AggregatorViolation, check_aggregator
from minga.testing._codec_suite import CODEC_CHECKS, CodecViolation, check_codec
from minga.testing._network_suite import NETWORK_CHECKS, check_network
from minga.testing._recipe_suite import RECIPE_CHECKS, RecipeCase, RecipeViolation, check_recipe
from minga.testing._strategy_suite import STRATEGY_CHECKS, StrategyViolation, check_strategy
from minga.testing._suite import MakeNetwork

__all__ = [
    "AGGREGATOR_CHECKS",
    "CODEC_CHECKS",
    "NETWORK_CHECKS",
    "RECIPE_CHECKS",
    "STRATEGY_CHECKS",
    "AggregatorViolation",
    "CodecViolation",
    "MakeNetwork",
    "RecipeCase",
    "RecipeViolation",
    "StrategyViolation",
    "check_aggregator",
    "check_codec",
    "check_network",
    "check_recipe",
    "check_strategy",
    "guard_threads",
]
