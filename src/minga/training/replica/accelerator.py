"""One accelerator, as a replica uses it: copies beside computing, and what is known a little later than it was asked.

Theory of operation. What a thread asks of an accelerator is done later, in order, on the thread's *stream*. To read a
number from it means to wait until all of that is done, and meanwhile nothing new is asked: the device stands still
afterwards. So nothing here waits for a device. An *event* marks a place in a stream; the host, or another stream, waits
for that place alone. Copies have a stream of their own, and memory on the host that the device can write to directly.

Streams and events are those of the module that torch has for each kind of device (`torch.cuda`, `torch.xpu`, that of a
plug-in). Where it has none that wait for each other (`torch.mps`), the device does the same things in order, and the
host waits for them.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final, Protocol

import torch

from minga.training.state.snapshot import PIECE_BYTES, padded
from minga.training.state.tensor_access import TensorAccess

COPIED_ELEMENTS: Final = 1 << 24
"""A vector crosses to or from a device in pieces of at most so many elements, or of one tensor."""


class DeviceEvent(Protocol):
    """A place in a stream."""

    def query(self) -> bool:
        """Whether the device has come there; does not wait."""

    def synchronize(self) -> None:
        """Wait until it has."""


class Accelerator:
    """The streams and the host memory of one `device`; a CPU has none of its own. Any thread may use it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        module: Any = None if device.type == "cpu" else getattr(torch, device.type, None)
        names = ("Stream", "Event", "current_stream", "stream")
        self.has_streams = all(hasattr(module, name) for name in names) and hasattr(module.Stream, "wait_event")
        self._module = module
        self._has_asked = False

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> Accelerator | None:
        """The accelerator on which all of these are; None if they are in RAM, or on several devices."""
        devices = {tensor.device for tensor in tensors}
        return cls(devices.pop()) if len(devices) == 1 and not any(tensor.is_cpu for tensor in tensors) else None

    def mark(self) -> DeviceEvent:
        """Behind all that this thread has asked of the device so far."""
        if not self.has_streams:
            return _EndOfAll(self.device)
        event: Any = self._module.Event()
        event.record(self._module.current_stream(self.device))
        return event  # type: ignore[no-any-return]

    def follow(self, event: DeviceEvent) -> None:
        """What this thread asks from now on is done after `event`; the thread does not wait."""
        if self.has_streams:
            self._module.current_stream(self.device).wait_event(event)

    @cached_property
    def _side(self) -> Any:
        return self._module.Stream(device=self.device)

    @contextlib.contextmanager
    def beside(self, event: DeviceEvent) -> Iterator[None]:
        """Inside, what this thread asks is done after `event`, and beside all other computing."""
        if not self.has_streams:
            yield
            return
        with self._module.stream(self._side):
            self.follow(event)
            yield

    def host_memory(self, numel: int) -> torch.Tensor:
        """Zeros on the host (float32), to which the device can write directly if there is such memory."""
        with contextlib.suppress(RuntimeError):  # the device has none, or the system allows no more of it
            if self.has_streams:
                return torch.zeros(numel, dtype=torch.float32, pin_memory=True, device="cpu")
        return torch.zeros(numel, dtype=torch.float32, device="cpu")

    def host_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in such memory. It has the strides of `tensor`: updates that torch fuses go through what lies in
        memory, of gradients and moments too.
        """
        with contextlib.suppress(RuntimeError):
            if self.has_streams:
                return torch.empty_like(tensor, pin_memory=True, device="cpu").copy_(tensor)
        return tensor.to("cpu", copy=True)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy a flat vector to or from the device, piece by piece; `mark` tells when it is there."""
        pieces = (torch.split(vector, COPIED_ELEMENTS) for vector in (target, source))
        for place, piece in zip(*pieces, strict=True):
            place.copy_(piece, non_blocking=self.has_streams)

    def require_room(self, size_bytes: int) -> None:
        """The first time, raise `torch.OutOfMemoryError` unless the device has so many bytes to spare beside the most
        that this process used so far, as far as one can tell. What its allocator holds and nothing uses counts as free.
        """
        names = ("mem_get_info", "memory_reserved", "max_memory_allocated")
        if self._has_asked or not all(hasattr(self._module, name) for name in names):
            return
        self._has_asked = True
        (free, _), reserved, used = (getattr(self._module, name)(self.device) for name in names)
        if free + reserved - used < size_bytes:
            raise torch.OutOfMemoryError(f"{self.device} has {free + reserved - used} bytes to spare, not {size_bytes}")


