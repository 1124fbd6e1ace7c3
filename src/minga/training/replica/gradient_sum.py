"""Sums of gradients: in RAM, or where the gradients are, from where they come to RAM once a round.

A sum in RAM is a vector to which each micro-batch is added. For parameters on an accelerator that would be a crossing
of the bus for each micro-batch. So there the sum has two parts: one on the device, to which micro-batches are added,
and one in RAM, to which that is moved when a round wants it. What comes after that begins anew on the device; the
content is what both have.

    micro-batches ──▶ on the device ── once a round ──▶ in RAM ──▶ the round

A micro-batch that is not finite adds nothing. That is decided on the device, and the host hears of it later
(`LateVerdict`). Gradients are added, and not kept as the sum although the program gives them away: some programs (CUDA
graphs) write the gradients of the next micro-batch to the same memory. Where the device has no memory for the sum, it
is made in RAM.
"""

from __future__ import annotations

from typing import Protocol

import torch

from minga.averaging.codecs.dense import CONTRIBUTION_LIMIT, is_finite
from minga.optim.arithmetic import is_out_of_memory
from minga.training.replica.accelerator import Accelerator, DeviceEvent, LateVerdict


class NewVectors(Protocol):
    """See `VectorInterface`."""

    def new(self) -> torch.Tensor:
        """A zeroed float32 vector in CPU memory."""


class GradientSource(Protocol):
    """What has the present mean gradients."""

    @property
    def vector(self) -> NewVectors:
        """What is averaged."""

    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        """Add the present mean gradients, `weight` times, to a vector in RAM; False if they are not finite."""


class DeviceSource(GradientSource, Protocol):
    """What has them on an accelerator."""

    def accumulate_there(self, accelerator: Accelerator, vector: torch.Tensor, weight: float) -> LateVerdict:
        """Add the present mean gradients, `weight` times, to a vector on the device, unless they are not finite.

        Raises what the device raises if it has too little memory, with nothing changed.
        """

    @property
    def accelerator(self) -> Accelerator | None:
        """Where sums are made; None is in RAM."""

    def sum_in_ram(self) -> None:
        """The device has no memory for sums: all are made in RAM from now on, and the program is told so once."""


class GradientSum:
    """Gradients of `source` times weights, added up in RAM. Under the arithmetic lock of the strategy that has it."""

    def __init__(self, source: GradientSource) -> None:
        self._source = source
        self._vector = source.vector.new()

    def add(self, weight: float) -> bool | LateVerdict:
        """Add the present mean gradients, `weight` times. False, with nothing changed, if they are not finite; a
        `LateVerdict` where that is known later.
        """
        return self._source.accumulate(self._vector, weight)

    def vector(self) -> torch.Tensor:
        """All of it in RAM: this sum's own memory, which may be changed and belongs to it again with the next `add`."""
        return self._vector

    def divided(self, share: float) -> torch.Tensor:
        """All of it divided by `share`, in place, wherever it is."""
        return self.vector().div_(share)

    def mean(self, share: float) -> torch.Tensor | None:
        """The same in RAM; None if it holds NaN, infinity or numbers too large to be sent."""
        return found if is_finite(found := self.divided(share), CONTRIBUTION_LIMIT) else None

    def merge(self, other: GradientSum) -> None:
        """Add what is in `other`, a sum of the same source, which is empty then."""
        self.vector().add_(other.vector())
        other.clear()

    def add_part(self, start: int, values: torch.Tensor) -> None:
        """Add some values in RAM to the elements from `start` on."""
        self._vector[start : start + values.numel()].add_(values)

    def fill(self, values: torch.Tensor) -> None:
        """Become a vector in RAM."""
        self.vector().copy_(values)

    def clear(self) -> None:
        """Become 0."""
        self._vector.zero_()


