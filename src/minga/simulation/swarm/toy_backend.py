"""Work of simulated members whose state newcomers get from others, over the network like everything else.

Real training has its own way of handing on checkpoints; here a state is small enough for one message.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec

from minga.core.errors import RejectedError, RemoteError, StateMismatchError
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node
from minga.security.protocol.statements import Step

DONATE = "lab.donate"
MAX_STATE_BYTES = 1 << 19


class StateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for the state before a step."""

    step: Step


class Donation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state."""

    data: Annotated[bytes, msgspec.Meta(max_length=MAX_STATE_BYTES)]


class DonatedBackend(abc.ABC):
    """The part of `TrainingBackend` that deals with newcomers."""

    _node: Node

    def attach(self, node: Node, gives: Callable[[bytes], bytes]) -> None:
        """Hand on states by a node, after `gives` has had its way with them."""
        self._node = node

        async def serve(_: PeerId, stream: MessageStream) -> None:
            wanted = await stream.receive(StateRequest)
            data = self.dump(wanted.step)
            if data is None:
                raise RejectedError("that state is not kept here", code="absent")
            await stream.send(Donation(gives(data)))

        node.serve(DONATE, serve)

    async def adopt(self, step: int, digest: bytes, donors: Sequence[PeerId]) -> None:
        """Take the state from the first donor who gives the right one."""
        for peer in donors:
            try:
                donation = await self._node.call(peer, DONATE, StateRequest(step), Donation)
                self.load(step, donation.data)
            except (RemoteError, ValueError):
                continue
            if await self.digest() == digest:
                return
        raise StateMismatchError("nobody gives this peer the state that most members have", round=step)

    @abc.abstractmethod
    async def digest(self) -> bytes:
        """See `TrainingBackend`."""

    @abc.abstractmethod
    def dump(self, step: int) -> bytes | None:
        """The state before a step, if it is kept."""

    @abc.abstractmethod
    def load(self, step: int, data: bytes) -> None:
        """Undo `dump`. Raises `ValueError` for what is no state."""
