"""What one call of an optimizer stands for: its samples, and its loss for displays."""

from __future__ import annotations

import logging

import torch

logger = logging.getLogger(__name__)


class Tally:
    """Counts what the gradients of one optimizer are made of, since its last call.

    samples: samples, or target tokens where the loss is their mean.
    window: the number of parts by which the framework divides the loss of each at present, where it does so even if a
        call has fewer, as the last one of an epoch may; None where it does not.
    parts: those of them that were gone through backward.
    told_by: the call by which the program tells its loss, in words; None where the framework runs backward itself.
    """

    def __init__(self) -> None:
        self.window: int | None = None
        self.told_by: str | None = None
        self.samples = 0
        self.parts = 0
        self._loss: torch.Tensor | float | None = None
        self._at_hand: list[int] = []  # the samples of the batches that came since the last loss, or before it
        self._uncounted = 0  # how many of these are to be counted yet
        self._losses = 0  # of the call
        self._is_used = self._is_told = False
        self._is_part_counted = True

    def begin(self, samples: int, *, alone: bool = False) -> None:
        """A batch of so many samples is at hand; it counts as soon as there is a loss of it. It is alone where the
        framework gets none ahead, so that those before it were left out.
        """
        if self._is_used or alone:
            self._at_hand, self._is_used = [], False
        self._at_hand.append(samples)
        self._uncounted = len(self._at_hand)

    def begin_part(self) -> None:
        """The framework begins with the next of the parts that it divides by."""
        self._is_part_counted = False

    def add_loss(self, loss: torch.Tensor | float) -> None:
        """A part of the loss goes through backward; the sum of these is the mean loss over the samples of the call."""
        own = loss.detach() if isinstance(loss, torch.Tensor) else loss
        self._loss = own if self._loss is None else self._loss + own
        self._losses += 1
        self._is_used = True
        # Of several batches at hand each loss counts one, the latest first: a program may get those of a call before
        # it computes, or leave batches out, as when it goes on in the middle of an epoch.
        if self._uncounted:
            self._uncounted -= 1
            self.samples += self._at_hand[self._uncounted]
        if not self._is_part_counted:
            self._is_part_counted = True
            self.parts += 1

    def clear(self) -> None:
        """The gradients are gone; what is at hand counts again if another loss of it comes."""
        batches = len(self._at_hand)
        if not self._is_told and min(batches, self._losses) > 1 and batches != self._losses:
            self._is_told = True
            logger.warning(
                "%d batches came before %d losses of an optimizer call, and each loss counts one of them. If some were "
                "left out and another was cut in pieces, this is too many: leave batches out by "
                "accelerator.skip_first_batches",
                batches,
                self._losses,
            )
        self.samples, self.parts, self._losses, self._loss, self._uncounted = 0, 0, 0, None, batches

    @property
    def scale(self) -> float:
        """What the gradients of a call have to be multiplied by to be the mean over its parts. One that has more of
        them than the framework divides by, or none, was put together by the program, which divides them itself.
        """
        if self.window is None or not 0 < self.parts < self.window:
            return 1.0
        return self.window / self.parts

    @property
    def loss(self) -> torch.Tensor | float | None:
        """The loss of the call, a mean over its samples, which a device may still compute; None if nothing told it."""
        return None if self._loss is None else self._loss * self.scale