class DeviceSum(GradientSum):
    """The same on an accelerator; see the module."""

    _vector: torch.Tensor
    _source: DeviceSource

    def __init__(self, source: DeviceSource, accelerator: Accelerator, numel: int) -> None:
        self._source, self._accelerator, self._numel = source, accelerator, numel
        self._near: torch.Tensor | None = None  # in RAM; made at the first crossing, and kept
        self._is_near_empty = True
        self._far: torch.Tensor | None = None  # on the device; None is 0
        self._written: DeviceEvent = accelerator.mark()  # behind all that changed it

    def add(self, weight: float) -> bool | LateVerdict:
        """See `GradientSum`."""
        if self._source.accelerator is not None:
            try:
                return self._add_there(weight)
            except Exception as error:  # devices have no class of errors in common
                if not is_out_of_memory(error):
                    raise
            self._source.sum_in_ram()
        return self._source.accumulate(self._in_ram(), weight)

    @torch.no_grad()
    def _add_there(self, weight: float) -> LateVerdict:
        if self._far is None:
            self._accelerator.require_room(4 * self._numel)
            self._far = torch.zeros(self._numel, dtype=torch.float32, device=self._accelerator.device)
        else:
            self._accelerator.follow(self._written)  # another thread may have merged two sums
        verdict = self._source.accumulate_there(self._accelerator, self._far, weight)
        self._written = self._accelerator.mark()
        return verdict

    def vector(self) -> torch.Tensor:
        """See `GradientSum`."""
        return self._in_ram()

    @torch.no_grad()
    def divided(self, share: float) -> torch.Tensor:
        """See `GradientSum`."""
        if self._far is None:
            return self._in_ram().div_(share)
        self._accelerator.follow(self._written)
        if not self._is_near_empty:
            self._far.add_(self._in_ram_so_far().to(self._far.device))
            self._is_near_empty = True
        self._far.div_(share)
        self._written = self._accelerator.mark()
        return self._far

    @torch.no_grad()
    def mean(self, share: float) -> torch.Tensor | None:
        """See `GradientSum`. Division and check are made on the device, if all of it is there."""
        if self._far is None or not self._is_near_empty:
            found = self._in_ram().div_(share)
            return found if is_finite(found, CONTRIBUTION_LIMIT) else None
        with self._accelerator.beside(self._written):
            self._far.div_(share)
            is_small = torch.linalg.vector_norm(self._far, torch.inf) <= CONTRIBUTION_LIMIT
            verdict = LateVerdict(self._accelerator, is_small, None)
            self._written = self._accelerator.mark()
        found = self._in_ram()
        return found if verdict.wait() else None

    @torch.no_grad()
    def merge(self, other: GradientSum) -> None:
        """See `GradientSum`."""
        if not isinstance(other, DeviceSum):
            raise TypeError("sums of two sources cannot be added")
        far, written, near = other.hand_over()
        if far is not None and self._far is not None:
            self._accelerator.follow(self._written)
            self._accelerator.follow(written)
            self._far.add_(far)
            self._written = self._accelerator.mark()
            self._written.synchronize()  # before its memory is given back
        elif far is not None:
            self._far, self._written = far, written
        if near is not None and self._is_near_empty:
            self._near, self._is_near_empty = near, False
        elif near is not None:
            self._in_ram_so_far().add_(near)

    def hand_over(self) -> tuple[torch.Tensor | None, DeviceEvent, torch.Tensor | None]:
        """Become 0; what was on the device, behind which event it is there, and what was in RAM."""
        far, near = self._far, None if self._is_near_empty else self._near
        if near is not None:
            self._near = None
        self._far, self._is_near_empty = None, True
        return far, self._written, near

    @torch.no_grad()
    def add_part(self, start: int, values: torch.Tensor) -> None:
        """See `GradientSum`."""
        if self._far is None:
            self._in_ram()[start : start + values.numel()].add_(values)
            return
        self._accelerator.follow(self._written)
        self._far[start : start + values.numel()].add_(values.to(self._far.device))
        self._written = self._accelerator.mark()

    def fill(self, values: torch.Tensor) -> None:
        """See `GradientSum`."""
        self.clear()
        self._in_ram_so_far().copy_(values)
        self._is_near_empty = False

    def clear(self) -> None:
        """See `GradientSum`."""
        if self._far is not None:
            self._let_go(self._written)
        self._is_near_empty = True

    @torch.no_grad()
    def _in_ram(self) -> torch.Tensor:
        """The part in RAM, once that on the device was moved there, beside what the device computes meanwhile."""
        near = self._in_ram_so_far()
        if self._far is not None:
            target = near if self._is_near_empty else self._accelerator.host_memory(self._numel)
            with self._accelerator.beside(self._written):
                self._accelerator.copy(self._far, target)
                there = self._accelerator.mark()
            self._let_go(there)
            if target is not near:
                near.add_(target)
        elif self._is_near_empty:
            near.zero_()
        self._is_near_empty = False
        return near

    def _in_ram_so_far(self) -> torch.Tensor:
        if self._near is None:
            self._near = self._accelerator.host_memory(self._numel)
        return self._near

    def _let_go(self, event: DeviceEvent) -> None:
        """Give the device's memory back, after `event`: other streams may still use it."""
        event.synchronize()
        self._far = None
