"""The page on what may be combined: tables that are judged setting by setting, and the rules behind them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from minga.averaging.codecs.registry import ADAPTIVE, CODECS
from minga.averaging.sketches.interface import SKETCHES
from minga.averaging.strategy_choice import STRATEGIES, StrategyChoice
from minga.combinations import (
    AVERAGE_PARAMETERS,
    BATCH,
    CAUTIONS,
    DOWNLOAD,
    REFUSALS,
    SKETCH,
    STRATEGY,
    UPLOAD,
    Instead,
    cautions,
    nearest_allowed,
    refusals,
    setting,
)
from minga.core.spec.choices import Choice
from minga.core.spec.fields import Section
from minga.core.spec.plugins import Registry
from minga.core.spec.run_spec import RunSpec

Settings = dict[str, Any]
"""By their keys in the run spec."""

VERIFICATION: Final = "security.verification"
OPTIMIZER: Final = "optimizer.name"
ALLOWED: Final = "✓"
ASKED_SETTINGS: Final = {"overlap": True, "fragments": 2, "rounding": "stochastic"}
"""Settings of strategies and codecs from which facts follow that the rules ask about."""

HEAD: Final = """\
# What may be combined

<!-- Made by `make docs` from `minga.combinations`. -->

`minga host`, `join`, `plan` and `sim` check these rules before they do anything else.

* **✓** is allowed, and so is everything that neither the tables nor the list below them name.
* **W** is allowed with a warning: a line that begins with `!`, or with `--json` an event `run.caution`.
* **R** is refused. The message names the settings, says why, and ends with the nearest choice that is allowed.

The rules look at what a strategy, codec or sketch does, not at its name, so they hold for those of
[other packages](extending.md), too. Where the optimizer matters, the tables assume AdamW or LAMB, with `demo` SGD.
"""

TABLES: Final = (
    ("Strategies", STRATEGY, (UPLOAD, DOWNLOAD, SKETCH, VERIFICATION, AVERAGE_PARAMETERS)),
    ("Codecs of uploads", UPLOAD, (DOWNLOAD, SKETCH, VERIFICATION, OPTIMIZER)),
)
"""Title, the setting of the columns, and those of the rows."""

TAIL: Final = """
## Why Byzantine-tolerant runs are strict

A validator computes the gradient of another member again. A residual makes a contribution depend on all that its
sender ever sent, and so do an optimizer's private moments: no other member has them. Means travel by the codec of
contributions, since members check both. `security.precision` sets the number format for all; in other runs
`--precision` is each machine's own choice.
"""


def own_names(registry: Registry[Any]) -> tuple[str, ...]:
    """What comes with minga."""
    return tuple(name for name in registry.names() if registry.origin(name) is None)


def choices() -> dict[str, tuple[Any, ...]]:
    """The values of each setting that the rules ask about, as far as they come with minga."""
    return {
        STRATEGY: strategy_choices(),
        UPLOAD: upload_choices(),
        DOWNLOAD: (*own_names(CODECS), ADAPTIVE),
        SKETCH: own_names(SKETCHES),
        AVERAGE_PARAMETERS: (0, 4),
        VERIFICATION: ("none", "byzantine"),
        BATCH: (4096, "auto"),
        OPTIMIZER: ("sgd", "adamw", "lamb"),
    }


def strategy_choices() -> tuple[StrategyChoice, ...]:
    """The strategies of minga, each as it is usually and with those of its settings that the rules ask about."""
    return tuple(
        StrategyChoice(name, table)
        for name in own_names(STRATEGIES)
        for table in _asked(StrategyChoice(name).kind.Settings)
    )


def upload_choices() -> tuple[str, ...]:
    """The codecs of minga, in the same way."""
    kinds = {name: getattr(CODECS.get(name), "Settings", Section) for name in own_names(CODECS)}
    return (*(str(Choice(name, table)) for name, kind in kinds.items() for table in _asked(kind)), ADAPTIVE)


def _asked(kind: type[Section]) -> list[Settings]:
    """No settings, and each of those that the rules ask about."""
    return [{}, *({key: value} for key, value in ASKED_SETTINGS.items() if key in kind.model_fields)]


def run_with(settings: Settings) -> RunSpec:
    """A run with these settings, and otherwise the usual ones."""
    spec, changes = RunSpec.from_mapping({"name": "combined"}), dict(settings)
    if isinstance(chosen := changes.get(STRATEGY), StrategyChoice):
        del changes[STRATEGY]
        spec = spec.amended({STRATEGY: chosen.name}).with_strategy_settings(chosen.name, chosen.table)
    return spec.amended(changes)


def spelled(value: Any) -> str:
    """A value as the run spec has it; of a strategy, its settings as well."""
    if isinstance(value, StrategyChoice):
        return ", ".join([value.name, *(f"{key} = {json.dumps(each)}" for key, each in value.table.items())])
    return str(value)


def with_company(pair: Settings) -> Settings | None:
    """The settings, with others that they need to be allowed; None if some of them exclude each other."""
    settings = {**pair, **nearest_allowed(run_with(pair))}
    return settings if pair.items() <= settings.items() else None


def judged(pair: Settings) -> str:
    """The cell of a table: a tick, or the codes of what applies."""
    settings = with_company(pair)
    if settings is None:
        found = [each for each in refusals(run_with(pair)) if not pair.keys().isdisjoint(each.instead)]
    else:
        found = list(cautions(run_with(settings)))
    return " ".join(dict.fromkeys(each.code for each in found)) or ALLOWED


def combinations_page() -> str:
    """The page, as Markdown."""
    parts = [HEAD]
    for title, column_key, row_keys in TABLES:
        parts.append(f"\n## {title}\n\n{_table(column_key, row_keys)}")
    parts.append("\n## Refusals and warnings\n\n| | what | instead |\n| --- | --- | --- |\n")
    parts += [f"| {rule.code} | {rule.title} | {_advice(rule.instead)} |\n" for rule in REFUSALS]
    parts += [f"| {rule.code} | {rule.title} | a warning |\n" for rule in CAUTIONS]
    return "".join([*parts, TAIL])


def _table(column_key: str, row_keys: Sequence[str]) -> str:
    """One row and one column for each value; values whose cells are equal share one, and rows of ticks are left out."""
    values = choices()
    rows: dict[tuple[str, tuple[str, ...]], list[Any]] = {}
    for key in row_keys:
        for value in values[key]:
            cells = tuple(judged({column_key: column, key: value}) for column in values[column_key])
            if {*cells} != {ALLOWED}:
                rows.setdefault((key, cells), []).append(value)
    columns: dict[tuple[str, ...], list[int]] = {}
    for number in range(len(values[column_key])):
        columns.setdefault(tuple(cells[number] for _, cells in rows), []).append(number)
    shown = [numbers[0] for numbers in columns.values()]
    heads = [_values([values[column_key][number] for number in numbers]) for numbers in columns.values()]
    lines = [f"| `{column_key}` | | {' | '.join(heads)} |", "| --- | --- |" + " --- |" * len(heads)]
    for (key, cells), found in rows.items():
        lines.append(f"| `{key}` | {_values(found)} | {' | '.join(cells[number] for number in shown)} |")
    return "".join(f"{line}\n" for line in lines)


def _values(found: Sequence[Any]) -> str:
    return ", ".join(f"`{spelled(value)}`" for value in found)


def _advice(changes: Instead) -> str:
    return " and ".join(
        f"another `{key}`" if callable(value) else f"without `{key}`" if value is None else f"`{setting(key, value)}`"
        for key, value in changes.items()
    )
