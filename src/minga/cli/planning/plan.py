"""`minga plan`: who would reduce what, how long it takes and why, for a live run or a file of peers."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from minga.cli.commands import PlanCommand
from minga.cli.terminal.context import Context, tell_cautions
from minga.cli.terminal.output import Display, plain_table
from minga.core.errors import ConfigurationError, UnreachableError
from minga.core.units import format_duration, format_size
from minga.identity.links.links import PREFIX
from minga.planner.explanation import Explanation, PeerTask, alternatives, explain, plan_json, plan_text
from minga.planner.swarm_file import SwarmFile, read_swarm_file

LOOK_S = 5.0
POLL_S = 0.2
MAX_ROWS = 40


def run_plan(options: PlanCommand, context: Context) -> None:
    """Explain the plan of a run that a link names, or of peers that a TOML file describes."""
    source = str(options.source)
    swarm = _live(source, options, context) if _is_link(source) else read_swarm_file(Path(source))
    if not any(one.aggregates for one in swarm.rates.peers) and len(swarm.rates.peers) > 1:
        raise ConfigurationError(
            f"{source}: all peers are clients, so nobody can reduce; at least one must be reachable"
        )
    explanation, others = explain(swarm.rates, swarm.work), alternatives(swarm.rates, swarm.work)
    words = plan_text(explanation, others, swarm.names, swarm.work)
    values = plan_json(explanation, others, swarm.names, swarm.work)
    context.output.show(Display([plan_table(explanation, swarm.names), *words], values))


def _is_link(source: str) -> bool:
    """Whether it begins like a link, and has nothing that only a path has."""
    return re.match(rf"\s*{PREFIX}[0-9]", source, re.IGNORECASE) is not None and not set(source) & set("./\\")


def _live(link: str, options: PlanCommand, context: Context) -> SwarmFile:
    """The peers of a live run, as their board describes them."""
    from minga.training.status.run_status import live_work

    with options.looking_into(link, context) as joined:
        session, spec = joined.session, joined.spec
        if spec.security.verification == "byzantine":
            raise ConfigurationError(
                "in this run members do not trust each other, so all reduce equal parts and there is no plan to "
                "explain; `minga status` shows who takes part"
            )
        with contextlib.suppress(ConfigurationError):  # who only looks on need not have all packages of the run
            tell_cautions(spec, context.output)
        until = time.monotonic() + LOOK_S
        while True:
            live, work = joined.on_loop(lambda: live_work(session.board, spec, session.ledger))
            if time.monotonic() >= until:
                break
            time.sleep(POLL_S)
    if not live.vector_bytes:
        raise UnreachableError("nobody takes part in this run at present")
    return SwarmFile(tuple(one[:10] for one in live.peers), live.rates, work)


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
