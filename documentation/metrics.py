"""The reference page of the figures that Prometheus reads."""

from __future__ import annotations

from typing import Final

from minga.dashboard.server.metrics import FIGURES, MOST_PEERS

HEAD: Final = f"""\
# Metrics

<!-- Made by `make docs` from `minga.dashboard.server.metrics`. -->

A [dashboard](../dashboard.md) gives these figures to Prometheus at `/metrics`; those by `peer` in swarms of up to
{MOST_PEERS} peers. `minga_run_info` names the run (`name`, `run_id`). Times are seconds.

| name | kind | labels | meaning |
| --- | --- | --- | --- |
"""


def metrics_page() -> str:
    """The page, as Markdown."""
    rows = []
    for name, figure in FIGURES.items():
        kind = figure.kind.__name__.removesuffix("MetricFamily").lower()
        shown = f"{name}_total" if kind == "counter" else name
        labels = ", ".join(f"`{label}`" for label in figure.labels)
        rows.append(f"| `{shown}` | {kind} | {labels} | {figure.meaning} |\n")
    return HEAD + "".join(rows)
