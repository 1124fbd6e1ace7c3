"""What a step costs for each ordered pair of peers, where the model is tiny and everything around the bytes counts.

    python -m benchmarks.crowd --json

4, 8, 12 and 16 processes train a model of 2,000 numbers over iroh on this machine. A step has 32 micro-batches, which
are pauses of 0.16 s in all, so what the processes compute they compute for each other. The same swarms then run in the
virtual world. One line for each world and number of peers has, for an ordered pair and a step:

    cpu_ms          processor time in milliseconds (and of a peer, `cpu_ms_a_peer`), before anything is counted
    bare_ms_a_peer  what a step of the same loop takes without minga, which the two others include
    streams         streams opened; `methods`: by what was called
    messages, bulk, pulses, receipts      frames sent, by kind
    foreign_calls, wakeups, callbacks     calls into the iroh library, wake-ups by its threads, callbacks of the loop
    signed, checked, records, new_records signatures made and checked; records that came, and those that were news
    floor           what the protocol needs of these

The floor: a member tells its leader that it joins, what it has and that it holds the result, and hears the plan and the
commit. Of each of three aggregators it is a part and a mean. Each peer writes a record in a step, which each other one
gets once and checks once. None of that needs a stream of its own.

What lies below is measured in one process: the processor time of a call into the iroh library, and of a request and its
answer, for both ends and all threads, over a new stream, over one that is open, and over an open TCP connection.

Last, 12 peers join 4 all at once: the slowest pace in 10 s relative to the slower of the paces before and after.

ok: at most 25 ms a peer and step, at least 2 steps a second of 16, and a pace that is never halved. Processor time is
what is compared, but these paces need the machine for themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import _crowd_processes, _crowd_swarm
from benchmarks._crowd_counts import Counts
from benchmarks._crowd_messages import message_costs
from benchmarks._processes import WorkerError
from benchmarks._report import emit, finish, parser
from minga.averaging.solver.planner import FEWEST_PARTS

PEERS = (4, 8, 12, 16)
MOST_MS_A_PEER, LEAST_STEPS_PER_S, LEAST_SHARE = 25.0, 2.0, 0.5
HOSTS, NEWCOMERS = 4, 12
FOLLOWER_MESSAGES = 5
"""Join, report, plan, hold, commit."""


def floor(peers: int, aggregators: int = FEWEST_PARTS) -> dict[str, float]:
    """What the protocol needs for an ordered pair and a step, where so many members aggregate."""
    return {
        "streams": 0.0,
        "messages": round(FOLLOWER_MESSAGES / peers, 3),
        "bulk": round(2 * min(aggregators, peers) / peers, 3),
        "signed": round(1 / (peers - 1), 3),
        "checked": 1.0,
        "records": 1.0,
    }


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--peers", type=int, nargs="+", default=list(PEERS), help="sizes of the crowds")
    options.add_argument("--seconds", type=float, default=8.0, help="how long each crowd is measured, twice")
    options.add_argument("--steps", type=int, default=10, help="steps of a virtual crowd")
    kinds = ["messages", "real", "joining", "virtual"]
    options.add_argument("--worlds", nargs="+", choices=kinds, help="measure just these")
    arguments = options.parse_args()
    worlds = arguments.worlds or kinds
    ok, figures = True, dict[str, Any]()
    if "messages" in worlds:
        figures["messages"] = message_costs()
    try:
        if "real" in worlds:
            figures["real"] = [_told("real", _crowd_processes.measure(n, arguments.seconds)) for n in arguments.peers]
            ok = all(row["cpu_ms_a_peer"] <= MOST_MS_A_PEER for row in figures["real"])
            ok = ok and all(row["steps_per_s"] >= LEAST_STEPS_PER_S for row in figures["real"])
        if "joining" in worlds:
            figures["joining"] = _crowd_processes.join_a_few(HOSTS, NEWCOMERS, arguments.seconds)
            ok = ok and figures["joining"]["slowest_share"] >= LEAST_SHARE
    except WorkerError as error:
        ok, figures["error"] = False, str(error)
    if "virtual" in worlds:
        figures["virtual"] = virtual_rows(arguments.peers, arguments.steps)
    return finish("crowd", ok, arguments.json, **figures)


def virtual_rows(sizes: Sequence[int], steps: int) -> list[dict[str, Any]]:
    """Each crowd twice, with other keys: first for the time that it takes, then counting."""
    times = [_crowd_swarm.measure(peers, steps, 1, None) for peers in sizes]
    counts = Counts()
    counts.install()
    counted = [_crowd_swarm.measure(peers, steps, 2, counts) for peers in sizes]
    return [_told("virtual", {"peers": n, **a, **b}) for n, a, b in zip(sizes, times, counted, strict=True)]


def _told(world: str, row: dict[str, Any]) -> dict[str, Any]:
    """Print all of a row; what is not among the methods goes into the summary, too."""
    emit(world=world, **row, floor=floor(row["peers"]))
    return {name: value for name, value in row.items() if name != "methods"}


if __name__ == "__main__":
    raise SystemExit(main())
