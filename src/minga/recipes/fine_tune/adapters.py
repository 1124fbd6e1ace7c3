"""LoRA adapters in the layers of a model, by `peft`: what it has beside them is frozen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from minga.core.errors import ConfigurationError
from minga.optim.norms import row_norms
from minga.recipes.exported import Exported
from minga.recipes.fine_tune.settings import ALL_LINEAR, LoraSettings


def with_adapters(model: nn.Module, settings: LoraSettings) -> nn.Module:
    """The model with float32 adapters, the only parameters that require a gradient. They begin alike whatever type the
    others have.

    Raises `ConfigurationError` where a layer that is to get one is not there, or shares its weights with another layer,
    which `merge` would change with it.
    """
    peft = peft_here()
    try:
        adapted: nn.Module = peft.inject_adapter_in_model(lora_config(settings), model)
    except ValueError as error:  # it names the layers that it did not find
        raise ConfigurationError(f"recipe.fine-tune.lora: {str(error)[:300]}") from error
    _check_untied(adapted)
    for name, parameter in adapted.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    for _, layer in _adapted(adapted):  # which drew them in the type of its own parameters
        layer.reset_lora_parameters(layer.active_adapters[0], init_lora_weights=True)
    return adapted


def lora_config(settings: LoraSettings) -> Any:
    """The settings as `peft` has them."""
    targets: Any = ALL_LINEAR if settings.targets == (ALL_LINEAR,) else list(settings.targets)
    return peft_here().LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        use_rslora=settings.rslora,
        use_dora=settings.dora,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )


@torch.no_grad()
def begin_magnitudes(model: nn.Module, given: Mapping[str, torch.Tensor]) -> None:
    """Let DoRA begin at the base: with the lengths of the rows of its weights, `given` by their names in the model, and
    equal to the last bit on every machine.
    """
    for path, layer in _adapted(model):
        for magnitude in layer.lora_magnitude_vector.values():
            weight = given[f"{path}.base_layer.weight"]
            rows = weight.t() if magnitude.fan_in_fan_out else weight
            magnitude.weight.copy_(row_norms(rows).flatten())


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Inside, adapters count for nothing: the model is its base."""
    layers = [layer for _, layer in _adapted(model)]
    needed = [(each, each.requires_grad) for each in model.parameters()]
    for layer in layers:
        layer.enable_adapters(enabled=False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(enabled=True)
        for each, was_needed in needed:  # which peft changes
            each.requires_grad_(was_needed)


def merge(model: nn.Module) -> None:
    """Put the adapters into the layers that they belong to: the model has the names of its base then, and no more
    memory than before.
    """
    for path, layer in list(_adapted(model)):
        layer.merge()
        home, _, name = path.rpartition(".")
        setattr(model.get_submodule(home), name, layer.get_base_layer())


def save_adapters(model: nn.Module, settings: LoraSettings, exported: Exported, base: str, revision: str) -> None:
    """What `peft` loads onto the `base`. Raises `OSError`."""
    own = peft_here().get_peft_model_state_dict(model, save_embedding_layers=False)
    found = {f"base_model.model.{name}": each for name, each in own.items()}
    exported.tensors("adapter_model.safetensors", found)
    config = lora_config(settings)
    config.base_model_name_or_path, config.revision, config.inference_mode = base, revision or None, True
    config.save_pretrained(exported.folder)


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The layers with an adapter, by name."""
    return ((path, module) for path, module in model.named_modules() if hasattr(module, "lora_A"))


def _check_untied(model: nn.Module) -> None:
    uses = Counter(id(each) for _, each in model.named_parameters(remove_duplicate=False))
    for path, layer in _adapted(model):
        if uses[id(layer.get_base_layer().weight)] > 1:
            raise ConfigurationError(
                f"recipe.fine-tune.lora.targets: {path} has the same weights as another layer of the base, which an "
                "adapter of one of them cannot be merged into; leave it out"
            )


def peft_here() -> Any:
    """The package `peft`. Raises `ConfigurationError`, with what to type, if it is not installed."""
    try:
        import peft
    except ImportError as error:
        raise ConfigurationError(
            "the recipe fine-tune needs the package peft: pip install peft (from a checkout: pip install -e "
            '".[fine-tune]")'
        ) from error
    return peft
