"""Held-out figures beside training, on a device that has too little memory for them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from minga.core.spec.run_spec import RunSpec
from minga.recipes.running import background_evaluation
from minga.recipes.running.background_evaluation import Evaluator


class Starved:
    """A recipe whose figures take more memory than there is, but for those `at_last`."""

    at_last = False

    def evaluate(self, model: nn.Module, files: Mapping[str, Any]) -> dict[str, float]:
        if not self.at_last:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return {"heldout_loss": 1.0}


@pytest.mark.parametrize("copies", [True, False])
def test_figures_for_which_there_is_no_memory_are_left_out_and_told_once(
    copies: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    recipe, model, told = Starved(), nn.Linear(2, 2), list[tuple[int, dict[str, float]]]()
    monkeypatch.setattr(background_evaluation, "load_recipe", lambda _: recipe)
    if not copies:
        monkeypatch.setattr(copy, "deepcopy", full)
    evaluator = Evaluator(RunSpec(name="test"), {}, model, lambda *said: told.append(said))
    with caplog.at_level(logging.WARNING, "minga.recipes"):
        for step in (1, 2):
            evaluator.start(model, step)
            evaluator.wait()
    assert caplog.text.count("too little memory for held-out figures") == 1
    assert told == []
    recipe.at_last = True
    evaluator.start(model, 3)
    evaluator.wait()
    assert told == [(3, {"heldout_loss": 1.0})]
