"""Downloading a training state from several donors at once, verified and resumable.

Theory of operation. The donors are asked what they have, and the state that most of them publish is chosen; its digest
is what everything else is checked against. The manifest is taken from any of them, then the chunks from all of them
(`ChunkFetch`). Chunks that this peer has already, in its own state or in the cache of an aborted download, are
not transferred. So healing a peer that differs in one tensor costs a few chunks.

A donor that serves bytes that do not match is dropped, named and counted as an offender; the download goes on with the
others. This module judges a digest by the number of donors that publish it. A caller that learned the digest from the
signed records of the whole swarm should say so in `Wanted`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.core.aio import Signal, end
from minga.core.errors import ProtocolError, RemoteError, StateMismatchError, StorageError, UnreachableError
from minga.core.events.training import StateDonorDropped, StateDownloaded, SyncAdvanced
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.network.meta_bytes import fill
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.training.lineage import Lineage, Standing
from minga.training.state.manifest import CHUNK_BYTES, Manifest, build_manifest
from minga.training.state.snapshot import StateMemory, StateSnapshot
from minga.training.transfer.incoming import IncomingState, read_bitmap
from minga.training.transfer.messages import (
    BOUNDARY_WAIT_S,
    CHUNKS,
    DESCRIBE,
    MANIFEST,
    MAX_FELLOWS,
    MAX_TAKE,
    PAGE_BYTES,
    DescribeReply,
    DescribeRequest,
    Description,
    DownloadOpened,
    HeldChunks,
    ManifestReply,
    ManifestRequest,
    OpenDownload,
    TakeChunks,
    timely,
)
from minga.training.transfer.part_file import Chunked, DownloadCache
from minga.training.transfer.server import StateServer

# ---- Donors: asking them what state they have, and choosing one.
#
# Donors are asked all at once. Each votes for the states that it holds ready; the state with most votes wins, then the
# one of the higher standing (`minga.training.lineage`), then the organiser's, then that of the peer with the lowest
# id. States that do not descend from the run's founding, or of a lower standing than is wanted, are left out. As soon
# as more than half of all donors agree, the others get `GRACE_S` more to answer.


DESCRIBE_TIMEOUT_S = BOUNDARY_WAIT_S + 15.0
"""Seconds for an answer: the donor's own wait, and time to dial, copy and hash."""

GRACE_S = 1.0
MAX_REASONS = 10


def drop_donor(node: Node, donor: PeerId, error: RemoteError) -> None:
    """Tell all who listen why a donor is not used any more; a lie counts as an offence."""
    lied = isinstance(error, StateMismatchError)
    if lied:
        node.offend(donor, str(error))
    node.events.emit(StateDonorDropped(peer=donor, reason=str(error), lied=lied))


class OvertakenError(UnreachableError):
    """No donor has the wanted state any more: all of them have taken further steps since."""


class BrokenOffError(UnreachableError):
    """Chunks of the state came, and then the last donor was lost."""


class OvertakenMidwayError(OvertakenError, BrokenOffError):
    """Chunks of the state came, and no donor that is left has it any more."""


@dataclass(frozen=True)
class Wanted:
    """The state to fetch: that after `minimum_step` or later, and with this `digest`, if one is given.

    In a run whose lineage is known it descends from this `founding` and stands at `least` or higher; the `organiser`
    is the run's.
    """

    minimum_step: int = 0
    digest: str | None = None
    founding: str = ""
    least: Standing | None = None
    organiser: PeerId | None = None

    def suits(self, state: Description) -> bool:
        """Whether it is such a state."""
        lineage = state.lineage
        return (
            self.digest in (None, state.digest)
            and self.founding in ("", lineage.founding)
            and (self.least is None or lineage.standing(state.step, self.organiser) >= self.least)
        )


