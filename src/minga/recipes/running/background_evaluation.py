"""Held-out figures beside training: on a copy of the model, on a thread of its own, so that no round waits for them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import torch
from torch import nn

from minga.core.errors import MingaError
from minga.core.spec.run_spec import RunSpec
from minga.recipes.interface import Files
from minga.recipes.registry import load_recipe

Report = Callable[[int, dict[str, float]], None]
"""Called, on the evaluator's thread, with the global step and the figures."""


class Evaluator:
    """Evaluates copies of `model`, one at a time. `report` gets the figures."""

    def __init__(self, spec: RunSpec, files: Files, model: nn.Module, report: Report) -> None:
        # A recipe of its own: recipes keep batches, and training uses another thread.
        self._recipe, self._files, self._report = load_recipe(spec), files, report
        self._copy = copy.deepcopy(model, _shared(model))
        self._thread: threading.Thread | None = None
        self.error: MingaError | None = None

    @property
    def is_busy(self) -> bool:
        """Whether an evaluation is under way."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, model: nn.Module, step: int) -> None:
        """Copy the model's present state and evaluate it in the background; does nothing while busy."""
        if self.is_busy:
            return
        with torch.no_grad():
            for mine, theirs in zip(_tensors(self._copy), _tensors(model), strict=True):
                if mine is not theirs:
                    mine.copy_(theirs)
        self._thread = threading.Thread(target=self._run, args=(step,), name="minga-evaluation", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the evaluation under way; raises its error."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.1)  # in slices, so that Ctrl-C is heard everywhere
        if self.error is not None:
            raise self.error

    def _run(self, step: int) -> None:
        try:
            figures = self._recipe.evaluate(self._copy, self._files)
        except MingaError as error:
            self.error = error
            return
        if figures:
            self._report(step, figures)


def _shared(model: nn.Module) -> dict[int, object]:
    """What a copy has in common with the model, by id: what is frozen, for which there may be no room twice, and layers
    that a library quantised, which cannot be copied.
    """
    frozen: dict[int, object] = {id(each): each for each in model.parameters() if not each.requires_grad}
    packed: dict[int, object] = {
        id(module): module
        for module in model.modules()
        if any(not each.is_floating_point() for each in module.parameters(recurse=False))
    }
    return frozen | packed


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
