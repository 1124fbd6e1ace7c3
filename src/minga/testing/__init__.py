"""Conformance suites that every implementation of one of minga's seams must pass, and a check for programs' tests.

    your network, stream, codec, sketch, aggregator, strategy or recipe ─▶ suite: one check after the other

Read: suite (what the network's suites share), network_suite (Network), stream_suite (Stream), codecs (Codec),
pair_suite (CodecPair, with the residual), sketch_suite (Sketch), aggregator_suite (Aggregator), strategies (Strategy),
recipe_suite (Recipe), arguments (what a suite was given), other_process (what has to be equal there, too), violation
(what they raise).
`guard_threads()` makes what belongs to a peer's event loop raise where it is used on another thread.

Called by tests, also those of other packages; nothing in minga imports it.
"""

from __future__ import annotations

from minga.core.thread_guard import guard_threads
from minga.testing.aggregator_suite import AGGREGATOR_CHECKS, check_aggregator
from minga.testing.codecs.suite import CODEC_CHECKS, check_codec
from minga.testing.network_suite import NETWORK_CHECKS, check_network
from minga.testing.pair_suite import PAIR_CHECKS, check_pair
from minga.testing.recipe_suite import RECIPE_CHECKS, RecipeCase, check_recipe
from minga.testing.sketch_suite import SKETCH_CHECKS, check_sketch
from minga.testing.strategies.suite import STRATEGY_CHECKS, check_strategy
from minga.testing.suite import MakeNetwork
from minga.testing.violation import Violation

__all__ = [
    "AGGREGATOR_CHECKS",
    "CODEC_CHECKS",
    "NETWORK_CHECKS",
    "PAIR_CHECKS",
    "RECIPE_CHECKS",
    "SKETCH_CHECKS",
    "STRATEGY_CHECKS",
    "MakeNetwork",
    "RecipeCase",
    "Violation",
    "check_aggregator",
    "check_codec",
    "check_network",
    "check_pair",
    "check_recipe",
    "check_sketch",
    "check_strategy",
    "guard_threads",
]
