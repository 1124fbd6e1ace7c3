"""Downloading a training state from several donors at once, verified and resumable.

Theory of operation. The donors are asked what they have, and the state that most of them publish is chosen; its digest
is what everything else is checked against. The manifest is taken from any of them, then the chunks from all of them
(see `chunk_fetch.py`). Chunks that this peer has already, in its own state or in the cache of an aborted download, are
not transferred. So healing a peer that differs in one tensor costs a few chunks.

A donor that serves bytes that do not match is dropped, named and counted as an offender; the download goes on with the
others. This module judges a digest by the number of donors that publish it. A caller that learned the digest from the
signed records of the whole swarm should say so in `Wanted`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from minga.core.errors import RemoteError, StorageError
from minga.core.events.training import StateDownloaded
from minga.network.interface import PeerId
from minga.network.meta_bytes import fill
from minga.network.rpc.node import Node
from minga.training.state.manifest import CHUNK_BYTES, Manifest, build_manifest
from minga.training.state.snapshot import StateSnapshot
from minga.training.state.state_memory import StateMemory
from minga.training.transfer.chunk_cache import DownloadCache
from minga.training.transfer.chunk_fetch import ChunkFetch, ChunkSource
from minga.training.transfer.donors import Donors, Wanted, drop_donor
from minga.training.transfer.messages import CHUNKS


@dataclass(frozen=True)
class SyncProgress:
    """How far a download is. `done_bytes` counts verified bytes, `reused_bytes` those of them that were here already;
    `received_bytes` is what each donor sent.
    """

    step: int
    done_bytes: int
    total_bytes: int
    reused_bytes: int
    done_chunks: int
    total_chunks: int
    received_bytes: dict[PeerId, int]


@dataclass(frozen=True)
class DownloadedState:
    """A verified state; how many bytes of chunks were transferred for it; and which donors failed, and why."""

    snapshot: StateSnapshot
    manifest: Manifest
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
    progress: Callable[[SyncProgress], None] | None = None,
) -> DownloadedState:
    """Download the state that is `wanted` and that most of `donors` publish.

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
    work = _Download(node, manifest, empty, DownloadCache(cache, manifest, node.events), progress)
    return await work.run(asked, supporters, have)


class _Download:
    """One download, from the manifest on."""

    def __init__(
        self,
        node: Node,
        manifest: Manifest,
        snapshot: StateSnapshot,
        cache: DownloadCache,
        progress: Callable[[SyncProgress], None] | None,
    ) -> None:
        self._node, self._manifest, self._cache, self._progress = node, manifest, cache, progress
        self._snapshot = snapshot  # its bytes are still to come
        self._done_bytes = self._done_chunks = self._reused_bytes = 0
        self._received_bytes: dict[PeerId, int] = {}

    async def run(self, asked: Donors, supporters: list[PeerId], have: StateSnapshot | None) -> DownloadedState:
        manifest = self._manifest
        missing = await asyncio.get_running_loop().run_in_executor(None, self._copy_own, have)
        try:
            missing = await self._cache.fill(missing, self._chunk, self._release)
            self._count_reused(missing)
            source = ChunkSource(self._node, CHUNKS, partial(drop_donor, self._node))
            fetch = ChunkFetch(source, manifest, missing, self._store, self._snapshot.buffer.device)
            self._received_bytes = fetch.received_bytes
            self._tell()
            await fetch.run(supporters)
            asked.failed.update(fetch.failed)
            if not fetch.complete:
                raise asked.nobody()
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
        return DownloadedState(self._snapshot, manifest, received_bytes, asked.failed)

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

    def _count_reused(self, missing: list[int]) -> None:
        manifest = self._manifest
        self._reused_bytes = manifest.total_bytes - sum(map(manifest.chunk_size, missing))
        self._done_bytes, self._done_chunks = self._reused_bytes, manifest.chunk_count - len(missing)

    async def _store(self, index: int, data: memoryview) -> None:
        fill(self._chunk(index), data)
        self._done_bytes += data.nbytes
        self._done_chunks += 1
        await self._cache.write(index, self._chunk(index))
        self._release(index)
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(
                SyncProgress(
                    self._manifest.step,
                    self._done_bytes,
                    self._manifest.total_bytes,
                    self._reused_bytes,
                    self._done_chunks,
                    self._manifest.chunk_count,
                    dict(self._received_bytes),
                )
            )
