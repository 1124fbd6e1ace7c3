"""Which seams a run fills by name, and whether this machine has what it names there.

The peer that starts a run records which packages bring what it names; every other peer compares that with its own
packages before it takes part. The recipe is not among them: training does not know recipes, and what loads one checks
it (`minga.recipes`). A monitor neither decodes nor aggregates, so it needs none of the packages.
"""

from __future__ import annotations

from minga.averaging.codecs.registry import ADAPTIVE, CODECS
from minga.averaging.sketches.registry import SKETCHES
from minga.averaging.strategy_choice import STRATEGIES
from minga.core.spec.plugins import Use, check_recorded, recorded
from minga.core.spec.run_spec import RunSpec
from minga.security.robust.registry import AGGREGATORS, verifiable_aggregator
from minga.training.combinations.judgement import check_combinations


def uses(spec: RunSpec) -> list[Use]:
    """The seams and names that peers of this run need; without the recipe."""
    found: list[Use] = [(STRATEGIES, spec.training.strategy), (SKETCHES, spec.averaging.sketch)]
    codecs = {spec.averaging.codec: None, spec.averaging.download_codec: None}
    found += [(CODECS, name) for name in codecs if name not in (None, ADAPTIVE)]
    if spec.security.verification == "byzantine":
        found.append((AGGREGATORS, spec.security.aggregator))
    return found


def with_origins(spec: RunSpec) -> RunSpec:
    """The spec as the peer that starts the run publishes it: with the packages that bring what it names.

    Raises `ConfigurationError` if something is not installed here, or cannot be used in such a run.
    """
    complete = spec.with_plugins(recorded(uses(spec), spec.plugins))
    check_plugins(complete)
    return complete


def check_plugins(spec: RunSpec) -> None:
    """Raise `ConfigurationError` unless this machine has what the run takes its names from, and they go together.

    The message says what to install, or what to set instead.
    """
    check_recorded(uses(spec), spec.plugins)
    check_combinations(spec)
    if spec.security.verification == "byzantine":
        verifiable_aggregator(spec.security.aggregator)
