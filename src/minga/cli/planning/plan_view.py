"""How plans look on a terminal: a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from minga.cli.terminal.output import plain_table
from minga.core.units import format_duration, format_size
from minga.planner.explanation import Explanation, PeerTask

MAX_ROWS = 40


def plan_table(explanation: Explanation, names: Sequence[str]) -> Table:
    """One row for each peer (or several that do the same), those that do most first."""
    columns = ("peer", "reduces", "relays", "sends", "receives", "busy", "a day", "why")
    table = plain_table(*columns, left=("why",), wraps="why")
    tasks = sorted(explanation.tasks, key=lambda task: (-task.reduces - task.relays, task.peer))
    rows: dict[tuple[str, ...], list[str]] = {}
    for task in tasks:
        rows.setdefault(_cells(task), []).append(names[task.peer].replace("[", "\\["))
    for cells, alike in list(rows.items())[:MAX_ROWS]:
        table.add_row(alike[0] if len(alike) == 1 else f"{alike[0]} and {len(alike) - 1} more", *cells)
    if len(rows) > MAX_ROWS:
        table.add_row("…", *("" for _ in range(6)), f"and {len(rows) - MAX_ROWS} more")
    return table


def _cells(task: PeerTask) -> tuple[str, ...]:
    return (
        f"{task.reduces:.1%}" if task.reduces else "-",
        f"{task.relays:.1%}" if task.relays else "-",
        format_size(task.upload_bytes),
        format_size(task.download_bytes),
        format_duration(task.busy_s),
        f"{format_size(task.upload_bytes_per_day)} up, {format_size(task.download_bytes_per_day)} down",
        task.reason,
    )
