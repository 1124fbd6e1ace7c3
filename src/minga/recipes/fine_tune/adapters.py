"""LoRA adapters in the layers of a model, by `peft`: what it has beside them is frozen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from torch import nn

from minga.core.errors import ConfigurationError
from minga.recipes.exported import Exported
from minga.recipes.fine_tune.settings import LoraSettings

_ALL: Final = "all-linear"


def with_adapters(model: nn.Module, settings: LoraSettings) -> nn.Module:
    """The same model with adapters, the only parameters that require a gradient. Raises `ConfigurationError`."""
    peft = _peft()
    try:
        adapted: nn.Module = peft.inject_adapter_in_model(lora_config(settings), model)
    except ValueError as error:  # it names the layers that it did not find
        raise ConfigurationError(f"recipe.fine-tune.lora: {str(error)[:300]}") from error
    for name, parameter in adapted.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return adapted


def lora_config(settings: LoraSettings) -> Any:
    """The settings as `peft` has them."""
    targets: Any = _ALL if settings.targets == (_ALL,) else list(settings.targets)
    return _peft().LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        use_rslora=settings.rslora,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Inside, adapters count for nothing: the model is its base."""
    scaled: list[Any] = [module.scaling for module in model.modules() if hasattr(module, "lora_A")]
    kept = [dict(each) for each in scaled]
    for each in scaled:
        each.update(dict.fromkeys(each, 0.0))
    try:
        yield
    finally:
        for each, before in zip(scaled, kept, strict=True):
            each.update(before)


def save_adapters(model: nn.Module, settings: LoraSettings, exported: Exported, base: str) -> None:
    """What `PeftModel.from_pretrained` loads onto the `base`. Raises `OSError`."""
    found = {
        f"base_model.model.{name.replace('.default.', '.')}": each
        for name, each in model.named_parameters()
        if each.requires_grad
    }
    exported.tensors("adapter_model.safetensors", found)
    config = lora_config(settings)
    config.base_model_name_or_path, config.inference_mode = base, True
    config.save_pretrained(exported.folder)


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ConfigurationError("the recipe fine-tune needs peft: pip install peft") from error
    return peft
