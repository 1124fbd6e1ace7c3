"""Fetching one file of a run in pieces from several peers, verified and resumable.

Theory of operation. The digests of the pieces come from one peer; then all peers send pieces side by side, as with a
state (`chunk_fetch.py`). Pieces lie in their places in a file whose name ends in `.part`; hashing finds those that an
earlier attempt, or another process, has brought. At last the whole file is hashed.

The run spec holds the hash of the list of digests, so a wrong list is found before a piece is asked for. Run specs of
before do not: then list and pieces come from one peer, which is blamed if the whole is wrong, and another peer is
tried.

A peer that is busy has done nothing wrong: if only such peers are left, they are asked again after a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import BufferedRandom
from pathlib import Path

import torch
from blake3 import blake3

from minga.core.aio.backoff import Backoff
from minga.core.errors import RejectedError, RemoteError, StateMismatchError, UnreachableError
from minga.core.events.training import RunFileFailed
from minga.core.refusal_code import RefusalCode
from minga.core.spec.sections import FileEntry
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.training.state.manifest import CHUNK_BYTES, HASH_BYTES
from minga.training.transfer.chunk_fetch import ChunkFetch, ChunkSource
from minga.training.transfer.file_pieces import FilePieces, is_intact, piece_count
from minga.training.transfer.messages import CHUNK_TIMEOUT_S, PAGE_BYTES, ManifestReply, ManifestRequest
from minga.training.transfer.run_files import FILE_HASHES, FILE_PIECES, run_blocking

MAX_DONORS = 8
"""Peers that send pieces of one file at once."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 15.0
MAX_PAUSES = 40
"""Pauses without a new piece before busy peers are given up: some ten minutes."""