class Donors:
    """The donors that were asked: their states, which states lead, and why some donors are not used any more."""

    def __init__(self, node: Node, donors: Sequence[PeerId], wanted: Wanted) -> None:
        self.failed: dict[PeerId, RemoteError] = {}
        self._node, self._donors, self._wanted = node, list(dict.fromkeys(donors)), wanted
        self._votes: dict[Description, set[PeerId]] = {}
        self._reached: dict[PeerId, int] = {}
        """The newest step of which each donor has the state."""

    async def ask(self) -> None:
        """Ask all donors what they have of the step that is wanted or later ones."""
        least = self._wanted.minimum_step
        asking = {asyncio.ensure_future(_ask(self._node, donor, least)): donor for donor in self._donors}
        try:
            waiting = set(asking)
            while waiting:
                most = max(map(len, self._votes.values()), default=0)
                grace_s = GRACE_S if most * 2 > len(self._donors) else None
                answered, waiting = await asyncio.wait(waiting, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
                if not answered:
                    break
                for task in sorted(answered, key=lambda each: asking[each]):
                    self._count(asking[task], task)
        finally:
            await end(*asking)

    def leading(self) -> tuple[Description, list[PeerId]] | None:
        """The state that most of the donors not yet dropped have, and which these are; None if there is none.

        Of those of one standing that as many have that of the organiser counts, else that of the peer with the lowest
        id, as where states are compared: who gives way there is not to take a state that its other peers give up.
        """
        organiser = self._wanted.organiser
        supporters = {state: sorted(voters - self.failed.keys()) for state, voters in self._votes.items()}
        ranking = sorted(
            supporters,
            key=lambda state: (
                -len(supporters[state]),
                [-part for part in state.lineage.standing(state.step, organiser)[:4]],
                organiser not in supporters[state],
                supporters[state],
                state.digest,
            ),
        )
        return (ranking[0], supporters[ranking[0]]) if ranking and supporters[ranking[0]] else None

    def drop(self, donor: PeerId, error: RemoteError) -> None:
        """Do not use a donor any more, and say why."""
        self.failed[donor] = error
        drop_donor(self._node, donor, error)

    def nobody(self, *, chunks_came: bool = False) -> UnreachableError:
        """The error that tells why the state cannot be had: an `OvertakenError` if it has become an old one, which is
        what donors say, a `BrokenOffError` if chunks of it came, which no stranger can say.
        """
        reasons = [f"{donor[:10]}: {error.message}" for donor, error in sorted(self.failed.items())]
        reached = {donor: step for donor, step in sorted(self._reached.items()) if donor not in self.failed}
        reasons += [
            f"{donor[:10]}: has another state than the one wanted, of step {reached[donor]}" for donor in reached
        ]
        count, told = len(self._donors), "; ".join(reasons[:MAX_REASONS]) or "there was nobody to ask"
        kind = BrokenOffError if chunks_came else UnreachableError
        if reached and min(reached.values()) > self._wanted.minimum_step:
            kind = OvertakenMidwayError if chunks_came else OvertakenError
        return kind(f"none of {count} donors could serve the state ({told})", phase="state download")

    async def fetch_manifest(self) -> tuple[Manifest, Lineage, list[PeerId]]:
        """The manifest of the leading state, its lineage, and the peers that have that state.

        A donor that does not serve what it described is dropped, with its vote. Raises `UnreachableError` when no
        state is left.
        """
        while leading := self.leading():
            state, supporters = leading
            donor = supporters[0]
            try:
                return await fetch_manifest(self._node, donor, state), state.lineage, supporters
            except RemoteError as error:
                self.drop(donor, error)
        raise self.nobody()

    def _count(self, donor: PeerId, answer: asyncio.Task[DescribeReply]) -> None:
        try:
            states = answer.result().snapshots
        except RemoteError as error:
            self.drop(donor, error)
            return
        self._reached[donor] = max(state.step for state in states)
        for state in states:
            if self._wanted.suits(state):
                self._votes.setdefault(state, set()).add(donor)


async def _ask(node: Node, donor: PeerId, minimum_step: int) -> DescribeReply:
    request = DescribeRequest(minimum_step)
    reply = await node.call(donor, DESCRIBE, request, DescribeReply, timeout_s=DESCRIBE_TIMEOUT_S)
    if not reply.snapshots or any(state.step < minimum_step for state in reply.snapshots):
        error_text = f"offers no state or one before step {minimum_step}"
        node.offend(donor, error_text)
        raise ProtocolError(error_text, peer=donor)
    return reply


async def fetch_manifest(node: Node, donor: PeerId, state: Description) -> Manifest:
    """That of a `state` which `donor` described. Raises `RemoteError`."""
    return _checked(donor, state, await receive_manifest(node, donor, state.digest))


async def receive_manifest(
    node: Node, donor: PeerId, digest: str, method: str = MANIFEST, size_bytes: int | None = None
) -> bytearray:
    """What `donor` answers to a `ManifestRequest`, if it is of `size_bytes` (None: whatever it has).

    Raises `RemoteError`; a `SilentError` after `CHUNK_TIMEOUT_S`.
    """

    async def receive() -> bytearray:
        async with node.open(donor, method) as stream:
            await stream.send(ManifestRequest(digest))
            announced = (await stream.receive(ManifestReply)).size_bytes
            if size_bytes not in (None, announced):
                raise StateMismatchError(f"has {announced} bytes of digests instead of {size_bytes}", peer=donor)
            encoded = await stream.receive_pages(announced, PAGE_BYTES)
            await stream.finish()
        return encoded

    return await timely(receive(), donor, "sent no manifest")


def _checked(donor: PeerId, state: Description, encoded: bytearray) -> Manifest:
    """The decoded manifest. Raises `StateMismatchError` if it is not what the donor described."""
    if blake3(encoded).hexdigest() != state.digest:
        raise StateMismatchError("served a manifest that does not match its digest", peer=donor)
    try:
        manifest = Manifest.decode(encoded)
    except ValueError as error:
        raise StateMismatchError(f"offers a state that nobody can use: {error}", peer=donor) from error
    if manifest.step != state.step:
        raise StateMismatchError(f"calls a state of step {manifest.step} one of step {state.step}", peer=donor)
    return manifest


# ---- Fetching chunks of a state or of a file from several donors at once.
#
# Theory of operation. Every donor has one task and one stream. The tasks take indices from one common queue, a
# second's worth at a time by the donor's measured pace, so that a fast donor serves more. When the queue is empty, an
# idle task asks its donor for chunks of another donor that takes unusually long, or that is silent, and the first copy
# that verifies counts. So neither a dead nor a very slow donor delays the end. Each chunk is received into a buffer of
# the task's own and verified before it is copied to its place. A donor that fails gives its indices back to the queue.
#
# Fellows, which are downloading the same (`incoming.py`), serve like donors what they tell that they have. Donors are
# asked first for what no fellow has, and soon for what a fellow is slow to send: its line may be that of all others,
# too. Fellows that fail are let go without a word, unless they lied.


PIPELINE_S = 1.0
"""Seconds of transfer that are asked for ahead: far more than a round trip, little to lose when a donor dies."""

PATIENCE_CHUNKS = 4.0
"""A chunk is overdue at its donor when an idle donor could have sent this many meanwhile, and `PIPELINE_S` passed."""

QUIET_S = 0.5
"""A donor whose signs of life are overdue by so much, and a round trip, may be dead."""

FIRST_CHUNK_S = 2.0
"""Seconds assumed for a chunk of a donor that has not sent any yet."""

ALONE_S = 30.0
"""Seconds without a chunk after which fellows that have no donor any more are not waited for."""

OnChunk = Callable[[int, memoryview], Awaitable[None]]
OnDropped = Callable[[PeerId, RemoteError], None]


@dataclass(frozen=True)
class ChunkSource:
    """Where chunks come from: the method that donors serve them by, and what to do when one is not used any more."""

    node: Node
    method: str
    dropped: OnDropped


@dataclass(eq=False)
class _Donor:
    """A peer that chunks come from. A fellow has only those that it `held` when it last told; None: all."""

    peer: PeerId
    is_fellow: bool = False
    held: set[int] | None = None
    stream: MessageStream | None = None

    def has(self, index: int) -> bool:
        """Whether it can send this chunk."""
        return self.held is None or index in self.held


@loop_bound
class ChunkFetch:
    """Fetches the chunks `missing` of `wanted`; `on_chunk(index, data)` gets each once, verified.

    Memory is taken on `device`, which is "meta" for a state without content.

    `data` is valid only until the callback returns. `received_bytes` counts what came from each donor, `failed` tells
    why donors dropped out.
    """

    def __init__(
        self, source: ChunkSource, wanted: Chunked, missing: Sequence[int], on_chunk: OnChunk, device: torch.device
    ) -> None:
        self._source, self._node, self._wanted, self._on_chunk = source, source.node, wanted, on_chunk
        self._device = device
        shuffled = random.Random(source.node.peer_id).sample(missing, len(missing))  # fellows take others meanwhile
        self._queue = dict.fromkeys(shuffled)
        self._missing = set(missing)
        self._arriving: set[int] = set()
        self._asked: dict[int, dict[PeerId, float]] = {}
        self._donors: dict[PeerId, _Donor] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._told_of = set[int]()
        """The chunks that some fellow told that it has."""
        self._is_over = False
        self._came_s = 0.0  # when the last chunk came, or a donor was lost
        self._changed, self._ended = Signal(), Signal()
        self.received_bytes: dict[PeerId, int] = {}
        self.failed: dict[PeerId, RemoteError] = {}

    @property
    def complete(self) -> bool:
        """Whether every chunk arrived."""
        return not self._missing

    async def run(self, donors: Sequence[PeerId]) -> None:
        """Fetch until everything is there, or nothing comes any more: all donors dropped out, and from fellows no chunk
        has come for `ALONE_S`. Raises only `LocalError`s and `OSError`.
        """
        for donor in donors:
            self._begin(_Donor(donor))
        try:
            while not self.complete and self._donors:
                left_s = None
                if all(donor.is_fellow for donor in self._donors.values()):
                    left_s = self._came_s + ALONE_S - asyncio.get_running_loop().time()
                    if left_s <= 0.0:
                        return
                await self._ended.wait(left_s)
                for task in [task for task in self._tasks if task.done()]:
                    self._tasks.remove(task)
                    task.result()
        finally:
            self._is_over = True
            await end(*self._tasks)

    def meet(self, fellow: PeerId) -> None:
        """Fetch from a peer, too, which is downloading the same."""
        is_known = fellow == self._node.peer_id or fellow in self._donors or fellow in self.failed
        fellows = sum(donor.is_fellow for donor in self._donors.values())
        if not (is_known or self._is_over) and fellows < MAX_FELLOWS:
            self._begin(_Donor(fellow, is_fellow=True, held=set()))

    def _begin(self, donor: _Donor) -> None:
        self._donors[donor.peer] = donor
        task = asyncio.ensure_future(self._serve_from(donor))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._ended.fire())

    async def _serve_from(self, donor: _Donor) -> None:
        try:
            async with self._node.open(donor.peer, self._source.method, bulk=True) as stream:
                await stream.send(OpenDownload(self._wanted.digest))
                # Waiting for this costs one round trip, and lets the reason of a refusal arrive.
                opened = await timely(stream.receive(DownloadOpened), donor.peer, "sent no chunk")
                donor.stream = stream
                if not donor.is_fellow:
                    for fellow in opened.fellows:
                        self.meet(PeerId(fellow))
                donor.is_fellow |= opened.held is not None
                self._note_held(donor, opened.held)
                await self._pull(donor, stream)
        except RemoteError as error:
            if not donor.is_fellow or isinstance(error, StateMismatchError):
                self.failed[donor.peer] = error
                self._source.dropped(donor.peer, error)
        finally:
            del self._donors[donor.peer]
            if not donor.is_fellow:
                self._came_s = asyncio.get_running_loop().time()
            self._give_back(donor.peer)

    def _note_held(self, donor: _Donor, bitmap: bytes | None) -> None:
        """What this donor told of the chunks that it has."""
        held = None if bitmap is None else read_bitmap(bitmap, self._wanted.chunk_count)
        if held is not None:
            self._told_of |= held
        donor.held = None if held is None or len(held) == self._wanted.chunk_count else held
        self._changed.fire()

    async def _pull(self, donor: _Donor, stream: MessageStream) -> None:
        clock = asyncio.get_running_loop().time
        scratch = as_bytes(torch.empty(CHUNK_BYTES, dtype=torch.uint8, device=self._device))
        pending: deque[int | None] = deque()  # None where it is to tell which chunks it has
        chunk_s = FIRST_CHUNK_S
        last = clock()
        while not self.complete:
            depth = max(1 if donor.is_fellow else 2, min(MAX_TAKE, round(PIPELINE_S / chunk_s)))
            indices = self._assign(donor, depth - len(pending), chunk_s) if len(pending) <= depth // 2 else []
            asks_news = donor.held is not None and bool(indices or not pending)
            if indices or asks_news:
                last = clock() if not pending else last
                await stream.send(TakeChunks(tuple(indices), asks_news))
                pending.extend(indices)
                if asks_news:
                    pending.append(None)
            if not pending:
                await self._changed.wait(min(_patience_s(chunk_s), QUIET_S / 2))
                continue
            if (index := pending.popleft()) is None:
                self._note_held(donor, (await timely(stream.receive(HeldChunks), donor.peer, "told no news")).bitmap)
                continue
            data = scratch[: self._wanted.chunk_size(index)]
            await self._receive(donor.peer, stream, index, data)
            # The pace is the mean of the last few chunks, so that one hiccup does not decide. A short one tells none.
            now = clock()
            if data.nbytes == CHUNK_BYTES:
                measured_s = max(now - last, 1e-6)
                chunk_s = measured_s if chunk_s == FIRST_CHUNK_S else 0.7 * chunk_s + 0.3 * measured_s
            last = now
            await self._take_in(index, data)
        with contextlib.suppress(RemoteError):
            await stream.send(TakeChunks(()))
            await stream.finish()

    async def _receive(self, donor: PeerId, stream: MessageStream, index: int, data: memoryview) -> None:
        await timely(stream.receive_bulk_into(data), donor, "sent no chunk")
        self.received_bytes[donor] = self.received_bytes.get(donor, 0) + data.nbytes
        if not self._wanted.verify_chunk(index, data):
            raise StateMismatchError(
                f"chunk {index} of {self._wanted.label} does not match its hash", peer=donor, phase="download"
            )

    async def _take_in(self, index: int, data: memoryview) -> None:
        self._asked.pop(index, None)
        if index not in self._missing or index in self._arriving:
            return  # another donor was faster
        self._arriving.add(index)
        self._came_s = asyncio.get_running_loop().time()
        await self._on_chunk(index, data)
        self._missing.remove(index)
        if self.complete:
            self._changed.fire()

    def _assign(self, donor: _Donor, count: int, chunk_s: float) -> list[int]:
        """Up to `count` indices to ask `donor` for: from the queue, or else one that is overdue elsewhere."""
        now = asyncio.get_running_loop().time()
        indices = list(itertools.islice(self._open_to(donor), count))
        for index in indices:
            del self._queue[index]
        if not indices:
            overdue = (
                (max(askers.values()), index)
                for index, askers in self._asked.items()
                if donor.peer not in askers
                and donor.has(index)
                and (
                    now - max(askers.values()) >= self._patience_s(donor, askers, chunk_s) - 1e-9
                    or all(map(self._is_quiet, askers))
                )
            )
            indices = [index for _, index in sorted(overdue)[:1]]
        for index in indices:
            self._asked.setdefault(index, {})[donor.peer] = now
        return indices

    def _open_to(self, donor: _Donor) -> Iterator[int]:
        """What of the queue this donor can be asked for: of one that has all, what no fellow has comes first."""
        if donor.is_fellow:
            return filter(donor.has, self._queue)
        told_of = self._told_of
        rare = (index for index in self._queue if index not in told_of)
        return itertools.chain(rare, (index for index in self._queue if index in told_of))

    def _patience_s(self, donor: _Donor, askers: Iterable[PeerId], chunk_s: float) -> float:
        """How many seconds a chunk is left to those that were asked for it, where this donor could send it."""
        fellows_only = not donor.is_fellow and all(self._donors[asker].is_fellow for asker in askers)
        return max(PIPELINE_S, chunk_s) if fellows_only else _patience_s(chunk_s)

    def _is_quiet(self, donor: PeerId) -> bool:
        stream = self._donors[donor].stream
        return stream is not None and stream.quiet_s > QUIET_S + stream.round_trip_s + stream.pause_s

    def _give_back(self, donor: PeerId) -> None:
        """Put what only this donor was asked for back into the queue."""
        for index in [index for index, askers in self._asked.items() if donor in askers]:
            askers = self._asked[index]
            del askers[donor]
            if not askers:
                del self._asked[index]
                if index in self._missing:
                    self._queue[index] = None
        self._changed.fire()


