"""`minga trace`: one step of four simulated trainers, from file to file and from peer to peer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from rich.markup import escape

from minga.cli.terminal.context import Context
from minga.core.errors import ConfigurationError
from minga.simulation.tracing.sequence import sequence, text, usual_peers
from minga.simulation.tracing.traced_swarm import PEERS, peer_name, trace_step


def run_trace(seed: int, peers: Collection[str], context: Context, *, whole: bool) -> None:
    """Trace the step of a seed; shows the named peers, by default the leader and one member, or all with `whole`."""
    known = [peer_name(number) for number in range(1, PEERS + 1)]
    for peer in peers:
        if peer not in known:
            raise ConfigurationError(f"--peer {peer}: the peers are {', '.join(known)}")
    traced = trace_step(seed)
    lines = sequence(traced, peers or (known if whole else usual_peers(traced)), whole=whole)
    for line in lines:
        context.output.event("message" if line.messages else "call", **asdict(line))
    for row in text(traced, lines):
        context.output.say(escape(row))
    context.output.summary(
        ok=True, step=traced.step, seed=seed, leader=traced.leader, peers=len(traced.peers), lines=len(lines)
    )