class FileFetch:
    """Fetches the file `name`, of which the run spec says `entry`, into `directory`; `tell` hears verified bytes."""

    def __init__(
        self, node: Node, name: str, entry: FileEntry, directory: Path, tell: Callable[[str, int], None]
    ) -> None:
        self._node, self._name, self._entry, self._tell = node, name, entry, tell
        self._final = directory / name
        self._part = self._final.with_name(f"{self._final.name}.{entry.blake3[:16]}.part")
        self._failed: dict[PeerId, RemoteError] = {}
        self._done_bytes, self._has_pieces = 0, False
        self._disk = asyncio.Lock()

    async def run(self, peers: Sequence[PeerId]) -> Path:
        """The file, from the disk or from `peers`. Raises `UnreachableError` and `OSError`."""
        if not await run_blocking(self._is_intact, self._final):
            await run_blocking(self._prepare)
            while not await self._complete(peers):
                pass  # a peer is out of the question now
            await run_blocking(self._finish)
        self._tell(self._name, self._entry.size_bytes)
        return self._final

    async def _complete(self, peers: Sequence[PeerId]) -> bool:
        """Fetch all pieces by the list of one peer; whether the whole is right."""
        pieces, guide = await self._pieces(peers)
        has_all = await self._fetch(pieces, peers if guide is None else [guide])
        if has_all and await run_blocking(self._is_here):
            return True
        if guide is None and has_all:
            raise OSError(f"{self._part} does not hold what was written to it")
        if guide is None:
            raise self._nobody()
        if has_all:
            what = f"sent a file {self._name} that does not match its hash"
            self._drop(guide, StateMismatchError(what, peer=guide, phase="run files"))
        return False

    # ---- the list of digests

    async def _pieces(self, peers: Sequence[PeerId]) -> tuple[FilePieces, PeerId | None]:
        """The digests of the pieces, and the peer whose claim they are, None where they are beyond doubt."""
        entry = self._entry
        make = partial(FilePieces, self._name, entry.blake3, entry.size_bytes)
        if piece_count(entry.size_bytes) <= 1:
            return make(bytes.fromhex(entry.blake3)), None
        for peer in self._usable(peers):
            try:
                async with asyncio.timeout(CHUNK_TIMEOUT_S):
                    hashes = await self._receive_hashes(peer)
            except TimeoutError:
                self._drop(peer, UnreachableError(f"sent no digests within {CHUNK_TIMEOUT_S:.0f} s", peer=peer))
            except RemoteError as error:
                self._drop(peer, error)
            else:
                return make(hashes), None if entry.pieces else peer
        raise self._nobody()

    async def _receive_hashes(self, peer: PeerId) -> bytes:
        expected = piece_count(self._entry.size_bytes) * HASH_BYTES
        async with self._node.open(peer, FILE_HASHES) as stream:
            await stream.send(ManifestRequest(self._entry.blake3))
            size_bytes = (await stream.receive(ManifestReply)).size_bytes
            wrong = size_bytes != expected
            hashes = memoryview(bytearray(0 if wrong else expected))
            for start in range(0, hashes.nbytes, PAGE_BYTES):
                await stream.receive_bulk_into(hashes[start : start + PAGE_BYTES])
            with contextlib.suppress(RemoteError):
                await stream.finish()
        if wrong or (self._entry.pieces and blake3(hashes).hexdigest() != self._entry.pieces):
            what = f"sent digests of pieces of the file {self._name} that do not match their hash"
            raise StateMismatchError(what, peer=peer, phase="run files")
        return bytes(hashes)

    # ---- the pieces

    async def _fetch(self, pieces: FilePieces, peers: Sequence[PeerId]) -> bool:
        """Fetch the pieces that are not here yet; whether all are here then."""
        found = await run_blocking(pieces.found_in, self._part) if self._has_pieces else set[int]()
        self._has_pieces = True  # for another peer's list of digests
        missing = [index for index in range(pieces.chunk_count) if index not in found]
        self._done_bytes = sum(map(pieces.chunk_size, found))
        self._tell(self._name, self._done_bytes)
        pause, pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), 0
        with await run_blocking(self._open) as file:
            while missing and (donors := self._usable(peers)):
                stored: set[int] = set()
                source = ChunkSource(self._node, FILE_PIECES, self._drop)
                store = partial(self._store, file, stored)
                fetch = ChunkFetch(source, pieces, missing, store, torch.device("cpu"))
                await fetch.run(donors[:MAX_DONORS])
                missing = [index for index in missing if index not in stored]
                if stored:
                    pauses = 0
                    pause.overcome()
                if missing and (pauses := pauses + 1) > MAX_PAUSES:
                    raise self._nobody()
                if missing:
                    await asyncio.sleep(pause.next_s())
        return not missing

    async def _store(self, file: BufferedRandom, stored: set[int], index: int, data: memoryview) -> None:
        async with self._disk:  # two donors' pieces may arrive at once
            await run_blocking(_write_at, file, index * CHUNK_BYTES, data)
        stored.add(index)
        self._done_bytes += data.nbytes
        self._tell(self._name, self._done_bytes)

    # ---- peers

    def _usable(self, peers: Sequence[PeerId]) -> list[PeerId]:
        """The peers that have not failed, or were busy only."""
        return [peer for peer in peers if peer not in self._failed or _is_busy(self._failed[peer])]

    def _drop(self, peer: PeerId, error: RemoteError) -> None:
        if isinstance(error, StateMismatchError):
            self._node.offend(peer, str(error))
        if not _is_busy(error):
            self._node.events.emit(RunFileFailed(peer=peer, file=self._name, reason=str(error)))
        self._failed[peer] = error

    def _nobody(self) -> UnreachableError:
        return UnreachableError(f"nobody could send the file {self._name} ({reasons(self._failed)})", phase="run files")

    # ---- the disk

    def _is_intact(self, path: Path) -> bool:
        return is_intact(path, self._entry.blake3, self._entry.size_bytes)

    def _is_here(self) -> bool:
        """Whether the whole is right; another process that fetched the same file may have given it its name."""
        return self._is_intact(self._part) or self._is_intact(self._final)

    def _prepare(self) -> None:
        """Make sure that there is a partial file of the right size; it takes no room yet where files may have holes."""
        self._final.parent.mkdir(parents=True, exist_ok=True)
        self._has_pieces = self._part.exists()
        self._part.touch()
        os.truncate(self._part, self._entry.size_bytes)

    def _open(self) -> BufferedRandom:
        return self._part.open("r+b")

    def _finish(self) -> None:
        try:
            self._part.replace(self._final)
        except OSError:
            if not self._is_intact(self._final):  # else another process finished the same file
                raise


def reasons(failed: Mapping[PeerId, RemoteError]) -> str:
    """Why each peer could not send something, for people."""
    return "; ".join(f"{peer[:10]}: {error.message}" for peer, error in failed.items()) or "there was nobody to ask"


def _is_busy(error: RemoteError) -> bool:
    return isinstance(error, RejectedError) and error.code == RefusalCode.BUSY


def _write_at(file: BufferedRandom, offset: int, data: memoryview) -> None:
    file.seek(offset)
    file.write(data)
    file.flush()
