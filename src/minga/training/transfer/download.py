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
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from blake3 import blake3

from minga.core.aio import end
from minga.core.errors import ProtocolError, RemoteError, StateMismatchError, StorageError, UnreachableError
from minga.core.events.training import StateDonorDropped, StateDownloaded, SyncAdvanced
from minga.network.interface import PeerId
from minga.network.meta_bytes import fill
from minga.network.rpc.node import Node
from minga.training.lineage import Lineage, Standing
from minga.training.state.manifest import CHUNK_BYTES, Manifest, build_manifest
from minga.training.state.snapshot import StateMemory, StateSnapshot
from minga.training.transfer.chunk_fetch import ChunkFetch, ChunkSource
from minga.training.transfer.incoming import IncomingState
from minga.training.transfer.messages import (
    BOUNDARY_WAIT_S,
    CHUNKS,
    DESCRIBE,
    MANIFEST,
    PAGE_BYTES,
    DescribeReply,
    DescribeRequest,
    Description,
    ManifestReply,
    ManifestRequest,
    timely,
)
from minga.training.transfer.part_file import DownloadCache
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
