"""The seam between averaging and whatever produces the vectors."""

from __future__ import annotations

from typing import Protocol

import torch

from minga.averaging.messages import Report
from minga.core.aio.signal import Signal


class Contributor(Protocol):
    """What a round needs from the local trainer. All is called on the event loop; all but `seal` returns at once.

    `changed` fires on the loop whenever `report()` would say something new.
    """

    changed: Signal

    def report(self) -> Report:
        """How far the local peer is within the step, right now."""

    def limit(self, samples: int | None) -> None:
        """Stop at the end of the first micro-batch with at least so many samples in this step (`report().parked` tells
        when), and go on up to there if it stopped before; None: no limit.
        """

    def rest(self, *, resting: bool) -> None:
        """Leave off computing until told otherwise: the upload of its gradient would cost the others too much time."""

    async def seal(self) -> tuple[torch.Tensor | None, int]:
        """Take what was accumulated: the mean gradient (float32, flat, CPU) and the number of samples behind it.

        None and 0 where there is nothing. A micro-batch that is being added at this moment counts. The tensor stays
        unchanged until the round has ended.
        """
