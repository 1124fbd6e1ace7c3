"""Which seams a run fills by name, and whether this machine has what it names there.

The peer that starts a run records which packages bring what it names; every other peer compares that with its own
packages before it takes part. The recipe is not among them: training does not know recipes, and what loads one checks
it (`minga.recipes`). A monitor neither decodes nor aggregates, so it needs none of the packages.
"""

from __future__ import annotations

from minga.averaging.codecs.dense import codec
from minga.averaging.codecs.registry import ADAPTIVE, CODECS, SKETCHES
from minga.averaging.strategy_choice import STRATEGIES, StrategyChoice
from minga.core.errors import ConfigurationError
from minga.core.spec.plugins import Use, check_recorded, recorded
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import DEFAULT_SKETCH
from minga.security.robust.registry import AGGREGATORS, verifiable_aggregator


def uses(spec: RunSpec) -> list[Use]:
    """The seams and names that peers of this run need; without the recipe."""
    found: list[Use] = [(STRATEGIES, name) for name in spec.training.strategies]
    found.append((SKETCHES, spec.averaging.sketch))
    codecs = {spec.averaging.codec: None, spec.averaging.download_codec: None}
    found += [(CODECS, name) for name in codecs if name not in (None, ADAPTIVE)]
    if spec.security.verification == "byzantine":
        found.append((AGGREGATORS, spec.security.aggregator))
    return found


def with_origins(spec: RunSpec) -> RunSpec:
    """The spec as the peer that starts the run publishes it: with the packages that bring what it names, and with all
    settings of its strategy, since another version may have other defaults.

    Raises `ConfigurationError` if something is not installed here, or cannot be used in such a run.
    """
    complete = _spelled_out(spec.with_plugins(recorded(uses(spec), spec.plugins)))
    check_plugins(complete)
    return complete


def check_plugins(spec: RunSpec) -> None:
    """Raise `ConfigurationError`, with what to install, unless this machine has what the run takes its names from."""
    check_recorded(uses(spec), spec.plugins)
    for phase in spec.phases:
        _check_combination(phase)
    if spec.security.verification == "byzantine":
        verifiable_aggregator(spec.security.aggregator)


def _spelled_out(spec: RunSpec) -> RunSpec:
    for name in spec.training.strategies:
        settings = StrategyChoice.of(spec, name).settings.model_dump(mode="json", exclude_none=True)
        spec = spec.with_strategy_settings(name, settings) if settings else spec
    return spec


def _check_combination(spec: RunSpec) -> None:
    """Raise `ConfigurationError` where the facts of the run's strategy rule out other settings."""
    choice = StrategyChoice.of(spec)
    name, facts = choice.name, choice.facts
    target = spec.training.target_batch_size
    if target != "auto" and target % facts.fragments:
        raise ConfigurationError(
            f'strategy = "{name}": target_batch_size {target} is not a multiple of fragments {facts.fragments}'
        )
    if spec.averaging.average_parameters_every and facts.payload in ("pseudo-gradient", "parameters"):
        raise ConfigurationError(
            f"averaging.average_parameters_every: with strategy {name!r} peers share their parameters in every round; "
            "set it to 0"
        )
    if spec.averaging.sketch != DEFAULT_SKETCH and facts.payload == "parameters":
        raise ConfigurationError(
            f"averaging.sketch: strategy {name!r} sends parameters, and {spec.averaging.sketch!r} would leave most "
            f'out; set it to "{DEFAULT_SKETCH}"'
        )
    upload = spec.averaging.codec
    if upload == ADAPTIVE or not codec(upload).needs_residual:
        return
    if facts.payload == "parameters":
        raise ConfigurationError(
            f"averaging.codec: strategy {name!r} sends parameters, of which {upload!r} would set most to zero; choose "
            "a codec that sends all"
        )
