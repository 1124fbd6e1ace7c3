"""A run spec against all rules."""

from __future__ import annotations

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.training.combinations.cautions import CAUTIONS
from minga.training.combinations.facts import facts_of_run
from minga.training.combinations.refusals import REFUSALS, STRATEGY, STRATEGY_CHANGES
from minga.training.combinations.rule import Changes, Rule, Ruling, advice, find


def refusals(spec: RunSpec) -> tuple[Ruling, ...]:
    """Why this run cannot be; empty if it can. Raises `ConfigurationError` for what is not installed."""
    return _found(REFUSALS, spec)


def cautions(spec: RunSpec) -> tuple[Ruling, ...]:
    """What an organiser should know about this run: warnings and lost guarantees; raises as `refusals` does."""
    return _found(CAUTIONS, spec)


def _found(rules: tuple[Rule, ...], spec: RunSpec) -> tuple[Ruling, ...]:
    """What applies to any strategy of the run, once each."""
    by_reason = {ruling.reason: ruling for run in facts_of_run(spec) for ruling in find(rules, run)}
    return tuple(by_reason.values())


def check_combinations(spec: RunSpec) -> None:
    """Raise `ConfigurationError`, with all reasons and a choice that is allowed, if such a run cannot be."""
    found = refusals(spec)
    if not found:
        return
    reasons = [each.reason for each in found]
    changes = dict(nearest_allowed(spec))
    changes |= {f"[strategy.{name}]": None for name in spec.strategy.keys() - with_changes(spec, changes).strategy}
    way_out = advice(changes)
    if len(reasons) == 1:
        raise ConfigurationError(f"{reasons[0]}; {way_out}")
    raise ConfigurationError("\n".join([*reasons, f"for all of this: {way_out}"]))


def nearest_allowed(spec: RunSpec) -> Changes:
    """The settings to change for an allowed run, one rule after the other; `with_changes` takes them."""
    changes: dict[str, object] = {}
    for _ in REFUSALS:  # a change takes one refusal back at least, so there are never more of them
        found = refusals(with_changes(spec, changes))
        if not found:
            break
        changes.update(found[0].instead)
    return changes


def with_changes(spec: RunSpec, changes: Changes) -> RunSpec:
    """The spec with these settings, and with settings of no other strategies than it has then."""
    values = {key: [] if (key, value) == (STRATEGY_CHANGES, None) else value for key, value in changes.items()}
    later = () if STRATEGY_CHANGES in values else spec.training.strategies[1:]
    used = {values.get(STRATEGY, spec.training.strategy), *later}
    tables = {name: table for name, table in spec.strategy.items() if name in used}
    return spec.model_copy(update={"strategy": tables}).amended(values)
