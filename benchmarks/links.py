"""Averaging over networks with real limits: N peers, each a process in a namespace of its own, on shaped links.

    python -m benchmarks.links --setup A,B,C,D,home,sites,nat --json
    python -m benchmarks.links --setup A,home,sites --simulate --json

Needs root on Linux with iproute2 and nftables; see `tests/netlab`. The setups are described in `_links_setups` and
`_links_nat`. Nobody tells the peers how fast their links are: they probe them, at first one after the other for at most
`PROBES_S`, and watch the traffic, for as many rounds as it takes until the plans no longer change (`warmup_rounds`).
One line for each round, then the summary, with for each setup

    measured_s            median over the rounds of the time from the start signal (all hold the plan) until the last
                          peer has the whole result
    bound_s               what the linear programme of the paper gives for the true rates of the links: no averaging in
                          which contributors send to aggregators directly can be faster
    equal_parts_s         the same with equal parts at all peers, as an ordinary all-reduce has them
    parameter_server_s    the same with everything at the fastest peer, or the auxiliary
    predicted_s           what the last plan expected
    cpu_share             share of the machine's processors in use, by anybody, in the busiest of the rounds that count
    correct               in all rounds all peers took part and have bitwise equal results
    flat_s, two_level_s   (sites) equal parts, which is the best plan of one level there, and the plan with relays
    simulated             (--simulate) the three kinds of rounds in the virtual world, by production code that knows the
                          setup's rates and nothing of what is measured: before anything is measured
    peers, peers_trained, clients, survived_public_peer_death      (nat) see `_links_nat`

ok: everything correct, and measured_s at most 1.15 bound_s (A, B, C, D, home); equal parts take at least 1.7 times
(C) and 1.6 times (home) as long; D is faster than equal parts and than the parameter server; two levels are at least
twice as fast as one (sites); each simulated round takes within 15 % of what it takes in reality; all five peers train,
three of them as clients, and go on after a death (nat).
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks._links_nat import measure_nat
from benchmarks._links_rounds import measure
from benchmarks._links_setups import setups
from benchmarks._links_virtual import simulate
from benchmarks._report import finish, note, parser
from tests.netlab import why_unavailable

Figures = dict[str, Any]

MOST_OVER_BOUND = 1.15
LEAST_GAIN = {"C": 1.7, "home": 1.6}
"""How many times as long equal parts have to take."""
LEAST_SITES_GAIN = 2.0
SIMULATED_TOLERANCE = 0.15
KINDS = {"adaptive": "measured_s", "equal": "equal_parts_s", "server": "parameter_server_s"}
"""The kinds of plans, with the figure of their rounds."""


def is_ok(name: str, figures: Figures) -> bool:
    """Whether the figures of a setup are as they should be."""
    if name == "nat":
        return bool(figures["peers_trained"] == 5 and figures["clients"] == 3 and figures["survived_public_peer_death"])
    simulated = figures.get("simulated", {})
    if not figures["correct"] or any(abs(s / figures[k] - 1) > SIMULATED_TOLERANCE for k, s in simulated.items()):
        return False
    measured_s, equal_s = figures["measured_s"], figures["equal_parts_s"]
    if name == "sites":
        return figures["two_level_s"] is not None and figures["flat_s"] >= LEAST_SITES_GAIN * figures["two_level_s"]
    return bool(
        measured_s <= MOST_OVER_BOUND * figures["bound_s"]
        and equal_s >= LEAST_GAIN.get(name, 0.0) * measured_s
        and (name != "D" or measured_s < min(equal_s, figures["parameter_server_s"]))
    )


def main() -> int:
    known = setups()
    options = parser(__doc__)
    options.add_argument("--setup", default=",".join([*known, "nat"]), help="names, separated by commas")
    options.add_argument("--rounds", type=int, default=3, help="rounds that count")
    options.add_argument("--most-warmup", type=int, default=10, help="rounds after which plans are taken as they are")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--simulate", action="store_true", help="the same rounds in the virtual world, too")
    arguments = options.parse_args()
    names = arguments.setup.split(",")
    if unknown := set(names) - {*known, "nat"}:
        options.error(f"unknown setups: {', '.join(sorted(unknown))}")
    if (reason := why_unavailable()) is not None:
        note(reason)
        return finish("links", False, arguments.json, unavailable=reason, setups={})
    figures: dict[str, Figures] = {}
    for name in names:
        if name == "nat":
            figures[name] = measure_nat()
        else:
            asked = (known[name], {**dict.fromkeys(KINDS, 1), "adaptive": arguments.rounds})
            simulated = _simulated(*asked, arguments.seed, arguments.most_warmup) if arguments.simulate else {}
            figures[name] = measure(*asked, arguments.seed, arguments.most_warmup) | simulated
        figures[name]["ok"] = is_ok(name, figures[name])
    return finish("links", all(f["ok"] for f in figures.values()), arguments.json, setups=figures)


def _simulated(*asked: Any) -> Figures:
    """The figure of each kind of rounds, by a process that is gone before anything is measured."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        seconds = pool.submit(simulate, *asked).result()
    return {"simulated": {figure: round(seconds[kind], 3) for kind, figure in KINDS.items()}}


if __name__ == "__main__":
    raise SystemExit(main())
