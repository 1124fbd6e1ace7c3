"""Fetching the signed run spec and the files of a run from any peers that have them.

A few files are fetched side by side, each in pieces from several peers (`file_fetch.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from minga.core.aio.ending import end
from minga.core.errors import ProtocolError, RemoteError, StorageError, UnreachableError
from minga.core.spec.sections import FileEntry, check_file_names
from minga.identity.links.signed_spec import SignedRunSpec
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.training.transfer.file_fetch import FileFetch, reasons
from minga.training.transfer.messages import CHUNK_TIMEOUT_S
from minga.training.transfer.run_files import DESCRIBE_RUN, DescribeRunReply, DescribeRunRequest

AT_ONCE = 4
"""Files that are fetched side by side."""


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
    raise UnreachableError(f"nobody could send the run spec ({reasons(failed)})", phase="run spec")


async def fetch_files(
    node: Node,
    peers: Sequence[PeerId],
    files: Mapping[str, FileEntry],
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

    places = asyncio.Semaphore(AT_ONCE)

    async def fetch(number: int, name: str, entry: FileEntry) -> Path:
        async with places:
            return await FileFetch(node, name, entry, directory, tell).run(_rotated(peers, number))

    tasks = [asyncio.ensure_future(fetch(i, name, entry)) for i, (name, entry) in enumerate(files.items())]
    try:
        return dict(zip(files, await asyncio.gather(*tasks), strict=True))
    except OSError as error:
        raise StorageError(f"the files of the run cannot be stored in {directory}: {error}") from error
    finally:
        await end(*tasks)


def _rotated(peers: Sequence[PeerId], by: int) -> list[PeerId]:
    """`peers` beginning with another one for each `by`, which spreads the load."""
    by %= max(1, len(peers))
    return [*peers[by:], *peers[:by]]