class WriteMarks:
    """Behind what a thread has asked that changes some `tensors`, so that other threads read them after it: a program
    may compute in a stream of its own.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        devices = {tensor.device for tensor in tensors if not tensor.is_cpu}
        self._accelerators = [Accelerator(device) for device in devices]
        self.mark()

    def mark(self) -> None:
        """This thread has changed them."""
        self._events = [accelerator.mark() for accelerator in self._accelerators]

    def follow(self) -> None:
        """See `Accelerator`."""
        for accelerator, event in zip(self._accelerators, self._events, strict=True):
            accelerator.follow(event)


class _EndOfAll:
    """An event of a device that has none: it is there when all is done that was asked."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def query(self) -> bool:
        """Nobody knows without waiting."""
        return False

    def synchronize(self) -> None:
        """See `DeviceEvent`."""
        wait_for(self._device)


def wait_for(device: torch.device) -> None:
    """Wait until a device of any kind has done all that this thread asked of it."""
    torch.zeros((), device=device).cpu()  # comes after it


class DeviceAccess(TensorAccess):
    """Reads a state from one accelerator. The thread that asks waits once for each piece, not for each tensor, and the
    next piece crosses while it hashes or writes the last one.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    @torch.no_grad()
    def read(self, tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """See `TensorAccess`."""
        there = self._accelerator.device
        if any(not tensor.is_cpu and tensor.device != there for tensor in tensors):
            yield from super().read(tensors)
            return
        size = sum(padded(tensor.numel() * tensor.itemsize) for tensor in tensors)
        room = min(size, PIECE_BYTES)
        rooms = [self._accelerator.host_memory(room // 4).view(torch.uint8) for _ in range(2 if size > room else 1)]
        asked = deque[tuple[DeviceEvent, torch.Tensor]]()
        for index, parts in enumerate(_pieces(tensors)):
            piece = rooms[index % 2][: sum(part.numel() for part in parts)]
            for part, place in zip(parts, torch.split(piece, [part.numel() for part in parts]), strict=True):
                self._accelerator.copy(part, place)
            asked.append((self._accelerator.mark(), piece))
            if index:
                yield _arrived(*asked.popleft())
        while asked:
            yield _arrived(*asked.popleft())


def _pieces(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """All bytes of a state, gaps included, in parts that make up pieces of `PIECE_BYTES` and a last one."""
    parts, room = list[torch.Tensor](), PIECE_BYTES
    for tensor in tensors:
        flat = tensor.reshape(-1).view(torch.uint8)
        for rest in (flat, torch.zeros(padded(flat.numel()) - flat.numel(), dtype=torch.uint8, device="cpu")):
            while rest.numel():
                part, rest = rest[:room], rest[room:]
                parts.append(part)
                room -= part.numel()
                if room == 0:
                    yield parts
                    parts, room = [], PIECE_BYTES
    if parts:
        yield parts


def _arrived(event: DeviceEvent, piece: torch.Tensor) -> torch.Tensor:
    event.synchronize()
    return piece


class LateVerdict:
    """Whether a micro-batch that an accelerator computes is finite, and its loss: known when the device comes there.

    `is_finite` is a flag on the device, `loss` a number there if there is one.
    """

    def __init__(self, accelerator: Accelerator, is_finite: torch.Tensor, loss: torch.Tensor | None) -> None:
        numbers = [is_finite.to(torch.float32)]
        if loss is not None:
            numbers.append(loss.detach().reshape(()).to(torch.float32))
        self._numbers = accelerator.host_memory(len(numbers))
        accelerator.copy(torch.stack(numbers), self._numbers)
        self._event = accelerator.mark()

    def is_known(self) -> bool:
        """Whether `wait` returns at once."""
        return self._event.query()

    def wait(self) -> bool:
        """Wait until the device has come there; whether the micro-batch is finite."""
        self._event.synchronize()
        return bool(self._numbers[0])

    @property
    def loss(self) -> float | None:
        """The loss, after `wait`; None if there was none."""
        return float(self._numbers[1]) if self._numbers.numel() > 1 else None


def verdict_of(taken: bool | LateVerdict) -> bool:
    """Whether a micro-batch counts; waits for the device that has yet to say it."""
    return taken if isinstance(taken, bool) else taken.wait()
