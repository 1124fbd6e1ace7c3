"""How statements, parts and aggregates get from the members that have them to those that need them.

Authors tell their statements to everybody, and everybody hands on what others lack. Nothing that arrives is
believed before its signature was checked and its author found on the list of members. What a peer may make this one
keep is bounded: one statement for each slot of the few attempts that are under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import msgspec
import torch

from minga.averaging.allreduce.messages import Done
from minga.averaging.codecs.interface import InvalidEncodingError
from minga.core.aio import end, first_in_turn, racing
from minga.core.buffer_pool import Bytes
from minga.core.errors import ProtocolError, RejectedError, RemoteError, StateMismatchError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.security.parts.part_store import PartStore
from minga.security.parts.transfer_limits import (
    TransferProgress,
    WaitPolicy,
    last_s,
    receive_hashed,
    receive_whole,
    transfer,
    transfer_limit_s,
    wait_for_all,
)
from minga.security.protocol.attempt_record import AttemptRecord, who_leaves
from minga.security.protocol.statements import (
    MAX_MEMBERS,
    Attempt,
    EquivocationProof,
    MerklePath,
    Peers,
    Phase,
    Rank,
    Slot,
    Statement,
    StatementStore,
    Step,
    Told,
    is_genuine,
    state,
)

TELL = "secure.tell"
ASK = "secure.ask"
PROVE = "secure.prove"
CALL_S, TOLD_S = 5.0, 1.0
MAX_ANSWER_BYTES = 1 << 19
STATEMENT_BYTES = 256
"""More than what goes with a body."""


class AskStatements(msgspec.Struct, frozen=True):
    """What did these peers say in that slot, as far as you know?"""

    slot: Slot
    authors: Peers


class FoundStatements(msgspec.Struct, frozen=True):
    """Statements that were asked for; with `more`, some of the authors that are not among them are to be asked for
    again, for which there was no room.
    """

    statements: Annotated[tuple[Statement, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
    more: bool = False


def _as_many_as_fit(statements: Sequence[Statement]) -> FoundStatements:
    chosen, size = [], 0
    for statement in statements:
        size += len(statement.body) + STATEMENT_BYTES
        if size > MAX_ANSWER_BYTES:
            break
        chosen.append(statement)
    return FoundStatements(tuple(chosen), more=len(chosen) < len(statements))


@loop_bound
class StatementGossip:
    """Tells, asks and answers. `is_expected` says whether a slot is one that this peer keeps statements of, `accepts`
    whether a peer may speak in a slot, `is_known` whether a peer is a member or a candidate.
    """

    def __init__(
        self,
        node: Node,
        identity: Identity,
        is_expected: Callable[[Slot], bool],
        accepts: Callable[[PeerId, Slot], bool],
        is_known: Callable[[PeerId], bool],
    ) -> None:
        self.slots = StatementStore()
        self.proofs: dict[PeerId, EquivocationProof] = {}
        """Members and candidates who were seen to say two different things, at whatever step."""
        self.on_statement: Callable[[Statement], None] = lambda _: None
        """Called with each statement that is new here."""
        self._node, self._identity = node, identity
        self._is_expected, self._accepts, self._is_known = is_expected, accepts, is_known
        self._telling: set[asyncio.Task[None]] = set()
        node.serve(TELL, self._serve_tell)
        node.serve(ASK, self._serve_ask)
        node.serve(PROVE, self._serve_prove)

    def say(self, slot: Slot, body: msgspec.Struct, everybody: Iterable[PeerId]) -> Statement:
        """Sign a statement of this peer and tell it everybody, without waiting for them."""
        statement = state(self._identity, self._node.run_id, slot, body)
        self.slots.put(statement)
        self._spread(TELL, Told.of(statement), everybody)
        return statement

    async def told(self) -> None:
        """Until what this peer said has reached those who can be reached, `TOLD_S` seconds at most."""
        if self._telling:
            await asyncio.wait(self._telling, timeout=TOLD_S)

    async def pull(
        self, slot: Slot, authors: Iterable[PeerId], everybody: Iterable[PeerId], limit_s: float = CALL_S
    ) -> None:
        """Ask everybody for the statements of some authors, and keep what they have; nobody has longer than `limit_s`
        seconds to answer.
        """
        wanted = AskStatements(slot, tuple(authors))
        await asyncio.gather(*(self._pull(peer, wanted, limit_s) for peer in everybody if peer != self._node.peer_id))

    async def reaches_most(self, slot: Slot, everybody: Collection[PeerId]) -> bool:
        """Whether more than half of them, with this peer, answer when they are asked about a slot."""
        others, nothing = [peer for peer in everybody if peer != self._node.peer_id], AskStatements(slot, ())
        answers = await asyncio.gather(*(self._pull(peer, nothing, CALL_S) for peer in others))
        return 2 * (1 + sum(answers)) > len(everybody)

    def prove(self, proof: EquivocationProof, everybody: Iterable[PeerId]) -> None:
        """Note that a member or candidate equivocated, and tell everybody.

        At whatever step that was: where some took a proof and others did not, since they were in another step, the
        former would wait in vain for the author to go.
        """
        if proof.author not in self.proofs and self._is_known(proof.author):
            self.proofs[proof.author] = proof
            self.slots.changed.fire()
            self._spread(PROVE, proof, everybody)

    def forget_before(self, step: int) -> None:
        """Drop the statements of earlier steps, and proofs of peers that are neither members nor candidates any
        more.
        """
        self.slots.forget_before(step)
        for author in [author for author in self.proofs if not self._is_known(author)]:
            del self.proofs[author]

    def remind(self, everybody: Iterable[PeerId]) -> None:
        """Tell proofs without consequences again: for those a step behind, the authors may have been strangers."""
        for proof in self.proofs.values():
            self._spread(PROVE, proof, everybody)

    def receive(self, statement: Statement, sender: PeerId) -> None:
        """Keep a statement that came from `sender`. Raises `ProtocolError` if it is not genuine."""
        if not self._is_expected(statement.slot) or not self._accepts(statement.author, statement.slot):
            return
        known = self.slots.of(statement.slot).get(statement.author)
        if known is not None and known.body == statement.body:
            return
        if not is_genuine(statement, self._node.run_id):
            raise ProtocolError("a statement with a wrong signature", peer=sender, round=statement.slot.step)
        proof = self.slots.put(statement)
        if proof is None:
            self.on_statement(statement)
        else:
            self.prove(proof, self._node.connected())

    # ---- inner workings

    def _spread(self, method: str, message: msgspec.Struct, everybody: Iterable[PeerId]) -> None:
        for peer in everybody:
            if peer != self._node.peer_id:
                task = self._node.spawn(self._send(peer, method, message))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)

    async def _send(self, peer: PeerId, method: str, message: msgspec.Struct) -> None:
        with contextlib.suppress(RemoteError):  # who misses it asks for it
            await self._node.call(peer, method, message, Done, timeout_s=CALL_S)

    async def _pull(self, peer: PeerId, wanted: AskStatements, limit_s: float) -> bool:
        """Whether a peer answered."""
        with contextlib.suppress(RemoteError, TimeoutError):
            async with self._node.clockwork.timeout(limit_s):
                has_more = True
                while has_more:
                    answer = await self._node.call(peer, ASK, wanted, FoundStatements, timeout_s=limit_s)
                    with self._node.blaming(peer):
                        for statement in answer.statements:
                            if statement.slot != wanted.slot or statement.author not in wanted.authors:
                                raise ProtocolError("it answered with statements that nobody asked for", peer=peer)
                            self.receive(statement, peer)
                    found = {statement.author for statement in answer.statements}
                    wanted = AskStatements(wanted.slot, tuple(each for each in wanted.authors if each not in found))
                    has_more = answer.more and bool(found)
            return True
        return False

    async def _serve_tell(self, peer: PeerId, stream: MessageStream) -> None:
        told = await stream.receive(Told)
        self._check_voice(peer, told.slot)
        self.receive(told.by(peer), peer)
        await stream.send(Done())

    async def _serve_ask(self, peer: PeerId, stream: MessageStream) -> None:
        wanted = await stream.receive(AskStatements)
        self._check_voice(peer, wanted.slot)
        known = self.slots.of(wanted.slot)
        authors = set(wanted.authors)
        async with stream.taken_within(CALL_S):
            await stream.send(_as_many_as_fit([known[author] for author in sorted(known) if author in authors]))

    async def _serve_prove(self, peer: PeerId, stream: MessageStream) -> None:
        proof = await stream.receive(EquivocationProof)
        self._check_voice(peer, proof.one.slot)
        if self._is_known(proof.author) and proof.author not in self.proofs:
            if not proof.holds(self._node.run_id):
                raise ProtocolError("a proof that proves nothing", peer=peer)
            self.prove(proof, self._node.connected())
        await stream.send(Done())

    def _check_voice(self, peer: PeerId, slot: Slot) -> None:
        if not self._accepts(peer, slot):
            raise RejectedError("only members take part in secure steps", code=RefusalCode.MEMBER)


# ---- Deliveries: parts of gradients get to their aggregators, and aggregates to everybody.
#
# Theory of operation. Every member opens one stream to every aggregator, sends its part and reads the aggregate on it:
#
#     member ── PartDelivery{step, attempt, path} ── its part ──▶ aggregator
#     member ◀─────────────────────── aggregate ─────────── aggregator
#
# What counts is not who brings the bytes but their digest, which was stated before: that of an aggregate by itself,
# those of an owner's parts by the root of their Merkle tree, so that a part travels with its path. Whatever does not
# come on its own stream is asked of everybody else: an aggregate of all who may have it, a part through members that
# fetch it for whom cannot get it. A broken line between two honest members costs time, and nobody its place.


BRING = "secure.bring"
FETCH = "secure.fetch"
STAGGER_S = 0.5
PROMPT_S = 2.5
"""What is asked for in a hurry should be here by then, or the next one is asked for it, too."""
MAX_FETCHES = 8
"""So many at once for each peer that asks; each needs memory for a part."""


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
        self._relayed: Counter[PeerId] = Counter()
        """Fetches under way for each peer that asked: none may take the places of others."""
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
        self,
        step: int,
        attempt: int,
        part: int,
        owner: int,
        by_s: float | None = None,
        *,
        first: Sequence[int] = (),
        limit_s: float | None = None,
    ) -> None:
        """Get a part from its owner or through any other member, if one of them has it; those of the ranks `first` are
        asked before.

        While one of the peers that were asked will have sent it by loop time `by_s`, no other one is asked. The
        transfer goes on when nobody waits for it any more, as long as the attempt does or up to `limit_s` seconds.
        """
        store, members = await self._store(step, attempt)
        wanted = FetchPart(step, attempt, part, owner, relay=True)
        size = store.part_bytes[part]
        await self._fetch_from_any(
            self._in_turn(members, *first, owner),
            wanted,
            size,
            store,
            partial(store.put_part, owner, part),
            by_s,
            limit_s,
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
            store,
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
        self,
        peers: Sequence[PeerId],
        wanted: FetchPart,
        size: int,
        store: PartStore,
        put: Put,
        by_s: float | None = None,
        limit_s: float | None = None,
    ) -> None:
        """The same thing is fetched only once at a time, for all who wait for it."""
        if wanted not in self._fetching:
            hurry_s = asyncio.get_running_loop().time() + PROMPT_S if by_s is None else by_s
            task = self._node.spawn(self._ask_in_turn(peers, wanted, size, put, hurry_s, limit_s))
            self._fetching[wanted] = task
            task.add_done_callback(lambda _: self._fetching.pop(wanted, None))
            store.end_with(task)
        await asyncio.wait([self._fetching[wanted]])

    async def _ask_in_turn(
        self, peers: Sequence[PeerId], wanted: FetchPart, size: int, put: Put, by_s: float, limit_s: float | None
    ) -> None:
        """Ask one after the other, the next one when it would take too long with those before."""
        arrivals = TransferProgress()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
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
        with store.visit(peer):
            if delivery.path is not None:
                data = store.pool.take(store.part_bytes[part])
                with store.arrivals.expecting((owner, part), stream):
                    digest = await receive_hashed(stream, data)
                await store.committed.wait()
                if owner not in store.roots:
                    raise RejectedError(
                        "most did not hear it commit itself in time", code=RefusalCode.LATE, round=delivery.step
                    )
                if not store.put_part(owner, part, data, delivery.path, digest):
                    raise ProtocolError("it brought another part than it committed to", peer=peer, round=delivery.step)
            while part not in store.values:
                await store.changed.wait()
            await stream.send_bulk(store.values[part])

    async def _serve_fetch(self, peer: PeerId, stream: MessageStream) -> None:
        wanted = await stream.receive(FetchPart)
        found, data = await self._found(peer, wanted)  # who takes long keeps this, and not the whole store
        async with stream.taken_within(transfer_limit_s(len(data))):
            await stream.send(found)
            await stream.send_bulk(data)

    async def _found(self, peer: PeerId, wanted: FetchPart) -> tuple[Found, Bytes]:
        """What a peer asked for. Raises `RejectedError`."""
        store, members = await self._store(wanted.step, wanted.attempt)
        if peer not in members or max(wanted.part, wanted.owner or 0) >= len(members):
            raise RejectedError("only members fetch parts of members", code=RefusalCode.MEMBER)
        data: Bytes | None
        if wanted.owner is None:
            data = store.values.get(wanted.part)
        else:
            data = store.parts.get((wanted.owner, wanted.part))
            if data is None and wanted.relay:
                await self._relay(peer, store, members, wanted)
                data = store.parts.get((wanted.owner, wanted.part))
        if data is None:
            raise RejectedError("it is not here", code=RefusalCode.ABSENT)
        return Found(() if wanted.owner is None else store.paths[wanted.owner, wanted.part]), data

    async def _relay(self, peer: PeerId, store: PartStore, members: tuple[PeerId, ...], wanted: FetchPart) -> None:
        """Fetch a part from its owner for a peer, unless that is the owner, or has too many fetched already."""
        owner = wanted.owner
        if owner is None or members[owner] in (self._node.peer_id, peer) or self._relayed[peer] >= MAX_FETCHES:
            return
        direct, size = FetchPart(wanted.step, wanted.attempt, wanted.part, owner), store.part_bytes[wanted.part]
        self._relayed[peer] += 1
        try:
            put = partial(store.put_part, owner, wanted.part)
            await self._fetch_from_any([members[owner]], direct, size, store, put)
        finally:
            self._relayed[peer] -= 1
            self._relayed += Counter()  # forgets who has none any more


# ---- The collector: one member hands out and gets the parts and aggregates of one attempt, and waits for them.
#
# Theory of operation. A peer that withholds bytes from some members, or lets them wait, must not make these so late
# with their next word that the others take them for silent. So bytes are waited for half as many seconds beyond the
# time that most took as words are. Whoever gets nothing from most may be cut off itself, as all are where a cut leaves
# no majority; it complains of them only if it could reach most of the members for a while, and got nothing.


class PartCollector:
    """Of the member with the rank `me`."""

    def __init__(
        self, record: AttemptRecord, gossip: StatementGossip, deliveries: Deliveries, patience: WaitPolicy, me: int
    ) -> None:
        self._record, self._terms, self._store = record, record.terms, record.store
        self._gossip, self._deliveries, self._me = gossip, deliveries, me
        self._patience = replace(patience, slack_s=patience.leeway_s, longest_s=patience.longest_s / 2)

    @contextlib.asynccontextmanager
    async def travelling(self) -> AsyncIterator[None]:
        """Meanwhile carry the own parts to their aggregators, and take the aggregates home."""
        async with meanwhile(*(self._bring(part) for part in self._terms.division.parts if part != self._me)):
            yield

    async def parts(self, owners: Sequence[int]) -> None:
        """Wait for the parts that this member aggregates."""
        store, me = self._store, self._me

        async def fetch(lacking: Sequence[int], by_s: float) -> None:
            await asyncio.gather(*(self._fetch(me, owner, by_s) for owner in lacking))

        await self._wait(
            lambda: [owner for owner in owners if (owner, me) not in store.parts],
            len(owners),
            fetch,
            lambda owner, by_s: store.arrivals.in_time((owner, me), by_s),
        )

    async def values(self) -> None:
        """Wait for all aggregates."""
        store, terms = self._store, self._terms

        async def fetch(parts: Sequence[int], by_s: float) -> None:
            fetching = (self._deliveries.fetch_value(terms.step, terms.attempt, part, by_s) for part in parts)
            await asyncio.gather(*fetching)

        await self._wait(
            lambda: [part for part in store.value_digests if part not in store.values],
            len(store.value_digests),
            fetch,
            store.arrivals.in_time,
        )

    async def can_get(self, part: int, owner: int) -> bool:
        """Look for a part of an owner anywhere; whether it can be had and means something.

        Since its aggregator looked for it in vain, and it may be withheld, it has a fixed time.
        """
        if (owner, part) not in self._store.parts:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience.slack_s):
                    await self._fetch(part, owner)
        return await asyncio.to_thread(self._row, owner, part) is not None

    async def lacking(self, wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Look for parts, given as (aggregator, owner), anywhere; those that cannot be had.

        When most are there, or refused by all, the others have as long again and some seconds.
        """
        loop, absent = asyncio.get_running_loop(), self._absent(wanted)
        begun_s = loop.time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit, racing(self._fetch(*one) for one in absent) as ends:
                for left in range(len(absent), 0, -1):
                    if limit.when() is None and 2 * left < len(wanted):
                        limit.reschedule(last_s(begun_s, loop.time(), self._patience.slack_s))
                    await next(ends)
        return self._absent(wanted)

    def rows(self, owners: Sequence[int], *, looks_through: bool = True) -> dict[int, torch.Tensor]:
        """What came for this member to aggregate, by owner, unless it means nothing; who does not look through it gets
        rows that may hold NaN or infinity.
        """
        found = {owner: self._row(owner, self._me, looks_through=looks_through) for owner in owners}
        return {owner: row for owner, row in found.items() if row is not None}

    # ---- inner workings

    async def _wait(
        self,
        missing: Callable[[], Sequence[int]],
        total: int,
        fetch: Callable[[Sequence[int], float], Awaitable[None]],
        is_coming: Callable[[int, float], bool],
    ) -> None:
        slot, was_there = Slot(self._terms.step, self._terms.attempt, Phase.COMMIT), False
        while not await wait_for_all(missing, total, self._store.changed, fetch, self._patience, is_coming=is_coming):
            left = who_leaves(self._record.commits)  # these answer nobody
            stay = [peer for peer in self._terms.members if peer not in left]
            is_there = await self._gossip.reaches_most(slot, stay)
            if was_there and is_there:
                return
            was_there = is_there

    def _absent(self, wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(part, owner) for part, owner in wanted if (owner, part) not in self._store.parts]

    async def _fetch(self, part: int, owner: int, by_s: float | None = None) -> None:
        await self._deliveries.fetch_part(self._terms.step, self._terms.attempt, part, owner, by_s)

    async def _bring(self, part: int) -> None:
        """What fails is fetched in other ways."""
        with contextlib.suppress(RemoteError):
            await self._deliveries.bring(self._terms.step, self._terms.attempt, part)

    def _row(self, owner: int, part: int, *, looks_through: bool = True) -> torch.Tensor | None:
        with contextlib.suppress(InvalidEncodingError, KeyError):
            return self._record.row(owner, part, looks_through=looks_through)
        return None


@contextlib.asynccontextmanager
async def meanwhile(*doing: Coroutine[None, None, None]) -> AsyncIterator[asyncio.Future[list[None]]]:
    """Do these things meanwhile; they end with the block at the latest."""
    together = asyncio.gather(*doing)
    try:
        yield together
    finally:
        await end(together)
