"""Notices that a program changes what the run trains: such a change is gone when this peer's state is compared, and
until then its gradients are those of parameters that no other peer has.

A few numbers show it. They are taken whenever the replica itself has changed the parameters, and compared at the next
micro-batch and before the next update. An accelerator is not waited for: its verdict is read when it is there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import torch

from minga.optim.shards import local
from minga.training.replica.accelerator import Accelerator, LateVerdict

logger = logging.getLogger("minga.training")

TENSORS: Final = 8
ELEMENTS: Final = 128
"""A sample has at most so many elements of each of so many tensors, from all over them."""


class ValueWatch:
    """Watches some parameters, which are all on the `accelerator` if there is one."""

    def __init__(self, parameters: Sequence[torch.Tensor], accelerator: Accelerator | None) -> None:
        self._parameters = parameters[:: -(-len(parameters) // TENSORS)]
        self._accelerator = accelerator
        self._device = torch.device("cpu") if accelerator is None else accelerator.device
        self._noted: torch.Tensor | None = None
        self._verdict: LateVerdict | None = None
        self._is_told = False
        self.note()

    @torch.no_grad()
    def note(self) -> None:
        """The parameters are as the run has them."""
        self._noted = None if self._is_told else self._sample()

    @torch.no_grad()
    def look(self) -> None:
        """Warn, once, if the program has changed them since."""
        self.hear(waits=True)  # what was asked before
        if self._noted is None:
            return
        now = self._sample()
        if self._accelerator is None:
            self._tell(is_same=torch.equal(now, self._noted))
            return
        self._verdict = LateVerdict(self._accelerator, (now == self._noted).all(), None)

    def hear(self, *, waits: bool = False) -> None:
        """The same by what an accelerator was asked before, once it has come there."""
        if self._verdict is not None and (waits or self._verdict.is_known()):
            verdict, self._verdict = self._verdict, None
            self._tell(is_same=verdict.wait())

    def _tell(self, *, is_same: bool) -> None:
        if is_same or self._is_told:
            return
        self._is_told, self._noted = True, None
        logger.warning(
            "the program changed parameters that the run trains, as load_state_dict or clamp_ do: the other peers do "
            "not have these values, so that they are lost when states are compared. Load before minga.Optimizer is "
            "made; what is to change parameters after each update, on all peers alike, is passed as rules="
        )

    def _sample(self) -> torch.Tensor:
        found = []
        for parameter in self._parameters:
            flat = local(parameter).detach().reshape(-1)
            found.append(flat[:: max(1, flat.numel() // ELEMENTS)][:ELEMENTS].to(self._device, torch.float32))
        return torch.cat(found).nan_to_num()
