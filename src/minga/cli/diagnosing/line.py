"""This machine's line against what the run needs of it: measured with the run's peers, compared with the plan."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from minga.averaging.planning.contributor_choice import StepWork, resting
from minga.averaging.solver.division import PeerRates, SwarmRates
from minga.cli.diagnosing.machine import Finding
from minga.core.errors import MingaError
from minga.core.units import format_duration, format_rate, format_size
from minga.identity.links.links import Link
from minga.network.interface import PeerId
from minga.network.probing import Prober
from minga.planner.explanation import explain
from minga.training.join import PeerOptions, join
from minga.training.peer import Peer
from minga.training.status.run_status import LiveRates, live_rates, live_work

LOOK_S, PROBE_S, RETRY_S = 2.0, 10.0, 0.7
"""Seconds to wait for what peers say of themselves, for a probe, and between two tries: peers may be busy."""

MOST_PARTNERS = 4
SLOWER = 1.1
"""How many times as long steps take with this line as with a usual one before that is worth a word."""

MeasuredRates = tuple[float | None, float | None]
"""Up and down, bytes per second; None where it could not be measured."""


def check_line(link: Link, host: str | None) -> Finding | None:
    """Look at the run as `minga status` does, fill the line for a moment, and ask the planner. None where the run can
    be looked at by its members only. Takes up to 25 s, so never call it on an event loop.
    """
    try:
        with join(link, PeerOptions(role="monitor", ephemeral=True, host=host), with_files=False) as peer:
            session, spec = peer.session, peer.spec
            if spec.security.verification == "byzantine":
                return True, "all members of this run reduce equal parts, so no plan spares a slow line", ""
            until = time.monotonic() + LOOK_S
            while not (live := peer.on_loop(lambda: live_rates(session.board))).vector_bytes:
                if time.monotonic() > until:
                    return True, "nobody trains at present, so there is no step to compare this line with", ""
                time.sleep(0.1)
            measured = _measure(peer, sorted(live.peers)[:MOST_PARTNERS])
            facts = peer.on_loop(lambda: [session.node.facts(one) for one in live.peers])
            _, work = peer.on_loop(lambda: live_work(session.board, spec, session.ledger))
    except MingaError:
        return None  # the hops before say why
    paths = Counter(str(each.path) for each in facts if each is not None)
    return against_plan(live, work, measured, paths)


def against_plan(live: LiveRates, work: StepWork, measured: MeasuredRates, paths: Mapping[str, int]) -> Finding:
    """What a step carries for this machine, by the plan that the peers would make with it, and how long its line takes.

    `paths` are how many peers it has a connection of each kind to.
    """
    speed = median([peer.samples_per_second for peer in live.rates.peers if peer.sends] or [0.0])
    own = PeerRates(*measured, samples_per_second=speed)
    joined = replace(live.rates, peers=(*live.rates.peers, own))
    with_it, number = explain(joined, work), len(live.rates.peers)
    task = with_it.tasks[number]
    up, down = measured
    shown = ", ".join(f"{count} {kind}" for kind, count in sorted(paths.items())) or "none"
    if up is None or down is None:
        busy = "its line could not be measured, for all peers were busy or did not answer"
    else:
        line = f"{format_rate(up)} up and {format_rate(down)} down"
        times = f"in a round of {_duration(with_it.round_s)} and a step of {_duration(with_it.step_s)}"
        busy = f"its line, {line}, takes {format_duration(task.busy_s)} for that, {times}"
    detail = (
        f"a step carries {format_size(task.upload_bytes)} up and {format_size(task.download_bytes)} down for this "
        f"machine; {busy}; paths to peers: {shown}"
    )
    return True, detail, _advice(joined, work, with_it.step_s, paths)


def _advice(joined: SwarmRates, work: StepWork, step_s: float, paths: Mapping[str, int]) -> str:
    """What to do; this machine is the last peer of `joined`."""
    *others, own = joined.peers
    if paths.get("relayed", 0) and not paths.get("direct", 0):
        return "every path leads through a relay, which is slower than this line: forward a port, see docs/operating.md"
    if own.upload is None:
        return "try again in a moment, or look at `minga plan LINK`"
    if len(others) in resting(joined, work):
        return (
            "this machine would rest: its upload costs the others more time than its samples save. It still helps as "
            "`minga join --role auxiliary`; a codec with fewer bytes is the organiser's choice"
        )
    usual = replace(own, upload=_usual([p.upload for p in others]), download=_usual([p.download for p in others]))
    if step_s > SLOWER * explain(replace(joined, peers=(*others, usual)), work).step_s:
        return "steps take longer with this line than with a usual one of this run; a faster upload helps most"
    return ""


def _usual(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return median(known) if known else None


def _duration(seconds: float) -> str:
    return format_duration(seconds) if math.isfinite(seconds) else "unknown length"


def _measure(peer: Peer, partners: list[PeerId]) -> MeasuredRates:
    """Fill the line in both directions with some peers of the run, as its members do."""
    node, done = peer.session.node, threading.Event()

    async def probe() -> None:
        prober = Prober(node, lambda: partners)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROBE_S):
                while not await prober.probe(partners):
                    await asyncio.sleep(RETRY_S)
        done.set()

    peer.on_loop(lambda: node.spawn(probe()))
    done.wait(PROBE_S + 2.0)
    rates = peer.on_loop(node.access_link.rates)
    return rates.upload, rates.download
