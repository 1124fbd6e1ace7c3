"""Figures of a run for TensorBoard, Weights & Biases and Trackio: what the history of a run has, as it comes.

    monitor/history ─▶ RunLog ─▶ tensorboard | wandb | trackio, each imported when it is first used

Weights & Biases and Trackio have the same three calls. What a logger does with the figures, and where it sends them, is
its own affair: `WANDB_MODE=offline` keeps them on this machine, and Trackio and TensorBoard do so by themselves.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec

logger = logging.getLogger("minga.integrations")

LOGGERS = ("tensorboard", "wandb", "trackio")
DEFAULT_PROJECT = "minga"
LOGGED = ("step", "evaluation")
"""Events of the history that have figures."""
NO_FIGURES = ("t", "step", "seconds")
"""Their fields that are no figures."""
MOST_WAITING = 1000
"""Entries that wait for a slow logger."""
CLOSE_S = 20.0
"""Seconds that loggers have at the end."""


@dataclass(frozen=True)
class LoggerChoice:
    """One logger by name; `project` is the one of wandb and trackio, and the folder of tensorboard."""

    name: str
    project: str | None = None

    @classmethod
    def parse(cls, text: str) -> LoggerChoice:
        """From `NAME` or `NAME:PROJECT`. Raises `ConfigurationError` for other names, and if its package is missing."""
        name, colon, project = text.partition(":")
        if name not in LOGGERS or (colon and not project):
            raise ConfigurationError(f"--log-to {text}: say one of {', '.join(LOGGERS)}, or NAME:PROJECT")
        if find_spec(name) is None:
            raise ConfigurationError(f"--log-to {name}: this package is not installed; pip install {name}")
        return cls(name, project or None)


class Sink(Protocol):
    """One logger at work."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Take the figures of a global step; steps may come out of order."""

    def close(self) -> None:
        """Write what is left."""


class RunLog:
    """Sends the entries of a history to loggers; it neither ends a run nor holds it up.

    `begin` opens the loggers, once; an entry before that, or after `close`, goes nowhere. They work on a thread of
    their own. A logger that fails is named once and left alone; while one hangs, entries wait, and beyond
    `MOST_WAITING` they are lost.
    """

    def __init__(self, choices: Sequence[LoggerChoice] = ()) -> None:
        self._choices = tuple(dict.fromkeys(choices))
        self._sinks: dict[str, Sink] = {}
        self._waiting: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._work, name="minga-loggers", daemon=True)
        self._begun = self._is_open = self._has_lost = False

    def begin(self, spec: RunSpec, directory: Path) -> None:
        """Open the loggers for the run of `spec`; `directory` is this peer's folder of it."""
        if self._begun:
            return
        self._begun = True
        for choice in self._choices:
            try:
                self._sinks[choice.name] = _open(choice, spec, directory)
            except Exception as error:  # another package's errors, of any class
                logger.warning("%s cannot be used, and training goes on without it: %s", choice.name, error)
        if self._sinks:
            self._is_open = True
            self._thread.start()

    def __call__(self, entry: Mapping[str, Any]) -> None:
        """Log the figures of an entry of the history, if it has any, soon; from any thread."""
        if not self._is_open or entry.get("event") not in LOGGED:
            return
        prefix = "run" if entry["event"] == "step" else "heldout"
        figures = {_named(prefix, name): float(value) for name, value in entry.items() if _is_figure(name, value)}
        try:
            self._waiting.put_nowait((int(entry["step"]), figures))
        except queue.Full:
            if not self._has_lost:
                self._has_lost = True
                logger.warning("%s: too slow for the figures of this run; some are lost", ", ".join(self._sinks))

    def close(self) -> None:
        """Write what waits and close the loggers, within `CLOSE_S` seconds."""
        if not self._is_open:
            return
        self._is_open = False
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=CLOSE_S)
            self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            logger.warning("%s: some figures are lost, since a logger does not end", ", ".join(self._sinks))

    def _work(self) -> None:
        while (taken := self._waiting.get()) is not None:
            for name, sink in list(self._sinks.items()):
                try:
                    sink.log(*taken)
                except Exception as error:  # as above
                    del self._sinks[name]
                    logger.warning("%s failed, and training goes on without it: %s", name, error)
        while self._sinks:
            name, sink = self._sinks.popitem()
            try:
                sink.close()
            except Exception as error:  # as above
                logger.warning("%s failed at the end: %s", name, error)


def _named(prefix: str, name: str) -> str:
    return f"{prefix}/{name.removeprefix(prefix + '_')}"


def _is_figure(name: str, value: object) -> bool:
    if name in NO_FIGURES or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


def _open(choice: LoggerChoice, spec: RunSpec, directory: Path) -> Sink:
    if choice.name == "tensorboard":
        return _TensorBoard(Path(choice.project).expanduser() if choice.project else directory / "tensorboard")
    return _Tracker(choice, spec)


class _TensorBoard:
    """Event files in a folder, which `tensorboard --logdir FOLDER` shows."""

    def __init__(self, folder: Path) -> None:
        self._writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(folder))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Tracker:
    """wandb or trackio: the global step is one of the figures, since held-out figures come later than their step."""

    def __init__(self, choice: LoggerChoice, spec: RunSpec) -> None:
        self._module: Any = import_module(choice.name)
        config = spec.model_dump(mode="json")
        self._module.init(project=choice.project or DEFAULT_PROJECT, name=spec.name, config=config)
        if hasattr(self._module, "define_metric"):
            self._module.define_metric("*", step_metric="global_step")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._module.log({"global_step": step, **figures})

    def close(self) -> None:
        self._module.finish()
