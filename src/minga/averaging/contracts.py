"""The seams between averaging and the rest of a peer: what produces the vectors, what the organisers ordered, and what
members tell each other besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import torch

from minga.averaging.messages import Plan, Report
from minga.core.aio.signal import Signal
from minga.core.errors import ProtocolError
from minga.network.interface import PeerId


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


class RunOrders(Protocol):
    """The organisers' amendments, by their ids, as far as rounds are concerned."""

    def due(self, step: int) -> tuple[str, ...]:
        """Those that a leader puts in force in the round of `step`."""

    def batch_range(self, orders: Sequence[str], step: int) -> tuple[int, int] | None:
        """The smallest and the largest target batch size of `step` under these orders; None if nothing changes it."""

    async def obtain(self, orders: Sequence[str], peer: PeerId, step: int) -> None:
        """Get those that are not known here from `peer`, which wants them in force in the round of `step`.

        Raises `RemoteError` if it does not have them either, or if one of them is for later steps.
        """


class WithoutOrders:
    """Those of a run that nobody amends."""

    def due(self, step: int) -> tuple[str, ...]:  # noqa: ARG002
        """None."""
        return ()

    def batch_range(self, orders: Sequence[str], step: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Nothing."""
        return None

    async def obtain(self, orders: Sequence[str], peer: PeerId, step: int) -> None:  # noqa: ARG002
        """There are none to get; a plan that names one is refused, by `ProtocolError`."""
        if orders:
            raise ProtocolError("the plan names orders in a run without organisers", peer=peer, phase="group")


WITHOUT_ORDERS: Final[RunOrders] = WithoutOrders()


class RoundNotes(Protocol):
    """What travels with the messages of group formation and is no business of it: small, rare, and without a call of
    its own. A note that cannot be read says nothing.
    """

    def for_leader(self, step: int) -> bytes:
        """What this peer gives to the leader of `step`."""

    def with_plan(self, plan: Plan, notes: Mapping[PeerId, bytes]) -> bytes:
        """What this peer, as the leader, gives to all members with the plan, from the notes that each of them gave."""

    def take(self, plan: Plan, note: bytes) -> None:
        """What came with a plan in which this peer takes part; its own as the leader, too."""


class WithoutNotes:
    """Those of a peer that has nothing to say."""

    def for_leader(self, step: int) -> bytes:  # noqa: ARG002
        """Nothing."""
        return b""

    def with_plan(self, plan: Plan, notes: Mapping[PeerId, bytes]) -> bytes:  # noqa: ARG002
        """Nothing."""
        return b""

    def take(self, plan: Plan, note: bytes) -> None:
        """It is not read."""


WITHOUT_NOTES: Final[RoundNotes] = WithoutNotes()
