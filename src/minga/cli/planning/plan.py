"""`minga plan`: who would reduce what, how long it takes and why, for a live run or a file of peers."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

from rich.markup import escape

from minga.cli.commands import PlanCommand
from minga.cli.planning.plan_view import plan_table
from minga.cli.terminal.cautions import tell_cautions
from minga.cli.terminal.context import Context
from minga.core.errors import ConfigurationError, UnreachableError
from minga.identity.links.links import PREFIX
from minga.planner.explanation import alternatives, explain, plan_json, plan_text
from minga.planner.swarm_file import SwarmFile, read_swarm_file
from minga.training.join import PeerOptions, join

LOOK_S = 5.0
POLL_S = 0.2


def run_plan(options: PlanCommand, context: Context) -> None:
    """Explain the plan of a run that a link names, or of peers that a TOML file describes; or forecast a run."""
    source = options.source
    if options.measure:
        from minga.cli.planning.measure import run_measure

        run_measure(options, context)
        return
    if options.memory is not None:
        from minga.cli.planning.memory import run_memory

        run_memory(options, context)
        return
    if source is None:
        from minga.cli.planning.forecast import run_forecast

        run_forecast(options, context)
        return
    swarm = _live(source, options.peer_options(), context) if _is_link(source) else read_swarm_file(Path(source))
    if not any(one.aggregates for one in swarm.rates.peers) and len(swarm.rates.peers) > 1:
        raise ConfigurationError(
            f"{source}: all peers are clients, so nobody can reduce; at least one must be reachable"
        )
    explanation, others = explain(swarm.rates, swarm.work), alternatives(swarm.rates, swarm.work)
    context.output.say(plan_table(explanation, swarm.names))
    for line in plan_text(explanation, others, swarm.names, swarm.work):
        context.output.say(escape(line))
    context.output.summary(ok=True, **plan_json(explanation, others, swarm.names, swarm.work))


def _is_link(source: str) -> bool:
    """Whether it begins like a link, and has nothing that only a path has."""
    return re.match(rf"\s*{PREFIX}[0-9]", source, re.IGNORECASE) is not None and not set(source) & set("./\\")


def _live(link: str, options: PeerOptions, context: Context) -> SwarmFile:
    """The peers of a live run, as their board describes them."""
    from minga.training.status.run_status import live_work

    context.output.say("Looking for the run …")
    with join(link, options) as joined:
        context.wire(joined)
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
