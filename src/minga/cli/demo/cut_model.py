"""The demo of a cut model: some clients with their data and a server, once without NoPeek and once with it.

What leaves a client stands beside what it was made of.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from minga.cli.demo.report import DemoOutcome, draw_columns
from minga.cli.demo.stage import Child, Stage
from minga.cli.terminal.context import apply_threads
from minga.core.spec.run_spec import RunSpec
from minga.core.units import counted, format_size

WAYS: Final = {"without NoPeek": 0.0, "with NoPeek": 3.0}
"""The two runs, with the weight that the dependence of activations on data has in the loss of the clients."""

LEAST_ACCURACY, LEAST_BATCHES = 0.85, 300
"""Share of held-out digits that each client recognises at least, once all have trained on so many batches."""

GOODBYE_LIMIT_S: Final = 60.0
PICTURE: Final = "what-leaves.png"


@dataclass(frozen=True)
class _CutRun:
    """The processes of one run."""

    way: str
    spec: RunSpec
    server: Child
    clients: list[Child]

    @property
    def batches(self) -> list[int]:
        """How many batches each client has trained on."""
        done = [client.of("progress", "own") for client in self.clients]
        return [own[-1]["batches"] if own else 0 for own in done]


def play_cut_model(stage: Stage, spec: RunSpec, minutes: float, clients: int) -> DemoOutcome:
    """Train both runs for `minutes`, beside each other, and look at what the clients sent."""
    runs = [_begin(stage, _spec_of(spec, weight, clients), way) for way, weight in WAYS.items()]
    stage.until(lambda: all(min(run.batches) > 0 for run in runs), "the clients have trained on a batch")
    stage.tell(f"{clients} clients, each with its part of the digits, train with a server: {' and '.join(WAYS)}.")
    for is_time_to_tell in stage.watch(time.time() + 60.0 * minutes):
        if is_time_to_tell:
            stage.tell("; ".join(f"{run.way}: {' + '.join(map(str, run.batches))} batches" for run in runs))
    stage.tell("Time is up: the clients finish.")
    left_over = _end(stage, runs)
    return _outcome(stage, runs, left_over, minutes)


def _spec_of(spec: RunSpec, weight: float, clients: int) -> RunSpec:
    settings = {**spec.recipe["split"], "no_peek": weight, "clients": clients}
    return spec.model_copy(update={"recipe": {"split": settings}})


def _begin(stage: Stage, spec: RunSpec, way: str) -> _CutRun:
    slug = way.replace(" ", "-")
    path = stage.directory / f"run-{slug}.toml"
    path.write_text(spec.to_toml(), "utf-8")
    server = stage.start(f"server {slug}", ["host", str(path)])
    stage.until(lambda: server.first("link") is not None, "the server has a link")
    link = str((server.first("link") or {})["link"])
    clients = []
    for number in range(1, spec.recipe["split"]["clients"] + 1):
        clients.append(stage.start(f"client {number} {slug}", ["join", link, "--part", str(number)]))
        clients[-1].step_back()
    return _CutRun(way, spec, server, clients)


def _end(stage: Stage, runs: list[_CutRun]) -> int:
    """Let the clients finish before their servers, which answer their last questions; how many processes are left."""
    clients = stage.end(0, GOODBYE_LIMIT_S, [client for run in runs for client in run.clients])
    return clients + stage.end(0, GOODBYE_LIMIT_S, [run.server for run in runs])


def _outcome(stage: Stage, runs: list[_CutRun], left_over: int, minutes: float) -> DemoOutcome:
    from minga.recipes.split.seen_by_server import SeenByServer

    apply_threads(1)  # several would wait for each other on a machine that others use, too
    seen = {run.way: SeenByServer.of(run.spec, Path(str(run.clients[0].summary["directory"]))) for run in runs}
    accuracies = {run.way: [client.summary.get("heldout_accuracy", 0.0) for client in run.clients] for run in runs}
    plain, _ = (seen[way] for way in WAYS)
    columns = {"the client's picture": plain.originals}
    columns |= {f"what leaves it, {way}": found.sent for way, found in seen.items()}
    draw_columns(columns, plain.labels, stage.directory / PICTURE)
    figures: dict[str, Any] = {
        "data": "1,797 handwritten digits of 8 by 8 pixels (package scikit-learn, UCI, CC BY 4.0)",
        "clients": len(runs[0].clients),
        "batches": {run.way: run.batches for run in runs},
        "bytes_sent": {run.way: [client.summary.get("bytes_sent", 0) for client in run.clients] for run in runs},
        "heldout_accuracy": accuracies,
        "distance_correlation": {way: found.correlation for way, found in seen.items()},
        "leftover_processes": left_over,
        "minutes": minutes,
    }
    failed = missed(figures)
    summary = {"ok": not failed, **figures, "failed": failed, "results": [PICTURE]}
    return DemoOutcome(summary, _words(runs, summary, stage.directory))


_MISSED: Final = {
    "heldout_accuracy": "digits were recognised less often than after so much training",
    "distance_correlation": "NoPeek hid nothing",
    "leftover_processes": "processes were left over",
}


def missed(figures: Mapping[str, Any]) -> list[str]:
    """What did not come out as promised; what takes training is promised of demos that have had enough of it."""
    plain, hidden = (figures["distance_correlation"][way] for way in WAYS)
    has_learned = all(min(batches) >= LEAST_BATCHES for batches in figures["batches"].values())
    bounds = {
        "heldout_accuracy": not has_learned or min(map(min, figures["heldout_accuracy"].values())) >= LEAST_ACCURACY,
        "distance_correlation": not has_learned or hidden < plain,
        "leftover_processes": figures["leftover_processes"] == 0,
    }
    return [name for name, holds in bounds.items() if not holds]


def _words(runs: list[_CutRun], summary: dict[str, Any], directory: Path) -> list[str]:
    lines = [
        f"{summary['clients']} clients and a server trained one model that is cut between them. No picture and no "
        "label left a client; the server got activations.",
        f"Data: {summary['data']}; a fifth is held out, the rest dealt out to the clients.",
    ]
    for run in runs:
        shares = " and ".join(f"{share:.1%}" for share in summary["heldout_accuracy"][run.way])
        sent = " and ".join(format_size(size) for size in summary["bytes_sent"][run.way])
        trained = " and ".join(counted(count, "batch", "batches") for count in run.batches)
        lines.append(
            f"  {run.way}: {trained}, {sent} sent; held-out digits recognised: {shares}. What is sent depends on the "
            f"pictures by {summary['distance_correlation'][run.way]:.2f} (distance correlation, 1 is wholly)."
        )
    lines += [
        "What is sent can still be turned back into pictures in part. NoPeek hides more at some cost, and proves "
        "nothing: see docs/split-learning.md.",
        f"Results: {directory} ({PICTURE}, terminal.svg, summary.json, logs)",
    ]
    if summary["failed"]:
        lines.append(f"Not as promised: {', '.join(_MISSED[name] for name in summary['failed'])}.")
    return lines
