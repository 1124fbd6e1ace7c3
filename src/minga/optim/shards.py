"""Parameters of which each process holds a shard: DTensors, as `torch.distributed.fsdp.fully_shard` makes them.

Elementwise arithmetic needs the shard of this process alone. A norm is a sum in an order that the whole tensor defines
(`norms.py`). So one tensor at a time is put together for it, as FSDP does for a forward pass, and each process adds it
up: its bits are those of a process that holds the tensor by itself.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether `tensor` is a DTensor."""
    return hasattr(tensor, "placements")


def local(tensor: Tensor) -> Tensor:
    """Return what this process holds of `tensor`, which shares its memory: all of it, unless it is a DTensor."""
    sharded: Any = tensor
    part: Tensor = sharded.to_local() if is_sharded(tensor) else tensor
    return part


def whole(tensor: Tensor) -> Tensor:
    """Return all of `tensor`. For a DTensor all processes have to call this, in the same order."""
    sharded: Any = tensor
    full: Tensor = sharded.full_tensor() if is_sharded(tensor) else tensor
    return full


def like_shard(part: Tensor, of: Tensor) -> Tensor:
    """Return `part` (flat), which this process has beside what it holds `of` a parameter, as a tensor of that kind."""
    if not is_sharded(of):
        return part
    from torch.distributed.tensor import DTensor  # takes long to import, and was by the program

    sharded: Any = of
    return DTensor.from_local(
        part.view(sharded.to_local().shape),
        sharded.device_mesh,
        sharded.placements,
        run_check=False,
        shape=sharded.shape,
        stride=sharded.stride(),
    )
