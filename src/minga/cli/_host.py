"""`minga host`: start a run, or go on with it, and stay as its monitor, seed and auxiliary."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minga.cli._context import Context, collect_again
from minga.cli._prepared import prepared_files
from minga.cli._session import WorkOptions, apply_threads, wire
from minga.cli._views import organiser_lines, organiser_view
from minga.core._errors import ConfigurationError
from minga.core._run_spec import RunSpec
from minga.training._entrance import PeerOptions, host
from minga.training._peer import Peer

FIRST_EVALUATION_PERIOD_S = 20.0
EVALUATION_SHARE = 0.05
"""Evaluation takes at most this share of the time."""


@dataclass(frozen=True)
class HostOptions:
    """What only `host` takes. `stay` is whether to go on serving the run after its last step."""

    show_qr: bool = True
    stay: bool = True
    evaluate_every_s: float | None = None


def run_host(spec_path: Path, peer: PeerOptions, work: WorkOptions, options: HostOptions, context: Context) -> None:
    """Prepare, host, and stay until the run ends or Ctrl-C comes."""
    spec = RunSpec.from_file(spec_path)
    output = context.output
    if spec.model.recipe == "custom":
        if peer.role not in ("monitor", "auxiliary"):
            raise ConfigurationError(
                'model.recipe = "custom" has no model that this command could train; host it with --role monitor'
            )
        peer = replace(peer, role="monitor")
    apply_threads(work.threads)
    output.say(f"Preparing [bold]{spec.name}[/] …")
    files = prepared_files(spec, peer.directory)
    with host(spec, peer, files=files) as hosted:
        wire(context, hosted)
        _Hosting(hosted, work, options, context).run()


class _Hosting:
    """One `minga host`."""

    def __init__(self, peer: Peer, work: WorkOptions, options: HostOptions, context: Context) -> None:
        from minga.monitor._history import FILE_NAME, History
        from minga.monitor._watcher import Watcher

        self.peer, self.work, self.options, self.output, self.leash = peer, work, options, context.output, context.leash
        self.history = History(peer.directory / FILE_NAME)
        self.watcher = Watcher(peer, self.history, from_start=True)
        self.figures: dict[str, float] = {}
        self.first_figures: dict[str, float] = {}
        self._evaluation_due = 0.0
        self._evaluated_step = -1
        self._evaluation_begun = 0.0

    def run(self) -> None:
        """Show the link and stay."""
        from minga.cli._output import Ticker

        if self.peer.role == "monitor":
            collect_again()
            self._announce()
            with Ticker(self.output, self.watcher.look, self._view, self._lines) as ticker:
                while not self._is_over(0):
                    ticker.check()
                    time.sleep(0.2)
            return
        self._run_replica()

    def _run_replica(self) -> None:
        from minga.cli._output import Ticker
        from minga.recipes._evaluator import Evaluator
        from minga.recipes._run import RecipeRun

        run = RecipeRun(self.peer, device=self.work.device, micro_batch_size=self.work.micro_batch)
        evaluator = Evaluator(self.peer.spec, self.peer.files, run.model, self._on_figures)
        self._evaluate(evaluator, run)
        evaluator.wait()
        collect_again()
        self._announce()
        with Ticker(self.output, self.watcher.look, self._view, self._lines) as ticker:

            def between() -> None:
                ticker.check()
                new = run.step != self._evaluated_step
                if new and time.monotonic() >= self._evaluation_due and not evaluator.is_busy:
                    self._evaluate(evaluator, run)

            if self.peer.role == "auxiliary":
                run.follow(self._is_over, between)
            else:
                run.train(self._is_over, lambda *_: between())
            evaluator.wait()
            self._evaluate(evaluator, run)
            evaluator.wait()
            run.optimizer.save_checkpoint()
            self._summarise(run)
            if run.finished and self.options.stay:
                self.output.say(
                    f"The run is complete after {run.step} steps. Its state stays available until Ctrl-C, which is "
                    "safe now."
                )
                while not (self.leash and self.leash.end_step < math.inf):
                    ticker.check()
                    time.sleep(0.2)

    def _announce(self) -> None:
        link = self.peer.link
        self.output.event("link", link=str(link), run_id=self.peer.run_id, directory=str(self.peer.directory))
        if self.options.show_qr and self.output.interactive:
            self.output.console.file.write(link.qr() + "\n")
        self.output.say("Anyone who has this link can join the run:\n")
        if not self.output.json_output:
            self.output.console.print(f"minga join {link}", markup=False, soft_wrap=True)
        self.output.say(f"\nFiles, checkpoints and history: {self.peer.directory}")

    def _is_over(self, step: int) -> bool:
        return self.leash is not None and self.leash.is_over(step)

    def _evaluate(self, evaluator: Any, run: Any) -> None:
        self._evaluation_due, self._evaluated_step = math.inf, run.step
        self._evaluation_begun = time.monotonic()
        evaluator.start(run.model, run.step)

    def _on_figures(self, step: int, figures: dict[str, float]) -> None:
        took_s = time.monotonic() - self._evaluation_begun
        period_s = self.options.evaluate_every_s or max(FIRST_EVALUATION_PERIOD_S, took_s / EVALUATION_SHARE)
        self._evaluation_due = time.monotonic() + period_s
        self.figures = {"step": step, **figures}
        self.first_figures = self.first_figures or self.figures
        self.output.event("evaluation", step=step, seconds=round(took_s, 3), **figures)
        self.history.add(time.time(), "evaluation", step=step, **figures)

    def _summarise(self, run: Any) -> None:
        self.output.summary(
            ok=True,
            step=run.step,
            finished=run.finished,
            digest=run.optimizer.digest(),
            first=self.first_figures,
            last=self.figures,
            directory=str(self.peer.directory),
        )

    def _view(self, status: Any) -> Any:
        return organiser_view(status, self.figures)

    def _lines(self, status: Any) -> Any:
        return organiser_lines(status, self.figures)
