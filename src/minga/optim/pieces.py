"""Several tensors of each parameter (value, gradient, moments) as flat pieces that are updated side by side.

Theory of operation. An update is some ten elementwise operations, each of which reads and writes whole tensors. On a
CPU that costs memory bandwidth, so large tensors are cut into pieces that stay in a processor's cache meanwhile. Small
ones are joined, because each call costs a microsecond. Elementwise results do not depend on how tensors are cut or
joined, so sizes may follow the machine.

Large tensors are changed in place, and on an accelerator many of them together. What is small on a processor, strided,
of another type, or on a device whose arithmetic is not exact, is copied to one flat tensor and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from minga.optim.arithmetic import Tensors, is_exact_together, work_device
from minga.optim.shards import local

CPU_PIECE: Final = 1 << 17
"""Elements of a piece for each thread: five float32 vectors of them (2.5 MiB) fit into its share of the last cache, and
a call takes far longer than its overhead.
"""
ACCELERATOR_PIECE: Final = 1 << 24
CPU_PART: Final = 1 << 21
"""Elements that are updated together where that needs memory of their size: 8 MiB, which malloc hands out again."""
JOINED_BELOW: Final = 1 << 13
"""Tensors of fewer elements are joined."""


class Place(NamedTuple):
    """Where, and in which type, arithmetic is done: float64 for float64 tensors, else float32."""

    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Place:
        """The place for the arithmetic of `tensor`."""
        return cls(work_device(tensor.device), torch.float64 if tensor.dtype == torch.float64 else torch.float32)

    @property
    def piece_elements(self) -> int:
        """The most elements that a piece has."""
        return CPU_PIECE * torch.get_num_threads() if self.device.type == "cpu" else ACCELERATOR_PIECE

    @property
    def part_elements(self) -> int | None:
        """The most elements that are updated together where that needs memory of their size; None for any number.

        An accelerator has memory at hand, and norms of more tensors in one go cost it fewer synchronisations.
        """
        return CPU_PART if self.device.type == "cpu" else None

    @property
    def groups(self) -> bool:
        """Whether many tensors are changed together."""
        return is_exact_together(self.device)

    def empty(self, numel: int) -> Tensor:
        """New memory for `numel` elements."""
        return torch.empty(numel, dtype=self.dtype, device=self.device)

    def scratch(self, tensors: Iterable[Tensor]) -> Tensor:
        """Memory for what is in between, as long as the largest piece of `tensors`."""
        return self.empty(min(self.piece_elements, sum(tensor.numel() for tensor in tensors)))


def by_place(tensors: Iterable[Tensor]) -> dict[Place, list[Tensor]]:
    """The tensors of each place, in their order."""
    found: dict[Place, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(Place.of(tensor), []).append(tensor)
    return found


def pieces(
    place: Place, changed: Sequence[Sequence[Tensor]], read: Sequence[Sequence[Tensor]]
) -> Iterator[tuple[Any, ...]]:
    """Yield flat pieces of `changed` and then of `read`, one `Tensor` for each of these lists, or one `Tensors`.

    The lists have one tensor for each parameter, in the same order. What is written into the pieces of `changed` is in
    the tensors when the next piece is taken, or the iteration ends. Of DTensors they are pieces of the own shard.
    """
    columns, size = [[local(each) for each in column] for column in (*changed, *read)], place.piece_elements
    groups, group = place.groups, list[tuple[Tensor, ...]]()
    waiting: list[int] = []
    elements = of_group = 0
    for index, row in enumerate(zip(*columns, strict=True)):
        numel = row[0].numel()
        if (groups or numel >= JOINED_BELOW) and numel and all(is_ready(tensor, place) for tensor in row):
            for cut in zip(*(torch.split(tensor.view(-1), size) for tensor in row), strict=True):
                if not groups:
                    yield cut
                    continue
                if group and of_group + cut[0].numel() > size:
                    yield _together(group)
                    group, of_group = [], 0
                group.append(cut)
                of_group += cut[0].numel()
            continue
        waiting.append(index)
        elements += numel
        if elements >= size:
            yield from _joined(place, columns, waiting, len(changed))
            waiting, elements = [], 0
    if group:
        yield _together(group)
    if waiting:
        yield from _joined(place, columns, waiting, len(changed))


def _together(rows: Sequence[tuple[Tensor, ...]]) -> tuple[Tensors, ...]:
    return tuple(Tensors(column) for column in zip(*rows, strict=True))


def is_ready(tensor: Tensor, place: Place) -> bool:
    """Whether arithmetic at `place` changes the tensor where it is, and no copy of it."""
    return (tensor.device, tensor.dtype) == place and tensor.is_contiguous()


def _joined(
    place: Place, columns: Sequence[Sequence[Tensor]], indices: Sequence[int], changed: int
) -> Iterator[tuple[Tensor, ...]]:
    rows = [[column[index] for index in indices] for column in columns]
    flat = [torch.cat([each.reshape(-1).to(*place) for each in row]) for row in rows]
    yield from zip(*(torch.split(vector, place.piece_elements) for vector in flat), strict=True)
    for row, vector in zip(rows[:changed], flat, strict=False):
        for tensor, part in zip(row, torch.split(vector, [each.numel() for each in row]), strict=True):
            tensor.copy_(part.view(tensor.shape))
