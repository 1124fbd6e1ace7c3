"""A device that is none: tensors in RAM that say they are elsewhere, and copies that come as late as they may.

Theory of operation. `pretend` turns tensors and models into ones on the device `lazy`, which PyTorch knows and hardly
anybody uses. Operations that make new numbers run at once, on the processor. Those that change a tensor, and copies to
and from such tensors that need not be waited for (`non_blocking`), stay in the queue of their stream until the host
waits for an event behind them, another stream does, or the next operation of that stream that makes numbers comes. And
in the memory of the host nothing arrives, and no event is over, before the host waits or `idle` lets the device finish.
So whoever reads too early reads what was there before, and whoever overwrites too early spoils the copy: mistakes that
a real device punishes now and then, this one always does.

Streams and events are those of `PretendModule`, which stands where `torch.cuda` stands for `cuda`. Processes that have
such a device each send from one to the other by gloo.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

DEVICE = torch.device("lazy", 0)

_LOCK = threading.RLock()
_HERE = threading.local()
_ATEN = torch.ops.aten


class PretendStream:
    """What was asked of a stream and is not done, and what is done and has not arrived at the host.

    Work returns what brings its result to the host, if it is for that.
    """

    def __init__(self, device: Any = None) -> None:
        self._queue = deque[Callable[[], Callable[[], object] | None]]()
        self._arrivals = deque[tuple[int, Callable[[], object]]]()
        self._done = self._seen = 0

    @property
    def asked(self) -> int:
        """The place behind all that was asked."""
        return self._done + len(self._queue)

    @property
    def seen(self) -> int:
        """The place up to which the host knows that it is done."""
        return self._seen

    def ask(self, work: Callable[[], Callable[[], object] | None]) -> None:
        """Do this behind all that was asked before, some time."""
        with _LOCK:
            self._queue.append(work)

    def run(self, until: int | None = None) -> None:
        """Do what was asked, up to the place `until`."""
        with _LOCK:
            while self._queue and (until is None or self._done < until):
                arrival = self._queue.popleft()()
                self._done += 1
                if arrival is not None:
                    self._arrivals.append((self._done, arrival))

    def finish(self, until: int) -> None:
        """Do it, and let the host know."""
        with _LOCK:
            self.run(until)
            while self._arrivals and self._arrivals[0][0] <= until:
                self._arrivals.popleft()[1]()
            self._seen = max(self._seen, until)

    def wait_event(self, event: PretendEvent) -> None:
        """Go on behind the event."""
        self.ask(event.pass_by)


_MAIN = PretendStream()


class PretendEvent:
    """A place in a stream."""

    def __init__(self) -> None:
        self._stream, self._place = _MAIN, 0

    def record(self, stream: PretendStream) -> None:
        """Mark what was asked of it so far."""
        self._stream, self._place = stream, stream.asked

    def query(self) -> bool:
        """Whether the host knows that the device has come there."""
        return self._stream.seen >= self._place

    def synchronize(self) -> None:
        """Wait for it."""
        self._stream.finish(self._place)

    def pass_by(self) -> None:
        """The device comes there."""
        self._stream.run(self._place)


class PretendModule:
    """What `torch.cuda` is for `cuda`. `room_bytes` is what a single tensor may have."""

    Stream, Event = PretendStream, PretendEvent
    room_bytes = 1 << 62

    @staticmethod
    def current_stream(device: Any = None) -> PretendStream:
        """The one of this thread."""
        return getattr(_HERE, "stream", _MAIN)

    @contextlib.contextmanager
    def stream(self, stream: PretendStream) -> Iterator[None]:
        """Inside, this one is that of this thread."""
        before, _HERE.stream = self.current_stream(), stream
        try:
            yield
        finally:
            _HERE.stream = before

    @staticmethod
    def get_device_properties(device: Any = None) -> SimpleNamespace:
        """Each process has a device of its own."""
        return SimpleNamespace(uuid=os.getpid())

    def idle(self) -> None:
        """The device finishes what was asked of this thread's stream."""
        self.current_stream().finish(self.current_stream().asked)


