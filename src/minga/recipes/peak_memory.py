"""The most memory that a micro-batch takes, counted without taking it.

Forward and backward pass run on fake tensors, which have sizes and no memory. Each tensor that an operation makes is
noted, and forgotten when nothing refers to it any more. What an operation takes inside of itself is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minga.recipes.counting import FAKE_DEVICE, fake_copy, shapes_of_batch, shapes_of_model
from minga.recipes.interface import Recipe


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, notes the bytes of tensors that operations make: those in use, `live`, and their `peak`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live, self.peak = 0, 0
        self._seen: set[int] = set()

    def know(self, tensor: Tensor) -> None:
        """This one was there before, and does not count."""
        self._seen.add(id(tensor.untyped_storage()))

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._note(tensor.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        if (key := id(storage)) in self._seen:
            return
        size = storage.nbytes()
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


def peak_bytes(
    recipe: Recipe[Any],
    micro_batch_size: int,
    *,
    dtype: torch.dtype | None = None,
    checkpoints_activations: bool = False,
) -> int:
    """Bytes above the parameters at the worst moment of a forward and backward pass, gradients included.

    `dtype`: what is computed in it under autocast; None is float32. Raises `ConfigurationError` if the recipe cannot
    compute activations again and should.
    """
    model = shapes_of_model(recipe.build_model)
    if checkpoints_activations:
        recipe.checkpoint_activations(model)
    batch = recipe.synthetic_batch(micro_batch_size)
    with FakeTensorMode(allow_non_fake_inputs=True):
        return _peak_of_pass(recipe, fake_copy(model), shapes_of_batch(batch, FAKE_DEVICE), dtype)


def _peak_of_pass(recipe: Recipe[Any], model: nn.Module, batch: dict[str, Tensor], dtype: torch.dtype | None) -> int:
    with LiveBytes() as found:
        for tensor in [*model.parameters(), *model.buffers()]:
            found.know(tensor)
        with torch.autocast(FAKE_DEVICE, dtype, enabled=dtype is not None):
            loss = recipe.total_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
    return int(found.peak)
