"""Held-out figures beside training, now and then, for whichever command trains: shown, emitted and written down."""

from __future__ import annotations

import logging
import math
import time

from minga.cli.terminal.output import Output
from minga.core.errors import MingaError
from minga.monitor.history import History
from minga.recipes.running.background_evaluation import Evaluator
from minga.recipes.running.run import RecipeRun

logger = logging.getLogger("minga")

FIRST_PERIOD_S = 20.0
SHARE = 0.05
"""Evaluation takes at most this share of the time."""


class HeldOut:
    """The held-out figures of what `run` trains. `first` and `latest` are empty until there are some."""

    def __init__(self, run: RecipeRun, output: Output, history: History) -> None:
        self.first: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        self._run, self._output, self._history = run, output, history
        self._evaluator = Evaluator(run.peer.spec, run.files, run.model, self._on_figures)
        self._due, self._begun, self._step = 0.0, 0.0, -1

    def now(self) -> None:
        """Evaluate the model as it is and wait for the figures. Raises what the recipe raises, if it never gave any;
        otherwise, and in `if_due`, training goes on without them.
        """
        self._wait()
        if self._run.step != self._step:
            self._start()
            self._wait()

    def if_due(self) -> None:
        """Start an evaluation in the background if it is time for one; call it while the model is at rest."""
        if self._evaluator.is_busy:
            return
        self._tell(self._evaluator.take_error())
        if self._run.step != self._step and time.monotonic() >= self._due:
            self._start()

    def _wait(self) -> None:
        self._evaluator.wait()
        error = self._evaluator.take_error()
        if error is not None and not self.first:
            raise error
        self._tell(error)

    def _tell(self, error: Exception | None) -> None:
        """Say why the last evaluation gave no figures; it is tried again when the next one is due."""
        if error is None:
            return
        why = None if isinstance(error, MingaError) else error  # another author's defect, with its traceback
        logger.warning("no figures on held-out data of step %d: %s", self._step, error, exc_info=why)
        self._due = time.monotonic() + FIRST_PERIOD_S

    def _start(self) -> None:
        self._due, self._step, self._begun = math.inf, self._run.step, time.monotonic()
        self._evaluator.start(self._run.model, self._step)

    def _on_figures(self, step: int, figures: dict[str, float]) -> None:
        took_s = time.monotonic() - self._begun
        self._due = time.monotonic() + max(FIRST_PERIOD_S, took_s / SHARE)
        self.latest = {"step": step, **figures}
        self.first = self.first or self.latest
        headline = self._run.recipe.headline.name
        self._output.event("evaluation", step=step, seconds=round(took_s, 3), headline=headline, **figures)
        self._history.add(time.time(), "evaluation", step=step, headline=headline, **figures)
