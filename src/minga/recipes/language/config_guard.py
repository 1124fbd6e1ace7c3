"""Bounds of a model's configuration: it may come from a stranger, and must not make a peer run out of memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psutil
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from minga.core.errors import ConfigurationError
from minga.recipes.language.settings import MAX_CONFIG_CHARACTERS

MOST: Final = 1 << 20
MOST_BASE: Final = 1 << 40
MOST_LAYERS: Final = 1024
MOST_EXPERTS: Final = 256
MOST_ENTRIES: Final = 1024
MOST_MODULES: Final = 1 << 15
"""Of PyTorch; 1,024 layers of GPT-2 have 13,320."""

MAX_DEPTH: Final = 6
BYTES_PER_PARAMETER: Final = 16
"""Of a trainer: float32 parameters, gradients and two moments."""

MEMORY_SHARE: Final = 0.6
NOT_TAKEN: Final = frozenset(
    {"_name_or_path", "_commit_hash", "architectures", "auto_map", "dtype", "torch_dtype", "id2label", "label2id"}
    | {"quantization_config", "attn_implementation", "_attn_implementation", "_attn_implementation_internal"}
    | {"experts_implementation", "_experts_implementation", "custom_pipelines", "task_specific_params"}
    | {"is_causal", "use_bidirectional_attention"}
)
"""Keys that name places or programs, mean nothing in training, or have causal models see the tokens that they are to
guess: dropped from what an organiser gives, and refused in what a run publishes.
"""

SLOW: Final = frozenset({"sinusoidal_embeddings", "sinusoidal_pos_embds"})
"""Keys by which transformers computes a table of positions number by number, in Python: minutes, and gigabytes."""


def read_config(text: str) -> dict[str, Any]:
    """The configuration in a published JSON object. Raises `ConfigurationError` if it is none or out of bounds."""
    if len(text) > MAX_CONFIG_CHARACTERS:
        raise ConfigurationError(f"the model's config has {len(text)} characters; at most {MAX_CONFIG_CHARACTERS}")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the model's config is no JSON: {str(error)[:200]}") from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise ConfigurationError("the model's config is no object with a model_type")
    check_bounds(values)
    return values


def without_foreign(values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without what is `NOT_TAKEN`, on every level."""
    return {
        key: without_foreign(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if key not in NOT_TAKEN
    }


def check_bounds(values: Any, where: str = "config", depth: int = MAX_DEPTH) -> None:
    """Raise `ConfigurationError` for numbers, lists or tables that no model needs so large, and for what is not taken.

    Whole numbers go to 2²⁰, those of layers to 1,024, those of experts to 256, and bases of frequencies to 2⁴⁰.
    """
    if isinstance(values, dict | list):
        if depth == 0 or len(values) > MOST_ENTRIES:
            raise ConfigurationError(f"{where}: nested more than {MAX_DEPTH} deep, or over {MOST_ENTRIES} entries")
        pairs = values.items() if isinstance(values, dict) else enumerate(values)
        for key, value in pairs:
            if key in NOT_TAKEN:
                raise ConfigurationError(f"{where}.{key}: a run cannot say this")
            if key in SLOW and value:
                raise ConfigurationError(f"{where}.{key}: a run can only say false")
            check_bounds(value, f"{where}.{str(key)[:64]}", depth - 1)
    elif isinstance(values, int) and not isinstance(values, bool) and abs(values) > (most := _most(where)):
        raise ConfigurationError(f"{where} = {str(values)[:30]}: at most {most:,}")
    elif isinstance(values, int | float) and values < 0 and where.endswith(("_eps", "epsilon")):
        raise ConfigurationError(f"{where} = {values}: at least 0, or what it is added to has no root")


def check_memory(model: nn.Module, bytes_per_parameter: int = BYTES_PER_PARAMETER) -> None:
    """Raise `ConfigurationError` if this machine cannot train such a model, which may be on the device `meta`."""
    memory = int(MEMORY_SHARE * psutil.virtual_memory().total)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    needed = parameters * bytes_per_parameter + sum(buffer.nbytes for buffer in model.buffers())
    if needed > memory:
        raise ConfigurationError(
            f"a model of {parameters:,} parameters and its tables take {needed >> 20:,} MiB to train; "
            f"of this machine's memory it may have {memory >> 20:,} MiB"
        )


@contextmanager
def bounded_modules() -> Iterator[None]:
    """Raise `ConfigurationError` for a model that this thread makes of more than 32,768 modules: settings of many names
    and meanings say how often some part of a model is repeated, and only what comes of them can be bounded.
    """
    thread, made = threading.get_ident(), 0

    def count(parent: nn.Module, name: str, module: nn.Module) -> None:  # noqa: ARG001
        nonlocal made
        if threading.get_ident() != thread:
            return
        made += 1
        if made > MOST_MODULES:
            raise ConfigurationError(f"a model of these settings has more than {MOST_MODULES:,} modules")

    hook = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _most(where: str) -> int:
    name = where.rpartition(".")[2].lower()
    if name.startswith("n_layer") or name.endswith(("_layers", "_layer")) or name == "num_blocks":
        return MOST_LAYERS
    if name.endswith(("theta", "base_freq")):
        return MOST_BASE
    return MOST_EXPERTS if "expert" in name and not name.endswith(("size", "dim")) else MOST
