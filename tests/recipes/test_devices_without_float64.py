"""Figures that are added up in float64 are so in RAM: Metal (MPS) has no such numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from minga.recipes.causal_lm import evaluation
from minga.recipes.fine_tune import recipe as fine_tune
from minga.recipes.interface import SampleOptions
from minga.recipes.text_to_image.sampling import probabilities
from minga.split.held_out import entropy_of


class OnMetal(torch.Tensor):
    """Says that it is there."""

    def double(self) -> torch.Tensor:  # type: ignore[override]
        raise TypeError("the MPS framework does not support float64")

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor)  # type: ignore[return-value]


def losses(_: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.ones(labels.shape).as_subclass(OnMetal)  # type: ignore[return-value]


class Samples:
    def __len__(self) -> int:
        return 3

    def batch(self, places: range) -> dict[str, torch.Tensor]:
        ones = torch.ones(len(places), 4, dtype=torch.long)
        return {"input_ids": ones, "labels": ones, "label_weights": ones}


def test_figures_of_a_model_on_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (evaluation, fine_tune):
        monkeypatch.setattr(module, "token_losses", losses)
    ids, there = np.ones((2, 5), dtype=np.int64), np.ones((2, 4), dtype=bool)
    figures = evaluation.evaluate_model(nn.Linear(1, 1), evaluation.HeldOutRows(ids, there, there, ids[:, 1:]))
    assert figures["heldout_perplexity"] == pytest.approx(math.e)
    samples: Any = Samples()
    assert fine_tune._mean_loss(nn.Linear(1, 1), samples) == 1.0


def test_what_is_drawn_from_and_what_says_nothing_on_metal() -> None:
    logits, classes = (torch.tensor(each).as_subclass(OnMetal) for each in ([[0.0, 0.0]], [0, 1]))
    assert probabilities(logits, SampleOptions()).tolist() == [[0.5, 0.5]]
    assert entropy_of(classes) == pytest.approx(math.log(2.0))
