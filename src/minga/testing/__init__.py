"""Conformance suites that every implementation of one of minga's seams must pass."""

from __future__ import annotations

from minga.testing._codec_suite import CODEC_CHECKS, CodecViolation
from minga.testing._network_suite import NETWORK_CHECKS, check_network
from minga.testing._strategy_suite import STRATEGY_CHECKS, StrategyViolation
from minga.testing._suite import MakeNetwork

__all__ = [
    "CODEC_CHECKS",
    "NETWORK_CHECKS",
    "STRATEGY_CHECKS",
    "CodecViolation",
    "MakeNetwork",
    "StrategyViolation",
    "check_network",
]
