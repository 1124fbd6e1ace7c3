"""Which seams a run fills by name, and whether this machine has what it names there.

The peer that starts a run records which packages bring what it names; every other peer compares that with its own
packages before it takes part. The recipe is not among them: training does not know recipes, and what loads one checks
it (`minga.recipes`). A monitor neither decodes nor aggregates, so it needs none of the packages.
"""

from __future__ import annotations

from typing import Final

from minga.averaging.codecs.layout import needs_residual
from minga.averaging.codecs.registry import CODECS, SKETCHES, canonical_codec, canonical_sketch, codec_names
from minga.averaging.strategy_choice import STRATEGIES, facts_of
from minga.core.errors import ConfigurationError
from minga.core.spec.choices import parse_choice
from minga.core.spec.plugins import Use, check_recorded, recorded
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import DEFAULT_SKETCH
from minga.security.robust.registry import AGGREGATORS, verifiable_aggregator


def uses(spec: RunSpec) -> list[Use]:
    """The seams and names that peers of this run need; without the recipe."""
    found: list[Use] = [(STRATEGIES, spec.training.strategy), (SKETCHES, parse_choice(spec.averaging.sketch).name)]
    chosen = [choice for choice in (spec.averaging.codec, spec.averaging.download_codec) if choice is not None]
    found += [(CODECS, name) for name in {name: None for choice in chosen for name in codec_names(choice)}]
    if spec.security.verification == "byzantine":
        found.append((AGGREGATORS, spec.security.aggregator))
    return found


def with_origins(spec: RunSpec) -> RunSpec:
    """The spec as the peer that starts the run publishes it: with the packages that bring what it names.

    Raises `ConfigurationError` if something is not installed here, or cannot be used in such a run.
    """
    spelled = _with_canonical_choices(spec)
    complete = spelled.with_plugins(recorded(uses(spelled), spelled.plugins))
    check_plugins(complete)
    return complete


def check_plugins(spec: RunSpec) -> None:
    """Raise `ConfigurationError`, with what to install, unless this machine has what the run takes its names from."""
    check_recorded(uses(spec), spec.plugins)
    _canonical_choices(spec)
    _check_combination(spec)
    if spec.security.verification == "byzantine":
        verifiable_aggregator(spec.security.aggregator)


def _with_canonical_choices(spec: RunSpec) -> RunSpec:
    """The spec with one spelling of each codec and sketch, so that equal runs have equal settings."""
    changes = {key: text for key, text in _canonical_choices(spec).items() if text != getattr(spec.averaging, key)}
    return spec.amended({f"averaging.{key}": text for key, text in changes.items()}) if changes else spec


def _canonical_choices(spec: RunSpec) -> dict[str, str]:
    """By setting. Raises `ConfigurationError`, with a line for each problem, for choices that cannot be made."""
    found, problems = {}, []
    for key, canonical in _CANONICAL.items():
        choice = getattr(spec.averaging, key)
        try:
            if choice is not None:
                found[key] = canonical(choice)
        except ConfigurationError as error:
            problems += [f"averaging.{key}: {line}" for line in str(error).splitlines()]
    if problems:
        raise ConfigurationError("\n".join(problems))
    return found


_CANONICAL: Final = {"codec": canonical_codec, "download_codec": canonical_codec, "sketch": canonical_sketch}


def _check_combination(spec: RunSpec) -> None:
    """Raise `ConfigurationError` where the facts of the run's strategy rule out other settings."""
    name, facts = spec.training.strategy, facts_of(spec.training.strategy)
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
    if not needs_residual(upload):
        return
    if facts.payload == "parameters":
        raise ConfigurationError(
            f"averaging.codec: strategy {name!r} sends parameters, of which {upload!r} would set most to zero; choose "
            "a codec that sends all"
        )
