"""What torch draws next, on the processor and on a device of any kind: kept, and drawn once more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch


def draws(device: torch.device) -> list[torch.Tensor]:
    """The states of the generators that modules on this device draw from; they are on the CPU."""
    module: Any = getattr(torch, device.type, None)  # `torch.cuda`, `torch.xpu`, `torch.mps`
    states = [torch.get_rng_state()]
    return [*states, module.get_rng_state(device)] if hasattr(module, "get_rng_state") else states


@contextlib.contextmanager
def keeping_draws(device: torch.device) -> Iterator[None]:
    """Afterwards modules on this device draw as if nothing had been drawn inside."""
    states = draws(device)
    try:
        yield
    finally:
        _set(states, device)


@contextlib.contextmanager
def replaying(states: Sequence[torch.Tensor], device: torch.device) -> Iterator[None]:
    """Inside, modules on this device draw what they drew after these states; afterwards, as if nothing had been."""
    with keeping_draws(device):
        _set(states, device)
        yield


def _set(states: Sequence[torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        getattr(torch, device.type).set_rng_state(state, device)
