"""A model's persistent buffers under the policy "average": the same on all peers after every step.

Theory of operation. What is averaged is how far each floating-point buffer (BatchNorm's running mean and variance, say)
has moved since the last step, not its value: constants such as masks and position tables thus contribute exact zeros,
whatever codec the run uses, even where they hold infinities. Whole numbers cannot be averaged: BatchNorm's
`num_batches_tracked` counts global steps, as it would with one large batch, and any other buffer goes back to what it
was after the last step, of which the program is told. Buffers that are not persistent are rebuilt by each peer's own
code and left alone, and what layers with packed weights keep there belongs to the base (`training/state/base.py`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

import torch

from minga.training.state.base import packed_tensors
from minga.training.state.model_names import ModelNames

logger = logging.getLogger("minga.training")

COUNTER = "num_batches_tracked"


class SharedBuffers:
    """The persistent buffers of `model` (of nothing, if None) and their values after the last step."""

    def __init__(self, model: torch.nn.Module | None) -> None:
        named = {} if model is None else _persistent(model)
        self.averaged = [] if model is None else averaged_buffers(model)
        others = [(name, buffer) for name, buffer in named.items() if not buffer.is_floating_point()]
        self._counters = [buffer for name, buffer in others if name.rpartition(".")[2] == COUNTER]
        self._fixed = [buffer for name, buffer in others if name.rpartition(".")[2] != COUNTER]
        self._watched = [name for name, _ in others if name.rpartition(".")[2] != COUNTER]
        self._bases: list[torch.Tensor] = []
        self.rebase()

    @torch.no_grad()
    def movements(self) -> list[torch.Tensor]:
        """By how much each of `averaged` has moved since the last step (float32, its shape and device)."""
        found: dict[int, torch.Tensor] = {}
        for indices, _, _, moved in self._joined():
            found |= zip(indices, self._split(moved, indices), strict=True)
        return [found[index] for index in range(len(self.averaged))]

    @torch.no_grad()
    def undo_broken(self) -> None:
        """Put what has become NaN or infinite back to the last step: a bad batch must not spoil the next ones. No
        device is waited for.
        """
        for indices, present, base, moved in self._joined():
            kept = torch.where(moved.isfinite(), present, base)
            torch._foreach_copy_([self.averaged[index] for index in indices], self._split(kept, indices))

    def _joined(self) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor, torch.Tensor]]:
        """The averaged buffers of one device and dtype as one flat tensor, since most are small: their places, what
        they hold, what they held after the last step, and the difference as float32.
        """
        kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for index, buffer in enumerate(self.averaged):
            kinds.setdefault((buffer.device, buffer.dtype), []).append(index)
        for indices in kinds.values():
            present, base = (
                torch.cat([tensors[index].detach().reshape(-1) for index in indices])
                for tensors in (self.averaged, self._bases)
            )
            yield indices, present, base, torch.where(present != base, present.float() - base.float(), 0.0)

    def _split(self, flat: torch.Tensor, indices: Sequence[int]) -> list[torch.Tensor]:
        """The reverse, in the shapes of the buffers."""
        shapes = [self.averaged[index].shape for index in indices]
        parts = torch.split(flat, [shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    @torch.no_grad()
    def advance(self, means: Sequence[torch.Tensor]) -> None:
        """Begin the next step with the mean movements of all peers, one flat tensor for each of `averaged`."""
        tensors = [*self.averaged, *self._counters, *self._fixed]
        self._warn_of_changed()
        for buffer, base in zip(tensors, self._bases, strict=True):
            buffer.copy_(base)
        for buffer, mean in zip(self.averaged, means, strict=True):
            buffer.add_(mean.to(buffer.device).view(buffer.shape))
        for counter in self._counters:
            counter.add_(1)
        self.rebase()

    def _warn_of_changed(self) -> None:
        """Say, once, which of the whole numbers go back."""
        bases = self._bases[len(self._bases) - len(self._fixed) :]
        for name, buffer, base in zip(self._watched, self._fixed, bases, strict=False):
            if not torch.equal(buffer, base):
                self._watched = []
                logger.warning(
                    "the buffer %s was changed by the program, and goes back at each global step: whole numbers cannot "
                    "be averaged over peers. minga.Optimizer(..., after_update=function) calls a function that may "
                    'change it once for each global step; training.buffers = "local" leaves all buffers to each peer',
                    name,
                )
                return

    @contextlib.contextmanager
    def at_base(self) -> Iterator[None]:
        """Inside, the buffers have their values after the last step: those that all peers share."""
        tensors = [*self.averaged, *self._counters, *self._fixed]
        moved = [(t, b, t.clone()) for t, b in zip(tensors, self._bases, strict=True) if not torch.equal(t, b)]
        for tensor, base, _ in moved:
            tensor.copy_(base)
        try:
            yield
        finally:
            for tensor, _, present in moved:
                tensor.copy_(present)

    @torch.no_grad()
    def rebase(self) -> None:
        """Take the present values for those after the last step: the state was replaced."""
        tensors = [*self.averaged, *self._counters, *self._fixed]
        if not self._bases:
            self._bases = [tensor.clone() for tensor in tensors]
        for base, tensor in zip(self._bases, tensors, strict=True):
            base.copy_(tensor)


def averaged_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    """The buffers of `model` that the policy "average" concerns: those that persist and hold floating-point numbers."""
    return [buffer for buffer in _persistent(model).values() if buffer.is_floating_point()]


def _persistent(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    packed = {id(each) for each in packed_tensors(model).values()}
    named = ModelNames(model).buffers().items()
    return {name: buffer for name, buffer in named if buffer.numel() and id(buffer) not in packed}
