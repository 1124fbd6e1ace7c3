"""The gradients of candidates: nobody aggregates them, but whoever looks into a candidate can have its.

What counts is the digest that the candidate committed to; so a gradient may come from anybody who has it, in particular
from a validator who accuses the candidate of it. Nobody waits long for it: a candidate that sends slowly, to some, must
not make these later in the next step than the others wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec
import torch

from minga.averaging._layout import VectorLayout
from minga.core._errors import RejectedError, RemoteError
from minga.core._racing import racing
from minga.core._rooms import Bytes
from minga.network._interface import PeerId
from minga.network._messages import MessageStream
from minga.network._node import Node
from minga.security._delivery import digest_of
from minga.security._division import Division
from minga.security._wire import Peer, Step

SUBMISSION = "secure.submission"
FETCH_S = 2.0
"""Also seconds; of the `slack_s` of `Patience` both who validates and who then judges may need so many."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for the gradient that a candidate committed to in a step."""

    step: Step
    candidate: Peer


class Submissions:
    """Keeps encoded gradients of `layout` and hands them to those who are members in the eyes of this peer."""

    def __init__(self, node: Node, layout: VectorLayout, is_member: Callable[[PeerId], bool]) -> None:
        self._node, self._is_member = node, is_member
        self._division = Division.equal(layout, [True])
        self._kept: dict[tuple[int, PeerId], Bytes] = {}
        node.serve(SUBMISSION, self._serve)

    async def encode(self, gradient: torch.Tensor) -> Bytes:
        """A gradient as it goes over the wire. Raises `NonFiniteError`."""
        return await asyncio.to_thread(self._division.encode, gradient, 0)

    def decode(self, body: Bytes) -> torch.Tensor:
        """Undo `encode`. Raises `InvalidEncodingError`."""
        values = torch.empty(self._division.numel(0))
        self._division.decode(body, 0, values)
        return values

    def keep(self, step: int, candidate: PeerId, body: Bytes) -> None:
        """Hand it on to whoever asks."""
        self._kept[step, candidate] = body

    def forget_before(self, step: int) -> None:
        """Drop what belongs to earlier steps."""
        for key in [key for key in self._kept if key[0] < step]:
            del self._kept[key]

    async def fetch(self, step: int, candidate: PeerId, digest: bytes, peers: Iterable[PeerId]) -> Bytes | None:
        """The gradient of a digest from any of `peers` who has it, and kept here from then on; else None."""
        body = self._kept.get((step, candidate))
        if body is not None and await asyncio.to_thread(digest_of, body) == digest:
            return body
        others = [peer for peer in peers if peer != self._node.peer_id]
        async with racing(self._ask(peer, Request(step, candidate)) for peer in others) as answers:
            for answer in answers:
                body = await answer
                if body is not None and await asyncio.to_thread(digest_of, body) == digest:
                    self.keep(step, candidate, body)
                    return body
        return None

    async def _ask(self, peer: PeerId, wanted: Request) -> Bytes | None:
        data = bytearray(self._division.part_bytes[0])
        try:
            async with asyncio.timeout(FETCH_S), self._node.open(peer, SUBMISSION, bulk=True) as stream:
                await stream.send(wanted)
                await stream.receive_bulk_into(memoryview(data))
                await stream.finish()
                await stream.receive_end()
        except (RemoteError, TimeoutError):
            return None
        return data

    async def _serve(self, peer: PeerId, stream: MessageStream) -> None:
        wanted = await stream.receive(Request)
        if not self._is_member(peer):
            raise RejectedError("only members look into candidates", code="member")
        body = self._kept.get((wanted.step, PeerId(wanted.candidate)))
        if body is None:
            raise RejectedError("it is not here", code="absent")
        await stream.send_bulk(body)
