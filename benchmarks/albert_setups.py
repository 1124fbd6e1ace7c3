"""How near five kinds of swarm come to the shortest step time that their machines and links allow.

    python -m benchmarks.albert_setups --json      # all in the virtual world: the same figures every time

Trainers of 10 samples/s (T4) take steps of 4096 samples of ALBERT-large, synchronously and with the delayed strategy:

    1  16 trainers at 25 Gb/s                     4  as 3, and 4 auxiliaries at 500 Mb/s
    2  4 at 200, 8 at 100 and 4 at 50 Mb/s,   X    3  as 2, with parts by rates

The peers are those of production on virtual hosts. What they compute takes virtual time and is the gradient of a small
classifier over all its samples, so that a step's gradient does not depend on who computed it; the rest of the
vector (gradients and parameters in float16, 71 MB) is zeros. Vector and line rates are `--scale` times smaller, which
leaves transfer times as they are; control messages are not, so they weigh `--scale` times more than in reality.

Nobody declares a rate: the peers measure their lines, mostly from the rounds, which takes some (WARM_UP).
The known ideal step times count 5 s of matchmaking; here it takes as long as it takes. So there are three step times:

    measured_s         the mean of `--steps` steps, not counting the first ones and those after peers came or went
    ideal_s            B / speed + matchmaking_s + transfer; with the delayed strategy the longer of computation and
                       the rest, see `benchmarks._albert_model`. matchmaking_s is measured: the mean time, over the
                       trainers of synchronous steps, from the begin of a step to its plan, less the computation
    paper_s            measured_s with 5 s of matchmaking instead, to compare with paper_ideal_s (synchronous only)
    percent            speed relative to setup 1; setup 5 on average over both halves of the time
    change_s           the longest step in which peers came or went
    curve_gap          largest relative difference of the held-out loss after a step from that of setup 1
    delayed_gap        the same of the delayed runs: how much of a step's gradient is a step old depends on how long
                       the transfer takes, so that their curves are not quite the same

ok: measured_s within 5 % of ideal_s in all setups with both strategies, paper_s of paper_ideal_s and the percentages
that follow from it of the paper's, synchronous learning curves equal within 1e-5 and delayed ones within 2 %, and all
peers equal, bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, get_args

import torch

from benchmarks._albert_model import (
    ADAPTIVE,
    ASSISTED,
    EQUAL,
    MATCHMAKING_S,
    PAPER_TIME_VARYING_PERCENT,
    SETUPS,
    UNIFORM,
    WITH_GUESTS,
    Setup,
    Strategy,
)
from benchmarks._albert_swarm import Extent, Step, Told, run
from benchmarks._report import emit, finish, note, parser

LIMIT = 0.05
CURVE_LIMIT = 1e-5
DELAYED_LIMIT = 0.02
WARM_UP = {"synchronous": 4, "delayed": 3}
"""Steps until the rates are known well enough. A delayed step that follows one with a longer transfer looks short."""


@dataclass
class Measured:
    """The step time of one setup, in seconds, and what it consists of."""

    setup: Setup
    strategy: Strategy
    step_s: float
    matchmaking_s: float
    transfer_s: float
    samples: float

    @property
    def ideal_s(self) -> float:
        """What it would be at best with the matchmaking that was measured."""
        return self.setup.ideal_s(self.strategy, self.matchmaking_s)

    @property
    def paper_s(self) -> float:
        """What it would be with the paper's matchmaking; for synchronous steps."""
        return self.step_s - self.matchmaking_s + MATCHMAKING_S

    @property
    def is_near(self) -> bool:
        """Whether it is as it should be."""
        near_paper = self.strategy == "delayed" or _near(self.paper_s, self.setup.paper_ideal_s)
        return near_paper and _near(self.step_s, self.ideal_s)


def measure(setup: Setup, strategy: Strategy, told: Told, matchmaking_s: float | None) -> Measured:
    """The figures of one setup; `matchmaking_s` where that cannot be told from the steps."""
    regular = list(told.regular(setup))
    steps: list[Step] = [step for _, step in regular]
    waited_s = fmean(seconds for step in steps for seconds in step.waited_s)
    return Measured(
        setup,
        strategy,
        step_s=fmean(seconds for seconds, _ in regular),
        matchmaking_s=waited_s - setup.compute_s if matchmaking_s is None else matchmaking_s,
        transfer_s=fmean(seconds for step in steps for seconds in step.averaged_s),
        samples=fmean(step.samples for step in steps),
    )


def gap(losses: Mapping[int, float], reference: Mapping[int, float]) -> float:
    """The largest relative difference between two loss curves, as far as both go."""
    return max(abs(losses[step] - reference[step]) / reference[step] for step in losses.keys() & reference.keys())


