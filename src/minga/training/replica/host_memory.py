"""The update in RAM: parameters that are updated there, with all that the optimizer keeps, and copied to the device.

    device   parameters, gradients of a micro-batch          ── gradients ──▶ sum of the gradients   RAM
                          ▲                                                      ▼ mean of the round
                          └────────────── copied once a step ◀── parameters, moments, update

The parameters stay the objects that they are: while an update or a copy of the state is made, their values are those in
RAM, and otherwise those on the device. Both are equal whenever a program looks. Without an accelerator both are in RAM,
in two places.

Source: the optimizer step on the CPU of "Training Transformers Together" (Borzunov et al. 2022, arXiv:2207.03481).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch

from minga.training.replica.accelerator import Accelerator


class _Place(NamedTuple):
    """A parameter, its values on the device, and those in RAM."""

    parameter: torch.Tensor
    device: torch.Tensor
    ram: torch.Tensor


class HostMemory:
    """Where the parameters of `optimizer` that require a gradient are updated. But for `values`, use it on the training
    thread only.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._places: list[_Place] = []
        self._is_entered = False
        self.values: dict[torch.Tensor, torch.Tensor] = {}
        """Those in RAM. To read them moves nothing: any thread may, while none changes them."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    self.values[parameter] = in_ram = Accelerator(parameter.device).host_copy(parameter.detach())
                    self._places.append(_Place(parameter, parameter.data, in_ram))
        for kept in optimizer.state.values():
            for name, value in kept.items():
                if isinstance(value, torch.Tensor):
                    kept[name] = value.cpu()

    @contextlib.contextmanager
    def read(self) -> Iterator[None]:
        """Parameters are in RAM meanwhile, and none is changed. Their gradients are away."""
        gradients = self._enter()
        try:
            yield
        finally:
            self._leave(gradients)

    @contextlib.contextmanager
    def change(self, *, with_gradients: bool = False) -> Iterator[None]:
        """Parameters are in RAM meanwhile and may be changed. Their gradients are lost afterwards, and are away
        meanwhile, unless the change is made `with_gradients`.
        """
        gradients = self._enter()
        try:
            if with_gradients and gradients is not None:
                for place, gradient in zip(self._places, gradients, strict=True):
                    place.parameter.grad = None if gradient is None else gradient.cpu()
            yield
        finally:
            if gradients is not None:
                with torch.no_grad():
                    for place in self._places:
                        place.device.copy_(place.ram)
                self._leave([None] * len(self._places))

    def _enter(self) -> list[torch.Tensor | None] | None:
        """Put the values in RAM into the parameters; returns their gradients, or None if they are there already."""
        if self._is_entered:
            return None
        self._is_entered = True
        gradients = [place.parameter.grad for place in self._places]
        for place in self._places:
            place.parameter.grad = None
            place.parameter.data = place.ram
        return gradients

    def _leave(self, gradients: list[torch.Tensor | None] | None) -> None:
        if gradients is None:
            return
        for place, gradient in zip(self._places, gradients, strict=True):
            place.parameter.grad = None
            place.parameter.data = place.device
            place.parameter.grad = gradient
        self._is_entered = False
