"""What hostile members of a secure run can do, how soon they are gone, and what it would be like without defence.

    python -m benchmarks.attacks --all --json           # every attack, see `minga.simulation.attacks.interface`
    python -m benchmarks.attacks --attack alie --json   # single ones
    python -m benchmarks.attacks --table --json         # attacks by gradients against other aggregators, too
    python -m benchmarks.attacks --real --json          # real processes over iroh, see below
    python -m benchmarks.attacks --real --recipe swav --json
    python -m benchmarks.attacks --real --recipe fine-tune --json

16 peers in virtual time, 7 of them hostile from step 100 on, train a perceptron on scikit-learn's digits by the real
protocol. A step took 0.6 s of processor time with 16 members and 0.2 s with the 9 honest ones (on a slow core), so 300
steps take two to three minutes, and all attacks an hour or more. The metric is the held-out accuracy, as the mean over
the last ten steps. For each attack:

    attackers_banned, honest_banned, attackers_left (members to the end)
    steps_to_ban_all    from the first hostile step to the one that ended with the last ban, both counted
    predicted_steps     mean of `benchmarks._ban_times`, for attackers who cheat in every step and are caught by
                        validators alone
    metric, metric_no_attack (the same run without hostile members)
    metric_undefended   the same attack in a plain loop without network, bans and validators, where everybody takes
                        the mean of a part; null for attacks on what exists in the protocol alone

ok: all honest members end in the same state and none is banned; and of each attack, all attackers are gone within
twice the predicted steps (and the two that accusation and judgement take), or do no harm: metric at most 0.01 below
metric_no_attack. In the table: the metric of the protocol is at most 0.01 below the best of all, for each attack.

With --real: 8 processes, 3 of them hostile from step 15 on, train tiny ALBERT on text for 60 steps over iroh on this
machine, as whoever installs minga does. With another `--recipe` 4 processes train that for 60 steps, and one of them is
hostile from step 15 on. With `fine-tune` they train adapters of the small base, and the hostile one on flipped
completions. The metric is the headline of the recipe on held-out data at the end. ok: all honest processes end at the
same step in the same state (`equal_states`), with the same members and with the same bans of the same steps
(`equal_lists`); all attackers are banned and nobody else; and the loss is at most 2 % above that of the same run
without hostile members. Where one member of four is hostile, its ban leaves a quarter less samples for each step, so
there the metric has to keep half of what the run without hostile members gains. `away` has the honest members that the
others removed because they were late, as happens where the machine has too much to do: these come to know of later bans
by the list of members alone.

Some attacks are on newcomers, or by them: then the attackers come at the step at which the others begin, or one honest
peer does, which has to end in the same state as the rest.

The aggregators of the table work at a server that everybody trusts, on whole gradients; nobody is banned. They are
made for `--hostile` hostile rows, or for as many as they can bear. Attacks are named as in
`minga.simulation.attacks.interface`, aggregators (`--against`) as in `benchmarks._other_aggregates` and
`minga.security.robust.interface`; those of other packages that are installed count.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks._attack_real import RECIPES as REAL_RECIPES
from benchmarks._attack_real import RealExtent, RealTold, run_real
from benchmarks._attack_virtual import Digits, Extent, Told, hostile_names, run_plainly, run_swarm
from benchmarks._ban_times import mean_steps_to_ban_all
from benchmarks._other_aggregates import OTHERS, Aggregation
from benchmarks._report import emit, finish, note, parser
from minga.security.protocol.rules import SecureSettings
from minga.security.robust.interface import AGGREGATORS
from minga.simulation.attacks.interface import attack, attacks

HARMLESS = 0.01
VERDICT_STEPS = 2
REAL_EXCESS = 0.02
REAL_KEPT = 0.5
BASELINES = ("mean", "coordinate_median", "trimmed_mean", "geometric_median", "krum", "centered_clip")


@dataclass(frozen=True)
class Played:
    """One attack on the protocol, on a plain loop, and the final metrics with other aggregators in that."""

    secure: Told
    undefended: Told | None = None
    others: dict[str, float] = field(default_factory=dict)


def play(name: str | None, extent: Extent, against: Sequence[str] = ()) -> Played:
    """Play one attack, in a process of its own; without a name a training without attack."""
    torch.set_num_threads(1)
    digits = Digits(extent.seed)
    if name is None:
        return Played(run_swarm(digits, None, extent))
    setup = attack(name)
    undefended = run_plainly(digits, setup, extent) if setup.changes != "protocol" else None
    others = {kind: run_plainly(digits, setup, extent, aggregation(kind)).metric for kind in against}
    return Played(
        run_swarm(digits, setup, extent), undefended, {kind: round(metric, 4) for kind, metric in others.items()}
    )


def judge(played: Played, no_attack: float, extent: Extent) -> dict[str, Any]:
    """The figures of one attack."""
    told, undefended = played.secure, played.undefended
    hostile = hostile_names(extent)
    banned = [name for name in hostile if name in told.bans]
    honest_banned = len(told.bans) - len(banned)
    predicted = mean_steps_to_ban_all(extent.peers, extent.hostile, extent.validators)
    last = max((told.bans[name][0] for name in banned), default=None)
    steps = last - extent.attack_from + 1 if last is not None and len(banned) == len(hostile) else None
    is_gone = not told.stayed and (steps is None or steps <= 2 * predicted + VERDICT_STEPS)
    is_harmless = told.metric >= no_attack - HARMLESS
    return {
        "attackers": len(hostile),
        "attackers_banned": len(banned),
        "attackers_left": len(told.stayed),
        "honest_banned": honest_banned,
        "steps_to_ban_all": steps,
        "predicted_steps": round(predicted, 1),
        "metric": round(told.metric, 4),
        "metric_no_attack": round(no_attack, 4),
        "metric_undefended": None if undefended is None else round(undefended.metric, 4),
        "reasons": sorted({reason for _, reason in told.bans.values()}),
        "all_equal": told.all_equal,
        "ok": told.all_equal and not honest_banned and (is_gone or is_harmless),
    }


def aggregation(name: str) -> Aggregation:
    """An aggregator of the table, by its name."""
    if name in OTHERS:
        return OTHERS[name]
    aggregator = AGGREGATORS.get(name)(radius_factor=SecureSettings().clip_factor)
    return lambda rows, _: aggregator.aggregate(rows.unbind()).value


def judge_real(told: RealTold, no_attack: RealTold, extent: RealExtent) -> dict[str, Any]:
    """The figures of one attack on real processes."""
    banned = {name for bans in told.bans.values() for name in bans}
    known_to_all = set.intersection(*(set(bans.items()) for bans in told.bans.values()))
    hostile = {name: step for name, (step, _) in known_to_all if name not in told.ends}
    last = max(hostile.values(), default=None)
    metric, clean = (run.figures[extent.steps] for run in (told, no_attack))
    untrained = no_attack.figures[0]
    kept = (metric - untrained) / (clean - untrained) if clean != untrained else 0.0
    is_back = metric <= clean * (1 + REAL_EXCESS) if extent.least_kept is None else kept >= extent.least_kept
    return {
        "attackers": extent.hostile,
        "attackers_banned": len(hostile),
        "honest_banned": len(banned.intersection(told.ends)),
        "steps_to_ban_all": None if last is None or len(hostile) < extent.hostile else last - extent.attack_from + 1,
        "metric": round(metric, 4),
        "metric_no_attack": round(clean, 4),
        "reasons": sorted({reason for bans in told.bans.values() for _, reason in bans.values()}),
        "equal_states": told.equal_states,
        "equal_lists": told.equal_lists,
        "away": told.away,
        "kept": round(kept, 3),
        "figures": {step: round(figure, 3) for step, figure in sorted(told.figures.items())},
        "seconds": round(told.seconds, 1),
        "ok": told.equal_states and told.equal_lists and is_back and len(hostile) == len(banned) == extent.hostile,
    }


def real_extent(recipe: str) -> RealExtent:
    """How large the runs of a recipe are: those of pictures are small, since their figures cost most."""
    if recipe == "albert":
        return RealExtent()
    return RealExtent(4, 1, 1, 60, 15, recipe, evaluate_every=20, least_kept=REAL_KEPT)


def main_real(names: list[str], recipe: str, *, json: bool) -> int:
    """Attacks on real processes."""
    extent = real_extent(recipe)
    note("no attack")
    no_attack = run_real(extent, None)
    clean = no_attack.equal_states and no_attack.equal_lists and not any(no_attack.bans.values())
    emit(attack=None, ok=clean, away=no_attack.away, figures=no_attack.figures, seconds=round(no_attack.seconds, 1))
    _explain(no_attack)
    judged = {}
    for name in names:
        note(name)
        told = run_real(extent, name)
        judged[name] = judge_real(told, no_attack, extent)
        emit(attack=name, **judged[name])
        _explain(told)
    return finish("attacks", clean and all(figures["ok"] for figures in judged.values()), json, attacks=judged)


def _explain(told: RealTold) -> None:
    """Where honest members ended apart: how each of them did."""
    if not (told.equal_states and told.equal_lists):
        for name, (step, digest, members) in sorted(told.ends.items()):
            emit(ended=name, step=step, digest=digest, members=members, bans=told.bans[name], away=told.away.get(name))


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--attack", nargs="+", choices=attacks(), metavar="NAME", help="(default: sign-flip)")
    options.add_argument("--all", action="store_true", help="all attacks")
    options.add_argument("--table", action="store_true", help="all attacks by gradients, and the other aggregators")
    options.add_argument(
        "--against",
        nargs="+",
        choices=(*OTHERS, *AGGREGATORS.names()),
        default=BASELINES,
        metavar="NAME",
        help="for --table",
    )
    options.add_argument("--peers", type=int, default=16)
    options.add_argument("--hostile", type=int, default=7)
    options.add_argument("--validators", type=int, choices=[1, 2, 4], default=1)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--attack-from", type=int, default=100)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--processes", type=int, default=os.cpu_count(), help="so many at once (default: all cores)")
    options.add_argument("--real", action="store_true", help="real processes over iroh")
    options.add_argument("--recipe", choices=REAL_RECIPES, default="albert", help="for --real: what they train")
    arguments = options.parse_args()
    if arguments.real:
        recipe = REAL_RECIPES[arguments.recipe]
        chosen = arguments.attack or [recipe.attack]
        if "label-flip" in chosen and not recipe.flips_labels:
            options.error(f"--attack label-flip: nobody knows how to flip the labels of --recipe {arguments.recipe}")
        return main_real(chosen, arguments.recipe, json=arguments.json)
    if not 0 < 2 * arguments.hostile < arguments.peers:
        options.error("--hostile: at least one, and less than half of the peers")
    fields = ("peers", "hostile", "validators", "steps", "attack_from", "seed")
    extent = Extent(**{name: getattr(arguments, name) for name in fields})
    names = list(attacks()) if arguments.all else arguments.attack or ["sign-flip"]
    if arguments.table:
        names = [name for name in attacks() if attack(name).changes == "gradient"]
    against = arguments.against if arguments.table else ()
    judged: dict[str, dict[str, Any]] = {}
    table: dict[str, dict[str, float]] = {}
    with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
        playing = {pool.submit(play, name, extent, against): name for name in [None, *names]}
        no_attack = next(run for run, name in playing.items() if name is None).result().secure
        for run in as_completed(playing):
            if (name := playing[run]) is None:
                continue
            played = run.result()
            judged[name] = judge(played, no_attack.metric, extent)
            emit(attack=name, **judged[name])
            if arguments.table:
                table[name] = {"btard": round(played.secure.metric, 4), **played.others}
                emit(table=name, **table[name])
    is_best = all(row["btard"] >= max(row.values()) - HARMLESS for row in table.values())
    return finish(
        "attacks",
        no_attack.all_equal and is_best and all(figures["ok"] for figures in judged.values()),
        arguments.json,
        attacks=judged,
        **({"table": table} if table else {}),
    )


if __name__ == "__main__":
    raise SystemExit(main())
