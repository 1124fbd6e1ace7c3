"""What donors and downloaders of a training state say to each other.

state.describe   DescribeRequest -> DescribeReply               what can be had; may wait for a step boundary
state.manifest   ManifestRequest -> ManifestReply, then bulk frames of at most PAGE_BYTES until all bytes came
state.chunks     OpenDownload -> DownloadOpened, then Take -> one bulk frame for each index, as often as wanted, and
                 where news were asked for, HeldChunks; an empty Take ends it
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Annotated, TypeVar

import msgspec

from minga.core.errors import SilentError
from minga.network.interface import PeerId
from minga.training.lineage import Lineage
from minga.training.state.manifest import MAX_MANIFEST_BYTES, MAX_STATE_BYTES, MAX_STEP, Digest

DESCRIBE, MANIFEST, CHUNKS = "state.describe", "state.manifest", "state.chunks"

PAGE_BYTES = 1 << 20
MAX_TAKE = 32
"""Most chunks asked for in one message."""

MAX_HELD = 2
"""Most snapshots that one donor holds at a time."""

CHUNK_TIMEOUT_S = 60.0
"""Seconds for one chunk, or page of a file: a peer with less than 17 KB/s only holds the others up."""

MAX_FELLOWS = 15
"""Most peers that a donor names to one as those that download the same."""

NEWS_S = 1.0
"""Seconds after which a fellow without new chunks answers nevertheless."""

BOUNDARY_WAIT_S = 30.0
"""Seconds that a donor waits for its training thread to come by. It comes by between two micro-batches."""

T = TypeVar("T")

Step = Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP)]
Index = Annotated[int, msgspec.Meta(ge=0, le=MAX_STATE_BYTES >> 20)]
Bitmap = Annotated[bytes, msgspec.Meta(max_length=(MAX_STATE_BYTES >> 23) + 1)]
Fellow = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class DescribeRequest(msgspec.Struct, frozen=True):
    """What state after global step `minimum_step` or later can be had?"""

    minimum_step: Step


class Description(msgspec.Struct, frozen=True):
    """One state that the donor holds ready, and where it comes from."""

    step: Step
    digest: Digest
    lineage: Lineage = Lineage()


class DescribeReply(msgspec.Struct, frozen=True):
    """All states that the donor holds ready, newest first."""

    snapshots: Annotated[tuple[Description, ...], msgspec.Meta(max_length=MAX_HELD)]


class ManifestRequest(msgspec.Struct, frozen=True):
    """Send the manifest of the state, or the digests of the pieces of the file, with this digest."""

    digest: Digest


class ManifestReply(msgspec.Struct, frozen=True):
    """How many bytes of it follow."""

    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_MANIFEST_BYTES)]


class OpenDownload(msgspec.Struct, frozen=True):
    """The chunks asked for on this stream are those of the state with this digest."""

    digest: Digest


class DownloadOpened(msgspec.Struct, frozen=True):
    """Go ahead. The `fellows` download the same from here. `held` tells which chunks are here; None: all are."""

    fellows: Annotated[tuple[Fellow, ...], msgspec.Meta(max_length=MAX_FELLOWS)] = ()
    held: Bitmap | None = None


class TakeChunks(msgspec.Struct, frozen=True):
    """Send these chunks, in this order; none at all means that the download is over.

    A fellow is asked for `news`, too: which chunks it has after that; or without others, once it has more, and after
    `NEWS_S` at the latest.
    """

    indices: Annotated[tuple[Index, ...], msgspec.Meta(max_length=MAX_TAKE)]
    news: bool = False


class HeldChunks(msgspec.Struct, frozen=True):
    """The chunks that are here, see `IncomingState.bitmap`."""

    bitmap: Bitmap


async def timely(work: Awaitable[T], peer: PeerId, what: str) -> T:
    """Wait for `work` with `peer`; raises `SilentError` saying `what` it did for `CHUNK_TIMEOUT_S` seconds."""
    try:
        async with asyncio.timeout(CHUNK_TIMEOUT_S):
            return await work
    except TimeoutError as error:
        raise SilentError(f"{what} for {CHUNK_TIMEOUT_S:.0f} s", peer=peer) from error