def run_all(strategy: Strategy, steps: int, scale: float) -> dict[int, Told]:
    """The runs by setup; 4 and 5 are one run."""
    told: dict[int, Told] = {}
    for setup in (UNIFORM, EQUAL, ADAPTIVE, ASSISTED):
        note(f"{strategy}: setup {setup.number} ({setup.name})")
        extent = Extent(steps, WARM_UP[strategy] if setup.adaptive else 1, scale)
        told[setup.number] = run(setup, strategy, extent, alternating=setup is ASSISTED)
    told[WITH_GUESTS.number] = told[ASSISTED.number]
    return told


def percentages(seconds: Mapping[int, float]) -> dict[int, float]:
    """Speeds relative to setup 1, by setup, from step times; that of setup 5 is the mean over both of its halves."""
    percent = {number: 100 * seconds[UNIFORM.number] / each for number, each in seconds.items()}
    percent[WITH_GUESTS.number] = (percent[ASSISTED.number] + percent[WITH_GUESTS.number]) / 2
    return percent


def report(measured: Mapping[tuple[int, Strategy], Measured], told: Mapping[Strategy, Mapping[int, Told]]) -> list[Any]:
    """One row of figures for each setup and strategy."""
    rows = []
    for strategy in get_args(Strategy):
        percent = percentages({number: m.step_s for (number, kind), m in measured.items() if kind == strategy})
        ideal = percentages({number: m.ideal_s for (number, kind), m in measured.items() if kind == strategy})
        for setup in SETUPS:
            m = measured[setup.number, strategy]
            row: dict[str, Any] = {"setup": setup.number, "strategy": strategy}
            row |= {"measured_s": round(m.step_s, 2), "ideal_s": round(m.ideal_s, 2), "ok": m.is_near}
            row |= {"percent": round(percent[setup.number], 1), "ideal_percent": round(ideal[setup.number], 1)}
            if strategy == "synchronous":
                row |= {"paper_s": round(m.paper_s, 2), "paper_ideal_s": setup.paper_ideal_s}
                row["matchmaking_s"] = round(m.matchmaking_s, 2)
            row |= {"transfer_s": round(m.transfer_s, 2), "ideal_transfer_s": round(setup.transfer_s, 2)}
            row["samples"] = round(m.samples)
            if setup is WITH_GUESTS:
                row["change_s"] = round(told[strategy][setup.number].longest_change_s(), 2)
            rows.append(row)
    return rows


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=2, help="steps of each setup that count")
    options.add_argument("--scale", type=float, default=8.0, help="by how much vector and rates are smaller")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    told: dict[Strategy, dict[int, Told]] = {}
    measured: dict[tuple[int, Strategy], Measured] = {}
    for strategy in get_args(Strategy):
        told[strategy] = run_all(strategy, arguments.steps, arguments.scale)
        for setup in SETUPS:
            known = measured[setup.number, "synchronous"].matchmaking_s if strategy == "delayed" else None
            measured[setup.number, strategy] = measure(setup, strategy, told[strategy][setup.number], known)
    rows = report(measured, told)
    for row in rows:
        emit(**row)
    curve = told["synchronous"][UNIFORM.number].losses
    curve_gap = max(gap(each.losses, curve) for each in told["synchronous"].values())
    delayed_gap = max(gap(each.losses, curve) for each in told["delayed"].values())
    paper = percentages({setup.number: measured[setup.number, "synchronous"].paper_s for setup in SETUPS})
    expected = {setup.number: setup.paper_percent for setup in SETUPS} | {
        WITH_GUESTS.number: PAPER_TIME_VARYING_PERCENT
    }
    all_equal = all(each.all_equal for runs in told.values() for each in runs.values())
    near = all(m.is_near for m in measured.values())
    near_paper = all(_near(paper[number], percent) for number, percent in expected.items())
    return finish(
        "albert_setups",
        near and near_paper and all_equal and curve_gap <= CURVE_LIMIT and delayed_gap <= DELAYED_LIMIT,
        arguments.json,
        steps=arguments.steps,
        scale=arguments.scale,
        rows=rows,
        worst=max(abs(m.step_s / m.ideal_s - 1) for m in measured.values()),
        paper_percent={number: [round(paper[number], 1), percent] for number, percent in expected.items()},
        loss=[round(curve[step], 5) for step in sorted(curve)],
        curve_gap=curve_gap,
        delayed_gap=delayed_gap,
        all_equal=all_equal,
    )


def _near(value: float, target: float) -> bool:
    return abs(value / target - 1) <= LIMIT


if __name__ == "__main__":
    raise SystemExit(main())
