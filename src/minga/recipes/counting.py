"""What a model costs, counted without making it: its tensors have shapes and no memory.

Operations are counted on the device `meta`, where fused attention is written out in the products that it stands for.
What a pass keeps is counted on a fake CPU, where attention keeps what it keeps on a real device.
"""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

LossFunction: TypeAlias = Callable[[nn.Module, dict[str, Tensor]], Tensor]

FAKE_DEVICE: Final = "cpu"


class Counted(NamedTuple):
    """Of a batch, the operations forward and backward, and the bytes kept in float32 until the backward pass."""

    operations: float
    kept_bytes: int


def count(build_model: Callable[[], nn.Module], batch: Mapping[str, Tensor], loss: LossFunction) -> Counted:
    """Count what a batch takes, on fake tensors, of which libraries know that they have no values."""
    model = shapes_of_model(build_model)
    with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as counter:
        loss(model, shapes_of_batch(batch, "meta")).backward()  # type: ignore[no-untyped-call]
    with FakeTensorMode(allow_non_fake_inputs=True):
        kept = _kept_bytes(fake_copy(model), shapes_of_batch(batch, FAKE_DEVICE), loss)
    return Counted(float(counter.get_total_flops()), kept)


def takes_shapes(model: nn.Module, batch: Mapping[str, Tensor], loss: LossFunction) -> bool:
    """Whether a model on `meta` takes such a batch; no also where that depends on values."""
    log = logging.getLogger(FakeTensorMode.__module__)
    log.addFilter(_drop)  # torch prints the traceback of an error, which here is an answer
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            loss(model, shapes_of_batch(batch, "meta"))
    except Exception:  # each architecture has errors of its own
        return False
    finally:
        log.removeFilter(_drop)
    return True


def _drop(_: logging.LogRecord) -> bool:
    return False


def shapes_of_model(build_model: Callable[[], nn.Module]) -> nn.Module:
    """The model on the device `meta`."""
    with torch.device("meta"):
        return build_model().to("meta")


def shapes_of_batch(batch: Mapping[str, Tensor], device: str) -> dict[str, Tensor]:
    """The batch without values: on `meta`, or on another device inside a `FakeTensorMode`."""
    return {name: torch.empty(each.shape, dtype=each.dtype, device=device) for name, each in batch.items()}


def fake_copy(model: nn.Module) -> nn.Module:
    """A model of `meta` on a fake CPU, with its tied parameters tied; inside a `FakeTensorMode`."""
    own: dict[int, object] = {}
    for parameter in model.parameters():
        fake = torch.empty_like(parameter, device=FAKE_DEVICE)
        own[id(parameter)] = nn.Parameter(fake, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        own[id(buffer)] = torch.empty_like(buffer, device=FAKE_DEVICE)
    return copy.deepcopy(model, own)


def _kept_bytes(model: nn.Module, batch: dict[str, Tensor], loss: LossFunction) -> int:
    """Bytes of all distinct storages that a forward pass saves for the backward one, but those of parameters."""
    own = {id(parameter.untyped_storage()) for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if id(storage) not in own:
            kept[id(storage)] = storage
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        result = loss(model, batch)
    total = sum(storage.nbytes() for storage in kept.values())
    del result
    return total


# ---- The most memory that a micro-batch takes, counted without taking it.
#
# Forward and backward pass run on fake tensors, which have sizes and no memory. Each tensor that an operation makes is
# noted, and forgotten when nothing refers to it any more. What an operation takes inside of itself is not seen.


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
    build_model: Callable[[], nn.Module],
    batch: Mapping[str, Tensor],
    total_loss: LossFunction,
    dtype: torch.dtype | None = None,
) -> int:
    """Bytes above the parameters at the worst moment of a forward and backward pass, gradients included.

    `dtype`: what is computed in it under autocast; None is float32.
    """
    model = shapes_of_model(build_model)
    with FakeTensorMode(allow_non_fake_inputs=True):
        return _peak_of_pass(total_loss, fake_copy(model), shapes_of_batch(batch, FAKE_DEVICE), dtype)


def _peak_of_pass(
    total_loss: LossFunction, model: nn.Module, batch: dict[str, Tensor], dtype: torch.dtype | None
) -> int:
    with LiveBytes() as found:
        for tensor in [*model.parameters(), *model.buffers()]:
            found.know(tensor)
        with torch.autocast(FAKE_DEVICE, dtype, enabled=dtype is not None):
            loss = total_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
    return int(found.peak)