class PretendTensor(torch.Tensor):
    """A tensor in RAM, `held`, that says it is on `DEVICE`."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, real: torch.Tensor) -> PretendTensor:
        made: PretendTensor = torch.Tensor._make_wrapper_subclass(
            cls, real.shape, strides=real.stride(), storage_offset=real.storage_offset(), dtype=real.dtype,
            device=DEVICE,
        )  # fmt: skip
        return made

    def __init__(self, real: torch.Tensor) -> None:
        self.held = real

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendTensor({self.held})"

    def tolist(self) -> Any:
        """The numbers, for which the host waits."""
        return self.cpu().tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        module: PretendModule = torch.lazy  # type: ignore[attr-defined]
        stream = module.current_stream()
        if func is _ATEN.copy_.default:
            return _copy(stream, *args, **kwargs)
        if func.namespace == "c10d":  # from device to device, behind what was asked of this one
            stream.run()
            return func(*_real(args), **_real(kwargs))
        if func._schema.name.endswith("_") and not kwargs.keys() & {"device"}:  # it changes numbers, and no shapes

            def change() -> None:
                if func is _ATEN._foreach_sqrt_.default:
                    for each in args[0]:
                        _root(each, each)
                    return
                func(*_real(args), **_real(kwargs))

            stream.ask(change)
            return args[0] if isinstance(args[0], torch.Tensor) else None
        if not func.is_view:
            stream.run()
        if func is _ATEN.sqrt.out:
            _root(args[0], kwargs["out"])
            return kwargs["out"]
        to_host = False
        if kwargs.get("device") is not None:
            to_host = kwargs["device"].type == "cpu"
            kwargs["device"] = torch.device("cpu")
        with _LOCK:
            found = func(*_real(args), **_real(kwargs))
        if "out" in kwargs:
            return kwargs["out"]
        return found if to_host else _pretended(found)


def _copy(
    stream: PretendStream, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    crosses = isinstance(target, PretendTensor) != isinstance(source, PretendTensor)
    to, of = _real(target), _real(source)

    def copy() -> Callable[[], object] | None:
        if not crosses or isinstance(target, PretendTensor):
            to.copy_(of)
            return None
        read = of.clone()
        return lambda: to.copy_(read)

    stream.ask(copy)
    if not (crosses and non_blocking):
        stream.finish(stream.asked)
    return target


def _root(values: PretendTensor, out: PretendTensor) -> None:
    """Rounded as IEEE 754 says, which PyTorch does not on some processors."""
    np.sqrt(values.held.numpy(), out=out.held.numpy())


def _real(value: Any) -> Any:
    """A tensor, or all in a list, tuple or dictionary. PyTorch's `tree_map` does the same far more slowly."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_real, value))
    if isinstance(value, dict):
        return {name: _real(each) for name, each in value.items()}
    return value.held if isinstance(value, PretendTensor) else value


def _pretended(value: Any) -> Any:
    """Undo `_real`."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_pretended, value))
    return PretendTensor(value) if isinstance(value, torch.Tensor) else value


def _empty(*args: Any, **kwargs: Any) -> PretendTensor:
    return _made(_ATEN.empty.memory_format, args, kwargs)


def _empty_strided(*args: Any, **kwargs: Any) -> PretendTensor:
    return _made(_ATEN.empty_strided.default, args, kwargs)


def _made(func: Any, args: Any, kwargs: dict[str, Any]) -> PretendTensor:
    held = func(*args, **{**kwargs, "device": torch.device("cpu"), "layout": torch.strided, "pin_memory": False})
    if held.numel() * held.itemsize > torch.lazy.room_bytes:  # type: ignore[attr-defined]
        raise torch.OutOfMemoryError(f"the pretended device has no room for {held.numel()} elements")
    return PretendTensor(held)


_LIBRARY = torch.library.Library("aten", "IMPL")


@contextlib.contextmanager
def pretended_device() -> Iterator[PretendModule]:
    """Inside, there is such a device; its module."""
    if not _LIBRARY._op_impls:
        _LIBRARY.impl("empty.memory_format", _empty, "Lazy")
        _LIBRARY.impl("empty_strided", _empty_strided, "Lazy")
    torch.lazy = module = PretendModule()  # type: ignore[attr-defined]
    if dist.is_available():
        dist.Backend.default_device_backend_map["lazy"] = "gloo"
        dist.Backend.backend_capability["gloo"] = ["cpu", "cuda", "lazy"]
    try:
        yield module
    finally:
        del torch.lazy  # type: ignore[attr-defined]


def pretend(model: nn.Module) -> nn.Module:
    """Move all parameters and buffers of a model to the device."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(PretendTensor(parameter.detach()), parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = PretendTensor(buffer)
    return model
