"""`minga plan`: who would reduce what, how long it takes and why, in a live run or a scenario."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from rich.table import Table

from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.planning.contributor_choice import StepWork
from minga.averaging.solver.division import FASTEST_RATE, PeerRates, SwarmRates
from minga.averaging.strategy_choice import facts_of, round_batch_range
from minga.cli.commands import PlanCommand
from minga.cli.terminal.context import Context, tell_cautions
from minga.cli.terminal.output import Display, plain_table
from minga.core.errors import ConfigurationError, UnreachableError
from minga.core.units import format_duration, format_size
from minga.identity.links.links import PREFIX
from minga.network.virtual.paths import punches
from minga.planner.explanation import Explanation, PeerTask, alternatives, explain, plan_json, plan_text
from minga.planner.forecast import step_work
from minga.simulation.lifecycle import ScheduledPeer, population
from minga.simulation.scenario.scenario import Scenario, read_scenario
from minga.training.status.run_status import live_work

LOOK_S = 5.0
MAX_ROWS = 40
LIMITLESS = 1000.0
"""How many times faster than all that have a limit lines are that have none; for the planner None is unknown, and far
more is more than its arithmetic bears.
"""
NOT_PLANNED = "members do not trust each other, so all reduce equal parts and there is no plan to explain"


@dataclass(frozen=True)
class _PlannedPeers:
    """What a plan is made for; `names` are those of the peers, in their order."""

    names: tuple[str, ...]
    rates: SwarmRates
    work: StepWork


def run_plan(options: PlanCommand, context: Context) -> None:
    """Explain the plan of a run that a link names, or of a scenario in which all its peers are there."""
    source = str(options.source)
    swarm = _live(source, options, context) if _is_link(source) else _simulated(source)
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


def _simulated(source: str) -> _PlannedPeers:
    """The peers of a scenario that have the memory for its model, with the lines and the speeds that they draw."""
    scenario = Scenario.from_mapping(read_scenario(source), source)
    if scenario.security.verification == "byzantine":
        raise ConfigurationError(f"{source}: in this run {NOT_PLANNED}")
    if scenario.split.is_on:
        raise ConfigurationError(f"{source}: the model is cut, and its server trains the shared part: no plan is made")
    peers = [each for each in population(scenario) if each.fits]
    if not peers:
        raise ConfigurationError(f"{source}: none of the peers drew enough memory for this model")
    if (apart := _kept_apart(scenario, peers)) is not None:
        raise ConfigurationError(
            f"{source}: {apart[0]} and {apart[1]} have no direct path. What all send through a relay shares its rate, "
            "which no plan takes into account"
        )
    limits = {frozenset(path.between): path.rate.values[0] for path in scenario.paths if path.rate is not None}
    known = (rate for each in peers for rate in (each.host.up_bytes_per_s, each.host.down_bytes_per_s) if rate)
    limitless = min(FASTEST_RATE, max([*known, *limits.values()], default=FASTEST_RATE) * LIMITLESS)
    rates = tuple(
        PeerRates(
            each.host.up_bytes_per_s or limitless,
            each.host.down_bytes_per_s or limitless,
            0.0 if each.trainer is None else each.trainer.samples_per_second,
            sends=each.trainer is not None,
            aggregates=each.host.dialable,
        )
        for each in peers
    )
    regions = [each.host.region for each in peers]
    ends = ((pair, frozenset(regions[index] for index in pair)) for pair in permutations(range(len(peers)), 2))
    pairs = {pair: limits[path] for pair, path in ends if path in limits}
    spec, averaging = scenario.run_spec().at(0), scenario.averaging
    layout = VectorLayout((scenario.parameters,), averaging.codec, averaging.download_codec)
    sizes = layout.upload_bytes(0, layout.total), layout.download_bytes(0, layout.total)
    work = step_work(facts_of(spec), sizes, round_batch_range(spec)[0])
    return _PlannedPeers(tuple(each.name for each in peers), SwarmRates(rates, pairs), work)


def _kept_apart(scenario: Scenario, peers: Sequence[ScheduledPeer]) -> tuple[str, str] | None:
    """Two peers that talk through a relay with a limit, if at all."""
    if scenario.relays and all(relay.rate is None for relay in scenario.relays):
        return None
    behind = [each for each in peers if not each.host.nat.lets_in]
    for one, other in combinations(behind, 2):
        if (one.host.dialable or other.host.dialable) and not punches(one.host.nat, other.host.nat):
            return one.name, other.name
    return None


def _live(link: str, options: PlanCommand, context: Context) -> _PlannedPeers:
    """The peers of a live run, as their board describes them."""
    with options.looking_into(link, context) as joined:
        session, spec = joined.session, joined.spec
        if spec.security.verification == "byzantine":
            raise ConfigurationError(f"in this run {NOT_PLANNED}; `minga status` shows who takes part")
        with contextlib.suppress(ConfigurationError):  # who only looks on need not have all packages of the run
            tell_cautions(spec, context.output)
        time.sleep(LOOK_S)  # until the board has come
        live, work = joined.on_loop(lambda: live_work(session.board, spec, session.ledger))
    if not live.vector_bytes:
        raise UnreachableError("nobody takes part in this run at present")
    return _PlannedPeers(tuple(one[:10] for one in live.peers), live.rates, work)


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