def _patience_s(chunk_s: float) -> float:
    return max(PIPELINE_S, PATIENCE_CHUNKS * chunk_s)


# ---- A download from beginning to end.


@dataclass(frozen=True)
class DownloadedState:
    """A verified state; how many bytes of chunks were transferred for it; and which donors failed, and why."""

    snapshot: StateSnapshot
    received_bytes: int
    failed: dict[PeerId, RemoteError]


Accept = Callable[[Manifest], Coroutine[Any, Any, None]]


async def download(
    node: Node,
    donors: Sequence[PeerId],
    wanted: Wanted,
    *,
    have: StateSnapshot | None = None,
    cache: Path | None = None,
    accept: Accept | None = None,
    server: StateServer | None = None,
) -> DownloadedState:
    """Download the state that is `wanted` and that most of `donors` publish.

    Peers that download the same meanwhile share it by `server`, that of this peer.

    `have` is this peer's own state (without content, if the one to come has none), `cache` a folder for verified
    chunks, where a large state lies, too. `accept` may refuse a manifest, by raising, before memory is taken for its
    state. Raises `UnreachableError` with the reason of each donor if the state could not be had from them,
    `StorageError` if memory does not suffice, and what `accept` raises. Chunks that arrived stay in the cache; trying
    again is up to the caller.
    """
    asked = Donors(node, donors, wanted)
    await asked.ask()
    manifest, lineage, supporters = await asked.fetch_manifest()
    if accept is not None:
        await accept(manifest)
    try:
        memory = StateMemory.of(manifest.total_bytes, cache, is_meta=have is not None and have.buffer.is_meta)
    except RuntimeError as error:
        raise StorageError(f"no memory for a state of {manifest.total_bytes >> 20} MiB") from error
    empty = StateSnapshot.within(manifest.step, manifest.tensors, manifest.scalars, memory).of(lineage)
    work = _Download(node, manifest, empty, DownloadCache(cache, manifest, node.events), server)
    return await work.run(asked, supporters, have)


