"""Fetching the signed run spec and the files of a run from any peers that have them.

Theory of operation. Files are fetched side by side, each from one peer at a time. Arrived bytes stay on disk under a
name that ends in `.part`; another peer, or the next start of the program, continues there. A hash covers a whole file.
If a file from several peers is wrong, no single peer can be blamed, so it is fetched once more from one peer alone; the
result then convicts or clears that peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path

from blake3 import blake3

from minga.core.errors import ProtocolError, RemoteError, StateMismatchError, StorageError, UnreachableError
from minga.core.events.training import RunFileFailed
from minga.core.spec.sections import check_file_names
from minga.identity.links.signed_spec import SignedRunSpec
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.training.transfer.messages import CHUNK_TIMEOUT_S, timely
from minga.training.transfer.run_files import (
    DESCRIBE_RUN,
    FILE,
    PAGE_BYTES,
    DescribeRunReply,
    DescribeRunRequest,
    FileFacts,
    FileRequest,
    run_blocking,
)


@dataclass(frozen=True)
class FileProgress:
    """Bytes of all files together that are verified or on disk, and that there are."""

    done_bytes: int
    total_bytes: int


async def fetch_run_spec(
    node: Node, peers: Sequence[PeerId], check: Callable[[SignedRunSpec, PeerId], None]
) -> SignedRunSpec:
    """The signed run spec from the first of `peers` that has a genuine one.

    `check(signed, peer)` raises `ProtocolError` for one that is not, see `SignedRunSpec.verify`. Raises
    `UnreachableError` with the reason of each peer if none has one, and any `LocalError` that `check` raises.
    """
    failed: dict[PeerId, RemoteError] = {}
    for peer in peers:
        try:
            request = DescribeRunRequest()
            reply = await node.call(peer, DESCRIBE_RUN, request, DescribeRunReply, timeout_s=CHUNK_TIMEOUT_S)
        except RemoteError as error:
            failed[peer] = error
            continue
        try:
            signed = SignedRunSpec.decode(reply.signed_spec, peer=peer)
            check(signed, peer)
        except RemoteError as error:
            node.offend(peer, str(error))
            failed[peer] = error
            continue
        return signed
    raise UnreachableError(f"nobody could send the run spec ({_reasons(failed)})", phase="run spec")


async def fetch_files(
    node: Node,
    peers: Sequence[PeerId],
    files: Mapping[str, FileFacts],
    directory: Path,
    progress: Callable[[FileProgress], None] | None = None,
) -> dict[str, Path]:
    """Fetch the files of a run from `peers` into `directory`, by their names; those that are there are only verified.

    Raises `UnreachableError` with the reason of each peer if a file cannot be had (what arrived stays for the next
    attempt), `StorageError` if the disk refuses, and `ProtocolError` for file names that are not safe.
    """
    try:
        check_file_names(list(files))
    except ValueError as error:
        raise ProtocolError(f"the run's files cannot be stored: {error}", phase="run files") from error
    done, total_bytes = dict.fromkeys(files, 0), sum(facts.size_bytes for facts in files.values())

    def tell(name: str, done_bytes: int) -> None:
        done[name] = done_bytes
        if progress is not None:
            progress(FileProgress(sum(done.values()), total_bytes))

    fetches = [_FileFetch(node, name, facts, directory, tell) for name, facts in files.items()]
    tasks = [asyncio.ensure_future(fetch.run(_rotated(peers, i))) for i, fetch in enumerate(fetches)]
    try:
        return dict(zip(files, await asyncio.gather(*tasks), strict=True))
    except OSError as error:
        raise StorageError(f"the files of the run cannot be stored in {directory}: {error}") from error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _FileFetch:
    """Fetching one file."""

    def __init__(
        self, node: Node, name: str, facts: FileFacts, directory: Path, tell: Callable[[str, int], None]
    ) -> None:
        self._node, self._name, self._facts, self._tell = node, name, facts, tell
        self._final = directory / name
        self._part = self._final.with_name(f"{self._final.name}.{facts.blake3[:16]}.part")

    async def run(self, peers: Sequence[PeerId]) -> Path:
        """The file, from the disk or from the first of `peers` that has it."""
        if not await run_blocking(self._is_intact, self._final):
            await run_blocking(self._prepare)
            await self._from_any(peers)
            await run_blocking(self._finish)
        self._tell(self._name, self._facts.size_bytes)
        return self._final

    async def _from_any(self, peers: Sequence[PeerId]) -> None:
        failed: dict[PeerId, RemoteError] = {}
        for peer in peers:
            try:
                return await self._from_one(peer)
            except RemoteError as error:
                failed[peer] = error
                self._node.events.emit(RunFileFailed(peer=peer, file=self._name, reason=str(error)))
        raise UnreachableError(f"nobody could send the file {self._name} ({_reasons(failed)})", phase="run files")

    async def _from_one(self, peer: PeerId) -> None:
        """Complete the partial file. Raises `StateMismatchError` if `peer` sent something else than the file."""
        offset = self._part.stat().st_size
        if offset and await self._continue(peer, offset):
            return
        # What was there came from someone else and may be what was wrong.
        if not await self._continue(peer, 0):
            what = f"sent a file {self._name} that does not match its hash"
            self._node.offend(peer, what)
            raise StateMismatchError(what, peer=peer, phase="run files")

    async def _continue(self, peer: PeerId, offset: int) -> bool:
        """Fetch from `offset` to the end; whether the result is right. It is emptied if not."""
        page, size_bytes = memoryview(bytearray(PAGE_BYTES)), self._facts.size_bytes
        async with self._node.open(peer, FILE) as stream:
            await stream.send(FileRequest(self._facts.blake3, offset))
            with await run_blocking(self._open) as file:
                while offset < size_bytes:
                    piece = page[: min(PAGE_BYTES, size_bytes - offset)]
                    await timely(stream.receive_bulk_into(piece), peer, "sent no data")
                    await run_blocking(_write_at, file, offset, piece)
                    offset += piece.nbytes
                    self._tell(self._name, offset)
            with contextlib.suppress(RemoteError):
                await stream.finish()
        if await run_blocking(self._is_intact, self._part):
            return True
        await run_blocking(os.truncate, self._part, 0)
        return False

    def _open(self) -> BufferedRandom:
        return self._part.open("r+b")

    def _is_intact(self, path: Path) -> bool:
        try:
            if path.stat().st_size != self._facts.size_bytes:
                return False
            with path.open("rb") as file:
                hasher = blake3()
                while block := file.read(1 << 20):
                    hasher.update(block)
        except FileNotFoundError:
            return False
        return bool(hasher.hexdigest() == self._facts.blake3)

    def _prepare(self) -> None:
        """Make sure that there is a partial file, not longer than the whole."""
        self._final.parent.mkdir(parents=True, exist_ok=True)
        self._part.touch()
        if self._part.stat().st_size > self._facts.size_bytes:
            os.truncate(self._part, 0)

    def _finish(self) -> None:
        try:
            self._part.replace(self._final)
        except OSError:
            if not self._is_intact(self._final):  # else another process finished the same file
                raise


def _write_at(file: BufferedRandom, offset: int, data: memoryview) -> None:
    file.seek(offset)
    file.write(data)
    file.flush()


def _rotated(peers: Sequence[PeerId], by: int) -> list[PeerId]:
    """`peers` beginning with another one for each `by`, which spreads the load."""
    by %= max(1, len(peers))
    return [*peers[by:], *peers[:by]]


def _reasons(failed: Mapping[PeerId, RemoteError]) -> str:
    return "; ".join(f"{peer[:10]}: {error.message}" for peer, error in failed.items()) or "there was nobody to ask"
