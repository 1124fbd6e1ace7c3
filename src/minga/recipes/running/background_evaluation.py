"""Held-out figures beside training: on a copy of the model, on a thread of its own, so that no round waits for them;
where layers cannot be copied, between two steps.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable

import torch
from torch import nn

from minga.core.spec.run_spec import RunSpec
from minga.optim.arithmetic import is_out_of_memory
from minga.recipes.interface import Files
from minga.recipes.registry import load_recipe
from minga.recipes.running.micro_batch import release

logger = logging.getLogger("minga.recipes")

Report = Callable[[int, dict[str, float]], None]
"""Called, on the thread that evaluates, with the global step and the figures."""


class Evaluator:
    """Evaluates copies of `model`, one at a time. `report` gets the figures.

    A model with layers that a library quantised is evaluated itself, by the thread that trains it: such layers cannot
    be copied, and two threads would change what they note from call to call. So is one of which the device has no
    memory for a copy. Where it has none for the figures either there are none, and training goes on.
    """

    def __init__(self, spec: RunSpec, files: Files, model: nn.Module, report: Report) -> None:
        # A recipe of its own: recipes keep batches, and training uses another thread.
        self._recipe, self._files, self._report = load_recipe(spec), files, report
        self._copy = None if any(map(_is_quantised, model.modules())) else _copied(model)
        self._thread: threading.Thread | None = None
        self._is_told = False  # that there are no figures
        self._error: Exception | None = None

    @property
    def is_busy(self) -> bool:
        """Whether an evaluation is under way."""
        return self._thread is not None and self._thread.is_alive()

    def take_error(self) -> Exception | None:
        """What the last evaluation raised in place of figures, once."""
        error, self._error = self._error, None
        return error

    def start(self, model: nn.Module, step: int) -> None:
        """Copy the model's present state and evaluate it in the background; does nothing while busy. Where there is no
        copy it returns when the figures are known.
        """
        if self.is_busy:
            return
        if self._copy is None:
            self._run(model, step)
            return
        with torch.no_grad():
            for mine, theirs in zip(_tensors(self._copy), _tensors(model), strict=True):
                if mine is not theirs:
                    mine.copy_(theirs)
        self._thread = threading.Thread(target=self._run, args=(self._copy, step), name="minga-evaluation", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the evaluation under way."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.1)  # in slices, so that Ctrl-C is heard everywhere

    def _run(self, model: nn.Module, step: int) -> None:
        try:
            if figures := self._recipe.evaluate(model, self._files):
                self._report(step, figures)
            return
        except Exception as error:  # a recipe of another package may fail in any way, and devices do without a class
            self._error = None if is_out_of_memory(error) else error
        if self._error is None:
            release(next(model.parameters()).device)
            self._tell()

    def _tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            logger.warning(
                "the device has too little memory for held-out figures beside training, and they are left out: "
                "smaller micro-batches leave room for them, or another peer measures them (--evaluate)"
            )


def _copied(model: nn.Module) -> nn.Module | None:
    """A copy that has in common with the model what is frozen; None if there is no memory for it."""
    try:
        return copy.deepcopy(model, _frozen(model))
    except Exception as error:  # devices have no class of errors in common
        if not is_out_of_memory(error):
            raise
    release(next(model.parameters()).device)
    return None


def _is_quantised(layer: nn.Module) -> bool:
    return any(not each.is_floating_point() for each in layer.parameters(recurse=False))


def _frozen(model: nn.Module) -> dict[int, object]:
    """What a copy has in common with the model, by id: what is frozen, for which there may be no room twice."""
    return {id(each): each for each in model.parameters() if not each.requires_grad}


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
