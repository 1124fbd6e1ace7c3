"""What `strategy = "auto"` chooses at each kappa, and how much later it comes to a loss than the best that was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks._strategy_clock import AUXILIARY, HOME_DOWN, HOME_UP, LATENCY_S, MBIT, Clock
from benchmarks._strategy_gaps import choice_of
from benchmarks._strategy_methods import METHODS
from benchmarks._strategy_tasks import GLOBAL_BATCH, TASKS, Task
from minga.core.spec.sections import OptimizerSection
from minga.planner.auto_choice import choose
from minga.planner.model_facts import ModelFacts
from minga.planner.peer_text import parse_peers
from minga.planner.planned_run import PlannedRun, resolve
from minga.planner.ways import SYNCHRONOUS, TrainingWay

TARGET: Final = "80%"
MICRO_BATCH: Final = 4

Row = dict[str, Any]


def auto_rows(rows: Sequence[Row], peers: int) -> list[Row]:
    """For each task and kappa with peers of equal speed: the method that "auto" chooses, its share of the reference's
    time to the target, the best method's, and the ratio of both; None where it was not run or never comes there.
    """
    found = []
    for task, kappa in dict.fromkeys((row["task"], row["kappa"]) for row in rows if row["speeds"] == "equal"):
        here = [row for row in rows if (row["task"], row["kappa"], row["speeds"]) == (task, kappa, "equal")]
        shares: dict[str, float] = {}
        for row in here:
            share = row["targets"][TARGET]["share_of_reference"]
            share = share[0] if isinstance(share, list) else share
            if share is not None:
                shares[row["method"]] = min(share, shares.get(row["method"], share))
        way = choose(_planned(TASKS[task], kappa, peers)).compared.way
        method = _method_of(way)
        mine, best = shares.get(method or ""), min(shares, key=lambda name: shares[name])
        found.append(
            {
                "task": task,
                "kappa": kappa,
                "chosen": f"{way.name}, {way.codec}",
                "method": method,
                "share_of_reference": mine,
                "best": best,
                "best_share": shares[best],
                "ratio": None if mine is None else round(mine / shares[best], 3),
            }
        )
    return found


def _planned(task: Task, kappa: float, peers: int) -> PlannedRun:
    """The swarm of the benchmark, as an organiser would describe it."""
    clock = Clock((1.0,) * peers, kappa, task.parameters, task.parameters)
    up, down, auxiliary = (f"{rate / MBIT:g}Mbit" for rate in (HOME_UP, HOME_DOWN, AUXILIARY))
    latency = f"latency={1e3 * LATENCY_S:g}ms"
    text = (
        f"{peers}x(samples_per_s={clock.samples_per_s()[0]:.6f}, micro_batch={MICRO_BATCH}, up={up}, down={down}, "
        f"{latency}); (aux, {auxiliary}, {latency})"
    )
    model = ModelFacts(task.stands_for, (task.parameters,), 1e12, 128, None, "as given")
    volunteers = resolve(parse_peers(text), model, OptimizerSection(name="adamw"), GLOBAL_BATCH)
    return PlannedRun(volunteers, model, OptimizerSection(name="adamw"), GLOBAL_BATCH, SYNCHRONOUS, "float16")


def _method_of(way: TrainingWay) -> str | None:
    """The method of the benchmark that trains in this way."""
    wanted = _known_by(way)
    return next((name for name, method in METHODS.items() if choice_of(method) == wanted), None)


def _known_by(way: TrainingWay) -> Mapping[str, Any]:
    said: Row = {"strategy": way.strategy.name, "codec": way.codec}
    said |= {"download_codec": way.download_codec} if way.download_codec else {}
    said |= {"batches": way.batches} if way.batches > 1 else {}
    return said | {name: each for name, each in way.strategy.table.items() if name in ("overlap", "fragments")}
