"""Which seams a run fills by name, and whether this machine has what it names there.

The peer that starts a run records which packages bring what it names; every other peer compares that with its own
packages before it takes part. The recipe is not among them: training does not know recipes, and what loads one checks
it (`minga.recipes`). A monitor neither decodes nor aggregates, so it needs none of the packages.
"""

from __future__ import annotations

from typing import Final

from minga.averaging.codecs.registry import CODECS, canonical_codec, codec_names
from minga.averaging.sketches.interface import SKETCHES, canonical_sketch
from minga.averaging.strategy_choice import STRATEGIES, StrategyChoice
from minga.combinations import check_combinations
from minga.core.errors import ConfigurationError
from minga.core.spec.choices import parse_choice
from minga.core.spec.plugins import Use, check_recorded, recorded
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import AUTO_STRATEGY
from minga.security.robust.interface import AGGREGATORS


def uses(spec: RunSpec) -> list[Use]:
    """The seams and names that peers of this run need; without the recipe."""
    found: list[Use] = [(STRATEGIES, name) for name in spec.training.strategies]
    found.append((SKETCHES, parse_choice(spec.averaging.sketch).name))
    chosen = [choice for choice in (spec.averaging.codec, spec.averaging.download_codec) if choice is not None]
    found += [(CODECS, name) for name in {name: None for choice in chosen for name in codec_names(choice)}]
    if spec.security.verification == "byzantine":
        found.append((AGGREGATORS, spec.security.aggregator))
    return found


def with_origins(spec: RunSpec) -> RunSpec:
    """The spec as the peer that starts the run publishes it: with the packages that bring what it names, and with all
    settings of its strategy, since another version may have other defaults.

    Raises `ConfigurationError` if something is not installed here, or cannot be used in such a run.
    """
    if spec.training.strategy == AUTO_STRATEGY:
        raise ConfigurationError(
            f'training.strategy = "{AUTO_STRATEGY}" is chosen by `minga host` when it begins the run; a program calls '
            "minga.planner.auto_choice.with_chosen_strategy before"
        )
    spelled = with_one_spelling(spec)
    complete = spelled.with_plugins(recorded(uses(spelled), spelled.plugins))
    check_plugins(complete)
    return complete


def check_plugins(spec: RunSpec) -> None:
    """Raise `ConfigurationError` unless this machine has what the run takes its names from, and they go together.

    The message says what to install, or what to set instead.
    """
    check_recorded(uses(spec), spec.plugins)
    _canonical_choices(spec)
    check_combinations(spec)
    if spec.security.verification == "byzantine":
        AGGREGATORS.get(spec.security.aggregator)


def with_one_spelling(spec: RunSpec) -> RunSpec:
    """The spec with one spelling of its choices and all settings of its strategies. Raises as `with_origins`."""
    return _with_all_strategy_settings(_with_canonical_choices(spec))


def _with_canonical_choices(spec: RunSpec) -> RunSpec:
    """The spec with one spelling of each codec and sketch, so that equal runs have equal settings."""
    changes = {key: text for key, text in _canonical_choices(spec).items() if text != getattr(spec.averaging, key)}
    return spec.amended({f"averaging.{key}": text for key, text in changes.items()}) if changes else spec


def _with_all_strategy_settings(spec: RunSpec) -> RunSpec:
    for name in spec.training.strategies:
        settings = StrategyChoice.of(spec, name).settings.model_dump(mode="json", exclude_none=True)
        spec = spec.with_strategy_settings(name, settings) if settings else spec
    return spec


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
