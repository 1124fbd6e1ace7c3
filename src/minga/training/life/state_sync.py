"""Fetching the swarm's state where this member's differs or is old."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from minga.core.aio.hedging import racing
from minga.core.thread_guard import loop_bound
from minga.training.bridge.gradient_port import GradientPort
from minga.training.replica.interface import ReplicaInterface
from minga.training.state.snapshot import StateSnapshot
from minga.training.strategy.interface import Recovery
from minga.training.transfer.donors import Wanted

Download = Callable[[Wanted, StateSnapshot], Coroutine[Any, Any, StateSnapshot]]


@loop_bound
class Synchroniser:
    """Replaces the state behind `port`.

    `download(wanted, have)` fetches such a state from other peers, transferring only the chunks that differ from
    `have`; it raises a `RemoteError` if no peer can serve it.
    """

    def __init__(self, replica: ReplicaInterface, port: GradientPort, download: Download) -> None:
        self._replica, self._port, self._download = replica, port, download

    async def capture(self) -> StateSnapshot:
        """A copy of the present state, made by the training thread."""
        snapshot: StateSnapshot = await self._port.request("capture", self._replica.capture)
        return snapshot

    async def fetch(
        self, wanted: Wanted, overtaken: Callable[[], Coroutine[Any, Any, NoReturn]], *, in_doubt: bool = False
    ) -> StateSnapshot:
        """Take over the swarm's state that is `wanted`; returns it.

        What becomes of this peer's own work is for its strategy to say. But where this is `in_doubt`, since others may
        have counted what this peer gave to a round that came to nothing here, or where its rounds are none of those
        that led to the state, the peer begins anew with a later state: nothing is to count twice, and nothing that
        belongs to another state. Raises, with nothing changed, `RemoteError` if no peer can serve the state, or the
        error of `overtaken` during the download.
        """
        own = await self.capture()
        async with racing((self._download(wanted, own), overtaken())) as ends:
            snapshot: StateSnapshot = await next(ends)

        recovery = Recovery.FETCH
        in_doubt = in_doubt or not own.lineage.may_lead_to(snapshot.lineage)
        if _is_same(snapshot, own):
            recovery = Recovery.REBASE  # nothing was missed
        elif snapshot.step > own.step and not in_doubt:
            recovery = await self._port.request("choose", lambda: self._port.missed(snapshot.step - own.step))

        def restore() -> None:
            if in_doubt and recovery is Recovery.FETCH:
                self._replica.forget_left_out()
            self._port.restore(snapshot, recovery, 0)  # the leader says whether there is time for a micro-batch

        await self._port.request("restore", restore)
        return snapshot


def _is_same(one: StateSnapshot, other: StateSnapshot) -> bool:
    """Whether two snapshots hold the same state; those without numbers have it in their scalars."""
    if (one.step, one.tensors, one.scalars) != (other.step, other.tensors, other.scalars):
        return False
    return one.has_bytes_of(other)
