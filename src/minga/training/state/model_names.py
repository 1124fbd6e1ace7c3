"""The tensors of a model by name, whatever wraps the model on some peers, and in an order that no program chooses.

Theory of operation. Peers of one run may write the same model in other ways: one compiles a layer ("_orig_mod."), one
wraps a part in `DistributedDataParallel` ("module."), one lists its layers in another order. What they average and
share is therefore named and ordered by the network itself. What a wrapper adds to a name is left out, also in the
middle of it, and names are sorted as people do: `layers.2` comes before `layers.10`, so that layers keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

T = TypeVar("T")

_OF_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})
"""What `torch.compile` and activation checkpointing call the module that they wrap; nobody else does."""


class ModelNames:
    """The names of the tensors of `model`."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        parallel = [path for path, module in model.named_modules(remove_duplicate=False) if _is_parallel(module)]
        self._left_out = {f"{path}.module".removeprefix(".") for path in parallel}

    def clean(self, name: str) -> str:
        """A name as the model has it without wrappers."""
        parts = name.split(".")
        paths = (".".join(parts[: place + 1]) for place in range(len(parts)))
        return ".".join(p for p, path in zip(parts, paths, strict=True) if not _is_of_wrapper(p, path, self._left_out))

    def parameters(self) -> dict[str, torch.Tensor]:
        """All parameters, in order of their names; tied ones once, by the first of theirs."""
        return self._first(self._model.named_parameters(remove_duplicate=False))

    def buffers(self) -> dict[str, torch.Tensor]:
        """The persistent buffers likewise."""
        saved = self.saved()
        found = self._first(self._model.named_buffers(remove_duplicate=False))
        return {name: each for name, each in found.items() if name in saved}

    def saved(self) -> dict[str, Any]:
        """What the model's modules save of themselves: also what some keep beside parameters and buffers, such as the
        scales of packed weights. Each is asked by itself, as a `state_dict` of the program's own may leave out what
        its files are not to have.
        """
        found: dict[str, Any] = {}
        for path, module in self._model.named_modules(remove_duplicate=False):
            module._save_to_state_dict(found, f"{path}." if path else "", True)  # noqa: SLF001
        return {self.clean(name): each for name, each in found.items()}

    def _first(self, named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Each tensor by the first of its names, of those that go through the fewest wrappers."""
        cleaned = [(self.clean(name), name, each) for name, each in named]
        first: dict[int, str] = {}
        for name, _, each in sorted(cleaned, key=lambda one: (len(one[1]) - len(one[0]), _natural(one[0]))):
            first.setdefault(id(each), name)
        return by_name((name, each) for name, _, each in cleaned if first[id(each)] == name)


def by_name(named: Iterable[tuple[str, T]]) -> dict[str, T]:
    """In order of the names, numbers in them by their values."""
    return dict(sorted(named, key=lambda each: _natural(each[0])))


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model without wrappers around all of it."""
    while True:
        inner = model.module if _is_parallel(model) else getattr(model, "_orig_mod", None)
        if not isinstance(inner, torch.nn.Module):
            return model
        model = inner


def given_names(group: dict[str, Any]) -> list[str] | None:
    """The names that a parameter group was made with (`optimizer(model.named_parameters())`), None without any."""
    names: list[str] | None = group.get("param_names")
    if not names:
        return None
    prefix = "module." if all(name.startswith("module.") for name in names) else ""
    return [
        ".".join(part for part in name.removeprefix(prefix).split(".") if part not in _OF_WRAPPERS) for name in names
    ]


def _is_parallel(module: torch.nn.Module) -> bool:
    return isinstance(module, DistributedDataParallel | DataParallel)


def _is_of_wrapper(part: str, path: str, left_out: set[str]) -> bool:
    return part in _OF_WRAPPERS or path in left_out


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = name.split(".")
    return [(0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part) for part in parts]
