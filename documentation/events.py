"""The page of what programs can read: every kind of event with its fields, and the figures for Prometheus."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily

from minga.core.events.bus import EventData
from minga.core.events.catalogue import CATALOGUE, FIELDS, MODULES, fields_of, kinds_of
from minga.dashboard.server.metrics import FIGURES, MOST_PEERS

TYPES: Final = {
    "int": "integer",
    "float": "number",
    "str": "text",
    "bool": "boolean",
    "bool | None": "boolean or null",
    "str | None": "text or null",
    "list[str]": "list of texts",
    "float | None": "number or null",
    "int | None": "integer or null",
}
"""The types of fields as JSON has them."""

HEAD: Final = """\
# Events and metrics

<!-- Made by `make docs` from `minga.core.events.catalogue` and `minga.dashboard.server.metrics`. -->

`minga … --json` prints each event as a line with `t` (Unix time in seconds) and `event` (its kind), and
`peer.subscribe` delivers it as a `minga.Event`. A program may add kinds of its own with `peer.emit`.
[Troubleshooting](troubleshooting.md#while-training) says what to do about the kinds that matter.

Each kind is followed by its fields. A field without a type is a text. These mean the same everywhere:

"""
METRICS: Final = f"""
## Metrics for Prometheus

A [dashboard](dashboard.md) serves these figures at `/metrics`; those by `peer` in swarms of up to {MOST_PEERS} peers.
`minga_run_info` names the run (`name`, `run_id`). Names of counters end in `_total`, the others are gauges.

"""


def event_page() -> str:
    """The page, as Markdown."""
    shared: dict[tuple[str, str], list[str]] = {}
    for name, meaning in FIELDS.items():
        shared.setdefault((_usual_type(name), meaning), []).append(f"`{name}`")
    parts = [HEAD, *(_item(f"{', '.join(names)} ({TYPES[of]})", means) for (of, means), names in shared.items())]
    for module in MODULES:
        subject = (inspect.getdoc(module) or "").removeprefix("Events of ").removesuffix(".")
        parts.append(f"\n## {subject.capitalize()}\n\n")
        parts += map(_kind, kinds_of(module))
    return "".join([*parts, METRICS, *_figures()])


@cache
def _usual_type(name: str) -> str:
    found = Counter(str(field.type) for data in CATALOGUE.values() for field in fields_of(data) if field.name == name)
    return found.most_common(1)[0][0]


def _kind(data: type[EventData]) -> str:
    fields = ", ".join(map(_field, fields_of(data)))
    return _item(f"`{data.kind}`" + (f" ({fields})" if fields else ""), inspect.getdoc(data) or "")


def _item(name: str, meaning: str) -> str:
    text = " ".join(f"{name}: {meaning}".split())
    return textwrap.fill(text, 120, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False) + "\n"


def _field(field: dataclasses.Field[Any]) -> str:
    type_ = str(field.type)
    is_known = type_ == (_usual_type(field.name) if field.name in FIELDS else "str")
    return f"`{field.name}`" if is_known else f"`{field.name}`: {TYPES[type_]}"


def _figures() -> Iterator[str]:
    for name, figure in FIGURES.items():
        shown = f"{name}_total" if figure.kind is CounterMetricFamily else name
        labels = ", ".join(f"`{label}`" for label in figure.labels)
        yield _item(f"`{shown}`" + (f" (by {labels})" if labels else ""), figure.meaning)
