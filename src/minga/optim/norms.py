"""Norms that are equal on every device: sums of squares in float64, in an order that only the size of a tensor decides.

Theory of operation. A sum of floating-point numbers depends on the order in which they are added, and kernels choose
theirs by vector width, threads and device. Here the order is part of the definition, and each addition is elementwise.
A tensor of n elements has L lanes, L a power of two of about n / 16 and at least 1024:

1. Element i, in the order of the indices, goes to lane i mod L; each lane adds its squares in the order of i.
2. The upper half of the lanes is added to the lower half, until one lane is left.
3. Sums of several tensors are padded with zeros to a power of two and folded in the same way.

Squares of float32 numbers are exact in float64, and can neither overflow nor vanish. The error of a norm is below 1e-14
of it, so it is a float32 norm that was rounded once, for all purposes. Lanes are computed in blocks that fit a cache;
all tensors of a device share their last ten foldings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

from minga.optim.arithmetic import rounded, work_device
from minga.optim.pieces import by_place, pieces

FEWEST_LANES: Final = 1 << 10
ELEMENTS_OF_A_LANE: Final = 16
_BLOCK: Final = 1 << 14
_ACCELERATOR_BLOCK: Final = 1 << 22
_TINY: Final = 1e-6
"""Keeps a gradient of norm 0 from being divided by 0, as torch's clipping does."""


@torch.no_grad()
def norms(tensors: Sequence[Tensor]) -> list[float]:
    """Return the Euclidean norm of each tensor, equal to the last bit on every device."""
    return [math.sqrt(each) for each in sums_of_squares(tensors)]


@torch.no_grad()
def global_norm(tensors: Sequence[Tensor]) -> float:
    """Return the Euclidean norm of all tensors together, equal to the last bit on every device."""
    sums = sums_of_squares(tensors)
    sums += [0.0] * (_power_of_two(len(sums)) - len(sums))
    return math.sqrt(float(_fold(torch.tensor(sums, dtype=torch.float64, device="cpu"), 1)))


@torch.no_grad()
def clip_by_global_norm(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Scale the gradients down to the norm `max_norm` if theirs is larger; returns the norm that they had.

    As `torch.nn.utils.clip_grad_norm_`, but for the order of sums, so that equal gradients stay equal on all peers.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = global_norm(gradients)
    factor = max_norm / (norm + _TINY)
    if not factor >= 1.0:  # a norm that is no number spoils the gradients, so that it shows
        for place, tensors in by_place(gradients).items():
            scale = rounded(factor, place.dtype)
            for (piece,) in pieces(place, [tensors], []):
                piece.mul_(scale)
    return norm


def sums_of_squares(tensors: Sequence[Tensor]) -> list[float]:
    """Return the sum of the squares of each tensor; one synchronisation with each device."""
    found = [0.0] * len(tensors)
    devices: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(tensors):
        devices.setdefault(work_device(tensor.device), []).append(index)
    for device, indices in devices.items():
        lanes = torch.zeros(len(indices), FEWEST_LANES, dtype=torch.float64, device=device)
        for row, index in zip(lanes, indices, strict=True):
            _add_up(tensors[index].detach().reshape(-1).to(device), row)
        for index, each in zip(indices, _fold(lanes.t().contiguous(), 1)[0].tolist(), strict=True):
            found[index] = each
    return found


def _add_up(flat: Tensor, row: Tensor) -> None:
    """Fold the squares of `flat` into the zeros of `row`."""
    count = _power_of_two(-(-flat.numel() // ELEMENTS_OF_A_LANE))
    if count <= FEWEST_LANES:
        _add_lanes(flat, row)
        return
    lanes = torch.zeros(count, dtype=torch.float64, device=flat.device)
    _add_lanes(flat, lanes)
    row.copy_(_fold(lanes, FEWEST_LANES))


def _add_lanes(flat: Tensor, lanes: Tensor) -> None:
    """Add the square of element i to lane i mod len(lanes)."""
    count, block = len(lanes), min(len(lanes), _block(flat.device))
    squares: Tensor | None = None
    for start in range(0, min(count, flat.numel()), block):
        for first in range(start, flat.numel(), count):
            part = flat[first : first + block]
            target = lanes[start : start + part.numel()]
            if first == start:  # into the zeros
                target.copy_(part)
                target.mul_(target)
                continue
            squares = torch.empty(block, dtype=torch.float64, device=flat.device) if squares is None else squares
            square = squares[: part.numel()]
            square.copy_(part)
            square.mul_(square)
            target.add_(square)


def _block(device: torch.device) -> int:
    return _BLOCK if device.type == "cpu" else _ACCELERATOR_BLOCK


def _fold(lanes: Tensor, until: int) -> Tensor:
    """Add the upper half of the rows to the lower half until `until` are left; `lanes` is used up."""
    while len(lanes) > until:
        half = len(lanes) // 2
        upper, lanes = lanes[half:], lanes[:half]
        lanes.add_(upper)
    return lanes


def _power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()
