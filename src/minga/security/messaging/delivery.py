"""How the parts of gradients, and what came of them, get to where they are needed.

Theory of operation. Every member opens one stream to every aggregator, sends its part and reads the aggregate on it:

    member ── PartDelivery{step, attempt, path} ── its part ──▶ aggregator
    member ◀─────────────────────── aggregate ─────────── aggregator

What counts is not who brings the bytes but their digest, which was stated before: that of an aggregate by itself, those
of an owner's parts by the root of their Merkle tree, so that a part travels with its path. Whatever does not come on
its own stream is asked of everybody else: an aggregate of all who may have it, a part through members that fetch it for
whom cannot get it. A broken line between two honest members costs time, and nobody its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from minga.core.aio.in_turn import first_in_turn
from minga.core.buffer_pool import Bytes
from minga.core.errors import ProtocolError, RejectedError, StateMismatchError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node
from minga.security.parts.part_store import PartStore
from minga.security.parts.transfer_limits import receive_hashed, receive_whole, transfer, transfer_limit_s
from minga.security.parts.transfer_progress import TransferProgress
from minga.security.protocol.statements import Attempt, MerklePath, Rank, Step

BRING = "secure.bring"
FETCH = "secure.fetch"
STAGGER_S = 0.5
PROMPT_S = 2.5
"""What is asked for in a hurry should be here by then, or the next one is asked for it, too."""
MAX_FETCHES = 32
"""So many at once for a peer that asks; each needs memory for a part."""


class PartDelivery(msgspec.Struct, frozen=True, array_like=True):
    """A member brings its part of an attempt with this `path`, or none (None), and waits for the aggregate."""

    step: Step
    attempt: Attempt
    path: MerklePath | None


class FetchPart(msgspec.Struct, frozen=True, array_like=True):
    """Ask for what `owner` owes to aggregator `part`, or for that aggregate itself (owner None). With `relay` the other
    side may fetch it from its owner first.
    """

    step: Step
    attempt: Attempt
    part: Rank
    owner: Rank | None
    relay: bool = False


class Found(msgspec.Struct, frozen=True, array_like=True):
    """Here is what was asked for; of a part, its `path`."""

    path: MerklePath = ()


Put = Callable[[Bytes, Sequence[bytes], bytes], bool]
"""Keeps what came with its path, if it is what it should be by its digest."""

Find = Callable[[int, int], Awaitable[tuple[PartStore, tuple[PeerId, ...]] | None]]
"""Step and attempt -> the store of it and its members by rank, or None."""


@loop_bound
class Deliveries:
    """Serves deliveries and fetches of the attempts that `find` knows."""

    def __init__(self, node: Node, find: Find) -> None:
        self._node, self._find = node, find
        self._fetching: dict[FetchPart, asyncio.Task[None]] = {}
        node.serve(BRING, self._serve_bring)
        node.serve(FETCH, self._serve_fetch)

    async def bring(self, step: int, attempt: int, part: int) -> None:
        """Carry the own part, if there is one, to aggregator `part` and take its aggregate home.

        Raises `RemoteError`.
        """
        store, members = await self._store(step, attempt)
        me = members.index(self._node.peer_id)
        async with self._node.open(members[part], BRING, bulk=True) as stream:
            await stream.send(PartDelivery(step, attempt, store.paths.get((me, part))))
            if (me, part) in store.parts:
                await stream.send_bulk(store.parts[me, part])
            data = store.places[part]
            with store.arrivals.expecting(part, stream):
                digest = await receive_whole(stream, data)
        await store.stated.wait()
        if not store.put_value(part, data, digest):
            raise ProtocolError("it brought another aggregate than it stated", peer=members[part], round=step)

    async def fetch_part(
        self, step: int, attempt: int, part: int, owner: int, by_s: float | None = None, *, first: Sequence[int] = ()
    ) -> None:
        """Get a part from its owner or through any other member, if one of them has it; those of the ranks `first` are
        asked before.

        While one of the peers that were asked will have sent it by loop time `by_s`, no other one is asked.
        """
        store, members = await self._store(step, attempt)
        wanted = FetchPart(step, attempt, part, owner, relay=True)
        size = store.part_bytes[part]
        await self._fetch_from_any(
            self._in_turn(members, *first, owner),
            wanted,
            size,
            partial(store.put_part, owner, part),
            by_s,
        )

    async def fetch_value(self, step: int, attempt: int, part: int, by_s: float | None = None) -> None:
        """Get an aggregate from anybody who has it, as `fetch_part`."""
        store, members = await self._store(step, attempt)
        wanted = FetchPart(step, attempt, part, None)
        size = store.value_bytes[part]
        await self._fetch_from_any(
            self._in_turn(members, part),
            wanted,
            size,
            lambda data, _, digest: store.put_value(part, data, digest),
            by_s,
        )

    # ---- inner workings

    async def _store(self, step: int, attempt: int) -> tuple[PartStore, tuple[PeerId, ...]]:
        found = await self._find(step, attempt)
        if found is None:
            raise RejectedError("that attempt is not under way here", code=RefusalCode.ATTEMPT, round=step)
        return found

    async def _fetch_from_any(
        self, peers: Sequence[PeerId], wanted: FetchPart, size: int, put: Put, by_s: float | None = None
    ) -> None:
        """The same thing is fetched only once at a time, for all who wait for it."""
        if wanted not in self._fetching:
            hurry_s = asyncio.get_running_loop().time() + PROMPT_S if by_s is None else by_s
            task = self._node.spawn(self._ask_in_turn(peers, wanted, size, put, hurry_s))
            self._fetching[wanted] = task
            task.add_done_callback(lambda _: self._fetching.pop(wanted, None))
        await asyncio.wait([self._fetching[wanted]])

    async def _ask_in_turn(self, peers: Sequence[PeerId], wanted: FetchPart, size: int, put: Put, by_s: float) -> None:
        """Ask one after the other, the next one when it would take too long with those before."""
        arrivals = TransferProgress()
        await first_in_turn(
            (partial(self._fetch, peer, wanted, size, put, arrivals) for peer in peers),
            longest_pause_s=STAGGER_S,
            is_coming=lambda: arrivals.in_time(wanted, by_s),
        )

    def _in_turn(self, members: tuple[PeerId, ...], *first: int) -> list[PeerId]:
        """Whom to ask: `first`, then the others, beginning with another one at each member."""
        me = members.index(self._node.peer_id)
        order = dict.fromkeys((*first, *range(me + 1, len(members)), *range(me)))
        return [members[rank] for rank in order if rank != me]

    async def _fetch(self, peer: PeerId, wanted: FetchPart, size: int, put: Put, arrivals: TransferProgress) -> None:
        """Raises `RemoteError` and `TimeoutError`."""
        async with self._node.open(peer, FETCH, bulk=True) as stream:
            async with self._node.clockwork.timeout(transfer_limit_s(size if wanted.relay else 0)):
                await stream.send(wanted)
                found = await stream.receive(Found)
            data = memoryview(bytearray(size))  # a peer that lets others wait costs no memory
            async with transfer(self._node, stream, size):
                with arrivals.expecting(wanted, stream):
                    digest = await receive_whole(stream, data)
        if not put(data, found.path, digest):
            raise StateMismatchError("it sent other bytes than those that were stated", peer=peer, round=wanted.step)

    async def _serve_bring(self, peer: PeerId, stream: MessageStream) -> None:
        delivery = await stream.receive(PartDelivery)
        store, members = await self._store(delivery.step, delivery.attempt)
        if peer not in members or self._node.peer_id not in members:
            raise RejectedError("only members bring parts", code=RefusalCode.MEMBER)
        owner, part = members.index(peer), members.index(self._node.peer_id)
        if peer in store.visitors:
            raise ProtocolError("it brings a part twice", peer=peer, round=delivery.step)
        store.visitors.add(peer)
        if delivery.path is not None:
            data = store.pool.take(store.part_bytes[part])
            with store.arrivals.expecting((owner, part), stream):
                digest = await receive_hashed(stream, data)
            await store.committed.wait()
            if not store.put_part(owner, part, data, delivery.path, digest):
                raise ProtocolError("it brought another part than it committed to", peer=peer, round=delivery.step)
        while part not in store.values:
            await store.changed.wait()
        await stream.send_bulk(store.values[part])

    async def _serve_fetch(self, peer: PeerId, stream: MessageStream) -> None:
        wanted = await stream.receive(FetchPart)
        store, members = await self._store(wanted.step, wanted.attempt)
        if peer not in members or max(wanted.part, wanted.owner or 0) >= len(members):
            raise RejectedError("only members fetch parts of members", code=RefusalCode.MEMBER)
        data: Bytes | None
        if wanted.owner is None:
            data = store.values.get(wanted.part)
        else:
            data = store.parts.get((wanted.owner, wanted.part))
            if data is None and wanted.relay:
                await self._relay(store, members, wanted)
                data = store.parts.get((wanted.owner, wanted.part))
        if data is None:
            raise RejectedError("it is not here", code=RefusalCode.ABSENT)
        await stream.send(Found(() if wanted.owner is None else store.paths[wanted.owner, wanted.part]))
        await stream.send_bulk(data)

    async def _relay(self, store: PartStore, members: tuple[PeerId, ...], wanted: FetchPart) -> None:
        owner = wanted.owner
        if owner is None or members[owner] == self._node.peer_id or len(self._fetching) >= MAX_FETCHES:
            return
        direct, size = FetchPart(wanted.step, wanted.attempt, wanted.part, owner), store.part_bytes[wanted.part]
        await self._fetch_from_any([members[owner]], direct, size, partial(store.put_part, owner, wanted.part))
