"""How far simulations and forecasts can be trusted: the same peers in the virtual world and on shaped links.

    python -m benchmarks.sim_vs_real --setup A,home,sites,village --json

Needs root on Linux with iproute2 and nftables for what is measured; see `tests/netlab`. A, B, C, D, home and sites are
the setups of `benchmarks.links`. Their rounds are simulated first, by production code on virtual time that knows the
setup's rates and nothing of what is measured, and then taken by real processes over real transports. Each is done
with the plans that the peers make themselves, with equal parts, and with everything at one peer. The village is a
swarm that trains (`_village`); `minga plan` forecasts its steps, too. One line for each comparison, then the summary,
with for each setup

    predicted_s    (A, B, C, D, home, sites) seconds of a round with the peers' own plans, in the median, by simulation
                   (village) seconds of a step
    measured_s     the same in reality
    others         the same two for rounds with "equal" parts, and with everything at one "server"
    forecast_s     (village) seconds of a step by `minga plan`
    cpu_share      (but the village) share of this machine's processors in use in the busiest round that counts

ok: predicted_s within 15 % of measured_s in each setup, the other plans' as well, and forecast_s within 15 %, too; and
all rounds went well in both worlds.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

from benchmarks import _village
from benchmarks._links_rounds import Rounds, measure_rounds
from benchmarks._links_setups import Setup, setups
from benchmarks._links_virtual import simulate
from benchmarks._processes import WorkerError
from benchmarks._report import emit, finish, note, parser
from tests.netlab import LabError, why_unavailable

Figures = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")

TOLERANCE: Final = 0.15
OTHER_PLANS: Final = ("equal", "server")


def apart(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call it in a process that is gone afterwards, so that it leaves nothing behind for what is measured."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def compare_rounds(setup: Setup, rounds: int, seed: int, most_warmup: int) -> Figures:
    """The figures of a setup of `benchmarks.links`."""
    kinds = {"adaptive": rounds, **dict.fromkeys(OTHER_PLANS, 1)}
    foreseen = apart(simulate, setup, kinds, seed, most_warmup)
    measured: Rounds = measure_rounds(setup, kinds, seed, most_warmup)
    pairs = {
        kind: {"predicted_s": round(foreseen.median_s(kind), 3), "measured_s": round(measured.median_s(kind), 3)}
        for kind in kinds
    }
    return {
        **pairs["adaptive"],
        "others": {kind: pairs[kind] for kind in OTHER_PLANS},
        "cpu_share": round(measured.cpu_share, 3),
        "correct": measured.correct and not foreseen.failures,
    }


def compare_steps(steps: int, seed: int) -> Figures:
    """The figures of the village."""
    foreseen, measured = apart(_village.simulate, steps, seed), _village.measure(steps)
    return {
        "predicted_s": round(_village.median_step_s(foreseen), 3),
        "measured_s": round(_village.median_step_s(measured), 3),
        "forecast_s": round(_village.foresee().step_s, 3),
        "batches": [_mean_batch(foreseen), _mean_batch(measured)],
        "correct": all(len(step.samples) == len(_village.HOSTS) for step in [*foreseen, *measured]),
    }


def differences(figures: Figures) -> Iterator[float]:
    """By what share of the measured time each of the predicted ones is off."""
    for pair in (figures, *figures.get("others", {}).values()):
        yield pair["predicted_s"] / pair["measured_s"] - 1.0
    if "forecast_s" in figures:
        yield figures["forecast_s"] / figures["measured_s"] - 1.0


def is_ok(figures: Figures) -> bool:
    """Whether the figures of a setup are as they should be."""
    return bool(figures["correct"]) and all(abs(each) <= TOLERANCE for each in differences(figures))


def _mean_batch(steps: list[Any]) -> float:
    return round(sum(step.batch for step in steps) / len(steps), 1)


def main() -> int:
    known = setups()
    options = parser(__doc__)
    options.add_argument("--setup", default=",".join([*known, "village"]), help="names, separated by commas")
    options.add_argument("--rounds", type=int, default=3, help="rounds that count with the peers' own plans")
    options.add_argument("--most-warmup", type=int, default=10, help="rounds after which plans are taken as they are")
    options.add_argument("--steps", type=int, default=8, help="steps of the village that count")
    options.add_argument("--seed", type=int, default=1)
    arguments = options.parse_args()
    names = arguments.setup.split(",")
    if unknown := set(names) - {*known, "village"}:
        options.error(f"unknown setups: {', '.join(sorted(unknown))}")
    if (reason := why_unavailable()) is not None:
        note(reason)
        return finish("sim_vs_real", False, arguments.json, unavailable=reason, setups={})
    figures: dict[str, Figures] = {}
    for name in names:
        try:
            if name == "village":
                found = compare_steps(arguments.steps, arguments.seed)
            else:
                found = compare_rounds(known[name], arguments.rounds, arguments.seed, arguments.most_warmup)
            figures[name] = {**found, "ok": is_ok(found), "off": [round(each, 3) for each in differences(found)]}
        except (WorkerError, LabError) as error:
            figures[name] = {"error": str(error), "ok": False}
        emit(setup=name, **figures[name])
    return finish("sim_vs_real", all(each["ok"] for each in figures.values()), arguments.json, setups=figures)


if __name__ == "__main__":
    raise SystemExit(main())
