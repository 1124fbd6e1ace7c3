"""What the benchmark of a card trains: models with made-up samples, and tiny ones for a machine without a card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from minga.planner.model_facts import recipe_spec
from minga.recipes.initial import new_model
from minga.recipes.registry import load_recipe


@dataclass
class GpuWorkload:
    """A model on its device, and `loss`, which computes the mean loss of a micro-batch of `samples` samples."""

    model: nn.Module
    samples: int
    loss: Callable[[], torch.Tensor]

    def optimizer(self) -> torch.optim.Optimizer:
        """The one that both sides of a comparison use."""
        is_away = next(self.model.parameters()).is_cuda
        return torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=is_away)


NAMES = ("gpt2-124m", "albert-large", "swav-resnet50")
_RECIPES = {"albert-large": ("albert-large", "albert-tiny", 16, 4), "swav-resnet50": ("swav-paper", "swav-tiny", 16, 4)}
"""By workload: the model on a card and without one, and the samples of a micro-batch on both."""


def gpu_workload(name: str, device: str, *, is_tiny: bool) -> GpuWorkload:
    """One of `NAMES`, under autocast to bfloat16 on a card; with random initial values, the same each time."""
    torch.manual_seed(0)
    if name == "gpt2-124m":
        return _gpt2(device, is_tiny=is_tiny)
    large, tiny, samples, few = _RECIPES[name]
    spec = recipe_spec(tiny if is_tiny else large)
    samples = few if is_tiny else samples
    if load_recipe(spec).fixed_micro_batch_size is not None:
        spec = spec.with_recipe_settings({**spec.recipe_settings, "micro_batch_size": samples})
    recipe = load_recipe(spec)
    model = new_model(recipe).to(device)
    batch = {key: value.to(device) for key, value in recipe.synthetic_batch(samples).items()}
    return GpuWorkload(model, samples, lambda: _loss_of(device, lambda: recipe.total_loss(model, batch)))


def _gpt2(device: str, *, is_tiny: bool) -> GpuWorkload:
    from transformers import GPT2Config, GPT2LMHeadModel

    size: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 500} if is_tiny else {}
    config = GPT2Config(n_positions=512, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **size)
    model: nn.Module = GPT2LMHeadModel(config).to(device)
    samples, tokens = (2, 32) if is_tiny else (8, 512)
    text = torch.randint(config.vocab_size, (samples, tokens)).to(device)
    return GpuWorkload(model, samples, lambda: _loss_of(device, lambda: model(text, labels=text).loss))


def _loss_of(device: str, loss: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=device != "cpu"):
        return loss()