class _Download:
    """One download, from the manifest on."""

    def __init__(
        self,
        node: Node,
        manifest: Manifest,
        snapshot: StateSnapshot,
        cache: DownloadCache,
        server: StateServer | None,
    ) -> None:
        self._node, self._manifest, self._cache, self._server = node, manifest, cache, server
        self._snapshot = snapshot  # its bytes are still to come
        self._done_bytes = 0
        self._received_bytes: dict[PeerId, int] = {}

    async def run(self, asked: Donors, supporters: list[PeerId], have: StateSnapshot | None) -> DownloadedState:
        manifest = self._manifest
        missing = await asyncio.get_running_loop().run_in_executor(None, self._copy_own, have)
        try:
            missing = await self._cache.fill(missing, self._chunk, self._release)
            self._done_bytes = manifest.total_bytes - sum(map(manifest.chunk_size, missing))
            incoming = IncomingState(manifest, self._snapshot, set(range(manifest.chunk_count)).difference(missing))
            source = ChunkSource(self._node, CHUNKS, partial(drop_donor, self._node))
            store = partial(self._store, incoming)
            fetch = ChunkFetch(source, manifest, missing, store, self._snapshot.buffer.device)
            incoming.on_fellow.add(fetch.meet)
            self._received_bytes = fetch.received_bytes
            self._tell()
            begun_bytes = self._done_bytes
            with contextlib.nullcontext() if self._server is None else self._server.sharing(incoming):
                await fetch.run(supporters)
            asked.failed.update(fetch.failed)
            if not fetch.complete:
                raise asked.nobody(chunks_came=self._done_bytes > begun_bytes)
        finally:
            await self._cache.close()
        await self._cache.remove()
        received_bytes = sum(self._received_bytes.values())
        self._node.events.emit(
            StateDownloaded(
                step=manifest.step,
                digest=manifest.digest,
                received_bytes=received_bytes,
                total_bytes=manifest.total_bytes,
                donors=[str(donor) for donor in sorted(self._received_bytes)],
            )
        )
        return DownloadedState(self._snapshot, received_bytes, asked.failed)

    def _chunk(self, index: int) -> memoryview:
        start = index * CHUNK_BYTES
        return self._snapshot.bytes_view[start : start + self._manifest.chunk_size(index)]

    def _release(self, index: int) -> None:
        self._snapshot.release(index * CHUNK_BYTES, (index + 1) * CHUNK_BYTES)

    def _copy_own(self, have: StateSnapshot | None) -> list[int]:
        """Copy the chunks that `have` holds to where they belong; returns the indices of the others."""
        if have is None:
            return list(range(self._manifest.chunk_count))
        places, missing = build_manifest(have).hash_index(), []
        for index in range(self._manifest.chunk_count):
            place = places.get(self._manifest.chunk_hash(index))
            if place is None:
                missing.append(index)
            else:
                fill(self._chunk(index), have.bytes_view[place * CHUNK_BYTES : (place + 1) * CHUNK_BYTES])
                have.release(place * CHUNK_BYTES, (place + 1) * CHUNK_BYTES)
                self._release(index)
        return missing

    async def _store(self, incoming: IncomingState, index: int, data: memoryview) -> None:
        fill(self._chunk(index), data)
        self._done_bytes += data.nbytes
        await self._cache.write(index, self._chunk(index))
        self._release(index)
        incoming.add(index)
        self._tell()

    def _tell(self) -> None:
        step, total_bytes = self._manifest.step, self._manifest.total_bytes
        self._node.events.emit(SyncAdvanced(step=step, done_bytes=self._done_bytes, total_bytes=total_bytes))
