"""Past steps for peers that come later: where the members stand, signed by each of them, and the aggregates.

anybody ── Watch{step} ──▶ member       waits until the member has reached that step
anybody ◀── Seen{its statements} ──     of phase STANDING, of the steps that it keeps
anybody ── Look{digest} ──▶ member      ◀── the standing
anybody ── Take{step, part} ──▶ member  ◀── the aggregate of that part

Strangers may ask as well as candidates, so nobody may hold what all need: of the watches that have to wait, a peer has
one, and where there are too many, the oldest is answered as things are; of the aggregates under way a peer has at most
`MAX_TAKES_EACH`, all together `MAX_TAKES`, each for as long as a slow line takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from minga.core.aio import Signal
from minga.core.buffer_pool import Bytes
from minga.core.errors import ProtocolError, RejectedError, StateMismatchError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.security.parts.transfer_limits import ServingLimit, receive_whole, transfer
from minga.security.protocol.protocol_state import ProtocolState
from minga.security.protocol.statements import Digest, Rank, Statement, Step

WATCH = "secure.watch"
LOOK = "secure.look"
TAKE = "secure.take"
KEPT_OUTCOMES = 4
"""Each takes as much memory as a gradient; a newcomer who needs more steps to adopt a state has to begin again."""
WATCH_S = 10.0
"""How long a watcher is kept waiting before it has to ask again."""
CALL_S = 5.0
MAX_WATCHERS = 256
MAX_TAKES = 8
"""Aggregates that are handed out at once."""
MAX_TAKES_EACH = 2


class AwaitStep(msgspec.Struct, frozen=True):
    """Tell me when you have reached that step."""

    step: Step


class Seen(msgspec.Struct, frozen=True):
    """What the answering member itself said at the beginning of the last steps, oldest first."""

    statements: Annotated[tuple[Statement, ...], msgspec.Meta(max_length=KEPT_OUTCOMES)]


class GetState(msgspec.Struct, frozen=True):
    """Ask for a standing."""

    digest: Digest


class GetAggregate(msgspec.Struct, frozen=True):
    """Ask for what was the aggregate of a part in a step."""

    step: Step
    part: Rank


@dataclass(frozen=True)
class PastStep:
    """Of one step: the standing after it, the aggregates by part, and what this peer said of it, if it is a member."""

    standing: ProtocolState
    values: Mapping[int, Bytes]
    statement: Statement | None


@loop_bound
class PastSteps:
    """Keeps the last outcomes and hands them out."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._kept: dict[int, PastStep] = {}
        self._grew = Signal()
        self._watchers: dict[PeerId, AwaitStep] = {}
        """Whose watches wait, the oldest first."""
        self._takes = ServingLimit(MAX_TAKES_EACH, MAX_TAKES)
        node.serve(WATCH, self._serve_watch)
        node.serve(LOOK, self._serve_look)
        node.serve(TAKE, self._serve_take)

    def keep(self, outcome: PastStep) -> None:
        """Of the step that was just taken."""
        step = outcome.standing.step
        self._kept[step] = outcome
        for old in [old for old in self._kept if old <= step - KEPT_OUTCOMES]:
            del self._kept[old]
        self._grew.fire()

    async def _serve_watch(self, peer: PeerId, stream: MessageStream) -> None:
        wanted = await stream.receive(AwaitStep)
        if wanted.step > self._newest:
            await self._wait(peer, wanted)
        kept = sorted(self._kept.items())
        await stream.send(Seen(tuple(outcome.statement for _, outcome in kept if outcome.statement is not None)))

    @property
    def _newest(self) -> int:
        return max(self._kept, default=-1)

    async def _wait(self, peer: PeerId, wanted: AwaitStep) -> None:
        """Until this peer has reached a step, or `WATCH_S` seconds passed, or others need the place."""
        if self._kept and wanted.step > self._newest + KEPT_OUTCOMES:
            raise RejectedError(f"step {wanted.step} is far ahead", code=RefusalCode.AHEAD, peer=peer)
        self._watchers.pop(peer, None)
        if len(self._watchers) >= MAX_WATCHERS:
            del self._watchers[next(iter(self._watchers))]
        self._watchers[peer] = wanted
        self._grew.fire()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + WATCH_S
        try:
            while self._watchers.get(peer) is wanted and wanted.step > self._newest:
                if (left_s := until_s - loop.time()) <= 0:
                    return
                await self._grew.wait(left_s)
        finally:
            if self._watchers.get(peer) is wanted:
                del self._watchers[peer]

    async def _serve_look(self, _: PeerId, stream: MessageStream) -> None:
        wanted = await stream.receive(GetState)
        for outcome in self._kept.values():
            if outcome.standing.digest == wanted.digest:
                async with stream.taken_within(CALL_S):
                    await stream.send(outcome.standing)
                return
        raise RejectedError("that standing is not kept here", code=RefusalCode.ABSENT)

    async def _serve_take(self, _: PeerId, stream: MessageStream) -> None:
        wanted = await stream.receive(GetAggregate)
        outcome = self._kept.get(wanted.step + 1)
        if outcome is None or wanted.part not in outcome.values:
            raise RejectedError("that aggregate is not kept here", code=RefusalCode.ABSENT)
        value = outcome.values[wanted.part]
        async with self._takes.serve(stream, len(value)):
            await stream.send_bulk(value)


async def look(node: Node, peer: PeerId, digest: bytes) -> ProtocolState:
    """The standing that a peer keeps under a digest. Raises `RemoteError`."""
    standing = await node.call(peer, LOOK, GetState(digest), ProtocolState, timeout_s=CALL_S)
    with node.blaming(peer):
        try:
            standing.check()
        except ValueError as error:
            raise ProtocolError(f"no standing: {error}", peer=peer) from error
    if standing.digest != digest:
        raise StateMismatchError("it sent another standing than it was asked for", peer=peer)
    return standing


async def take(node: Node, peer: PeerId, step: int, part: int, size: int, digest: bytes) -> Bytes:
    """An aggregate of a past step from a peer. Raises `RemoteError` and `TimeoutError`."""
    data = bytearray(size)
    async with node.open(peer, TAKE, bulk=True) as stream, transfer(node, stream, size):
        await stream.send(GetAggregate(step, part))
        came = await receive_whole(stream, memoryview(data))
    if came != digest:
        raise StateMismatchError("it sent another aggregate than the members had", peer=peer, round=step)
    return data
