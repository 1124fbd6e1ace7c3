"""Equal initial parameters on every machine, for any architecture.

PyTorch's generators give other numbers on other devices and in other versions. So a model is built while each draw of
PyTorch's initialisers is replaced by one of NumPy's Philox generator, keyed by the run's seed and the number of the
draw. The order of draws belongs to the libraries that build the model: all peers of a run need the same versions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from minga.recipes.interface import Recipe

_CONTEXT = "minga v1 initial draws"
_AT_A_TIME = 1 << 22


class EqualDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While this is entered, normal and uniform draws depend on `seed` alone, and torch's generator is not touched.

    Raises `NotImplementedError` for other operations that draw random numbers.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self._draws = seed, 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace a draw; all else is done as ever."""
        del types
        named = dict(kwargs or {})
        aten = torch.ops.aten
        if func is aten.normal_.default:
            return self._fill(args[0], "normal", *_two(args, named, "mean", 0.0, "std", 1.0))
        if func is aten.uniform_.default:
            return self._fill(args[0], "uniform", *_two(args, named, "from", 0.0, "to", 1.0))
        if func in (aten.randn.default, aten.rand.default):
            kind = "normal" if func is aten.randn.default else "uniform"
            named.pop("generator", None)
            return self._fill(aten.empty.memory_format(args[0], **named), kind, 0.0, 1.0)
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise NotImplementedError(
                f"{func}: this draw would differ between machines; initialise by torch.nn.init.normal_ or uniform_"
            )
        return func(*args, **named)

    def _fill(self, tensor: Tensor, kind: str, first: float, second: float) -> Tensor:
        """Mean `first` and deviation `second`, or uniform from `first` to below `second`; float32 arithmetic."""
        if tensor.is_meta:
            return tensor
        self._draws += 1
        key = blake3(f"{self._seed}/{self._draws}".encode(), derive_key_context=_CONTEXT).digest(length=16)
        random = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "big")))
        flat = np.empty(tensor.numel(), dtype=np.float32)
        for start in range(0, len(flat), _AT_A_TIME):
            part = flat[start : start + _AT_A_TIME]
            if kind == "normal":
                random.standard_normal(out=part, dtype=np.float32)
                part *= np.float32(second)
            else:
                random.random(out=part, dtype=np.float32)
                part *= np.float32(second - first)
            part += np.float32(first)
        return tensor.copy_(torch.from_numpy(flat).reshape(tensor.shape))


class Undrawn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While this is entered, what would be drawn is 0: for parameters that are set afterwards."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace a draw; all else is done as ever."""
        del types
        if func in (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default):
            return args[0].zero_()
        return func(*args, **(kwargs or {}))


def new_model(recipe: Recipe[Any]) -> nn.Module:
    """A new model of the recipe, with the run's initial parameters. Peers of a run get equal bits."""
    with EqualDraws(recipe.context.seed):
        return recipe.build_model()


def _two(
    args: Sequence[Any], named: Mapping[str, Any], first: str, first_usual: float, second: str, second_usual: float
) -> tuple[float, float]:
    found = [
        float(args[place]) if len(args) > place else float(named.get(name, usual))
        for place, name, usual in ((1, first, first_usual), (2, second, second_usual))
    ]
    if not all(map(math.isfinite, found)):
        raise ValueError(f"a draw with {first} = {found[0]} and {second} = {found[1]}")
    return found[0], found[1]
