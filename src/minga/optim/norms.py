"""Norms that are equal on every device: sums of squares in float64, in an order that only the size of a tensor decides.

Theory of operation. A sum of floating-point numbers depends on the order in which they are added, and kernels choose
theirs by vector width, threads and device. Here the order is part of the definition, and each addition is elementwise:

1. The squares of a tensor, in the order of its indices, are padded with zeros to a power of two.
2. The upper half is added to the lower half, until one number is left.
3. Sums of several tensors are padded and folded in the same way.

Squares of float32 numbers are exact in float64, and can neither overflow nor vanish. The error of a norm is below 1e-14
of it, so for all purposes it is the exact norm, rounded once. Work is cut where no bit depends on it. Tensors that are
padded to one size are folded together. The first four foldings of a large one are those of 16 rows, of which a block of
columns is computed at once, so that it fits a cache. All tensors of a device share their last ten foldings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from minga.optim.arithmetic import rounded, square_root, work_device
from minga.optim.pieces import by_place, pieces
from minga.optim.shards import whole

FEWEST_LANES: Final = 1 << 10
_ROWS: Final = 16
_BLOCK: Final = 1 << 14
_ACCELERATOR_BLOCK: Final = 1 << 20
"""Columns that are folded at once."""
TINY_NORM: Final = 1e-6
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
    factor = max_norm / (norm + TINY_NORM)
    if not factor >= 1.0:  # a norm that is no number spoils the gradients, so that it shows
        for place, tensors in by_place(gradients).items():
            scale = rounded(factor, place.dtype)
            for (piece,) in pieces(place, [tensors], []):
                piece.mul_(scale)
    return norm


@torch.no_grad()
def row_norms(matrix: Tensor) -> Tensor:
    """Return the Euclidean norms of the rows of a matrix, float64 [rows, 1] on the device where its arithmetic is done,
    equal to the last bit on every device.
    """
    rows, columns = matrix.shape
    squares = torch.zeros(_power_of_two(columns), rows, dtype=torch.float64, device=work_device(matrix.device))
    squares[:columns].copy_(matrix.detach().t())
    squares.mul_(squares)
    roots = _fold(squares, 1).clone()
    square_root(roots, out=roots)
    return roots.t()


def sums_of_squares(tensors: Sequence[Tensor]) -> list[float]:
    """Return the sum of the squares of each tensor; one synchronisation with each device.

    For DTensors all processes have to call this, with the same tensors.
    """
    found = [0.0] * len(tensors)
    devices: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(tensors):
        devices.setdefault(work_device(tensor.device), []).append(index)
    for device, indices in devices.items():
        order, lanes = list[int](), list[Tensor]()
        for size, alike in _alike(tensors, indices, _most(device)):
            flats = [whole(tensors[index]).detach().reshape(-1).to(device) for index in alike]
            order += alike
            lanes.append(_fold_together(flats, size))
        for index, each in zip(order, _fold(torch.cat(lanes, dim=1), 1)[0].tolist(), strict=True):
            found[index] = each
    return found


def _alike(tensors: Sequence[Tensor], indices: Sequence[int], most: int) -> Iterator[tuple[int, list[int]]]:
    """The size to which squares are padded, and the indices of tensors that have it: together at most `most` elements,
    or one tensor.
    """
    by_size: dict[int, list[int]] = {}
    for index in indices:
        by_size.setdefault(max(FEWEST_LANES, _power_of_two(tensors[index].numel())), []).append(index)
    for size, alike in by_size.items():
        count = max(1, most // size)
        yield from ((size, alike[first : first + count]) for first in range(0, len(alike), count))


def _fold_together(flats: Sequence[Tensor], size: int) -> Tensor:
    """Fold the squares of tensors that are padded to `size` until lanes are left: a column for each."""
    device = flats[0].device
    if size > _most(device):
        return _fold(_fold_rows(flats[0], size // _ROWS), FEWEST_LANES)[:, None]
    squares = torch.zeros(len(flats), size, dtype=torch.float64, device=device)
    used = [row[: flat.numel()] for row, flat in zip(squares, flats, strict=True)]
    torch._foreach_copy_(used, list(flats))
    return _fold(squares.mul_(squares).t(), FEWEST_LANES)


def _fold_rows(flat: Tensor, count: int) -> Tensor:
    """Fold the squares of `flat`, which are padded to 16 rows, into one of `count` columns, a block of them at once."""
    numel, lanes = flat.numel(), torch.empty(count, dtype=torch.float64, device=flat.device)
    full, width = numel // count, min(count, _block(flat.device))
    table, rest = flat[: full * count].reshape(full, count), flat[full * count :]
    squares = torch.zeros(_ROWS, width, dtype=torch.float64, device=flat.device)
    used = squares[: -(-numel // count)]  # the others are in the upper half, so they stay 0
    for start in range(0, count, width):
        used[:full].copy_(table[:, start : start + width])
        if full < len(used):
            part = rest[start : start + width]
            used[full, part.numel() :].zero_()
            used[full, : part.numel()].copy_(part)
        used.mul_(used)
        lanes[start : start + width].copy_(_fold(squares, 1)[0])
    return lanes


def _most(device: torch.device) -> int:
    """Of a tensor of more elements a block is folded at once."""
    return _ROWS * max(FEWEST_LANES, _block(device))


def _block(device: torch.device) -> int:
    return _BLOCK if device.type == "cpu" else _ACCELERATOR_BLOCK


def _fold(lanes: Tensor, until: int) -> Tensor:
    """Add the upper half of the rows to the lower half until `until` are left; `lanes` is used up."""
    size = lanes.shape[0]
    while size > until:
        size //= 2
        lanes[:size].add_(lanes[size : 2 * size])
    return lanes[:until]


def _power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()
