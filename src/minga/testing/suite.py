"""What the conformance suites of the network seam have in common."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from minga.core.errors import ClosedError, UnreachableError
from minga.network.interface import Connection, Network, Stream

CHECK_LIMIT_S = 55.0
"""Seconds of loop time after which a check counts as failed."""

GONE = (UnreachableError, ClosedError)
"""What may be raised once this side closed something itself."""


class MakeNetwork(Protocol):
    """Makes one more network that can reach, and unless told otherwise be dialled by, those made before."""

    def __call__(self, *, dialable: bool = True) -> Awaitable[Network]:
        """A fresh network with a key of its own. The suite closes it."""


Check = Callable[[MakeNetwork], Coroutine[Any, Any, None]]


class Joined(NamedTuple):
    """Two networks and both ends of the connection between them; `dialler` opened it."""

    dialler: Network
    acceptor: Network
    outgoing: Connection
    incoming: Connection


def check(function: Check) -> Check:
    """Bound a check in time, and close every network that it made whatever its outcome."""

    @functools.wraps(function)
    async def bounded(make: MakeNetwork) -> None:
        made: list[Network] = []

        async def make_recorded(*, dialable: bool = True) -> Network:
            network = await make(dialable=dialable)
            made.append(network)
            return network

        try:
            async with asyncio.timeout(CHECK_LIMIT_S):
                await function(make_recorded)
        finally:
            for network in made:
                await network.close()

    return bounded


def expect(condition: bool, message: str) -> None:
    """Fail the check with `message` unless `condition` holds (works under `python -O`, unlike `assert`)."""
    if not condition:
        raise AssertionError(message)


async def expect_error(
    kinds: type[Exception] | tuple[type[Exception], ...], operation: Awaitable[object], what: str
) -> None:
    """Fail the check unless awaiting `operation` raises one of `kinds`."""
    try:
        result = await operation
    except kinds:
        return
    raise AssertionError(f"{what} returned {str(result)[:60]!r} instead of raising an error")


async def expect_pending(task: asyncio.Future[Any], what: str, *, seconds: float = 0.05) -> None:
    """Fail the check if `task` ends within a moment; it is then certainly waiting inside the network."""
    done, _ = await asyncio.wait({task}, timeout=seconds)
    expect(not done, f"{what} ended where it had to wait")


async def join(dialler: Network, acceptor: Network) -> Joined:
    """Connect two networks."""
    accepting = asyncio.ensure_future(acceptor.accept())
    try:
        outgoing = await dialler.connect(acceptor.address)
        return Joined(dialler, acceptor, outgoing, await accepting)
    finally:
        accepting.cancel()


async def joined(make: MakeNetwork) -> Joined:
    """Two fresh, connected networks."""
    return await join(await make(), await make())


async def stream_pair(opener: Connection, other: Connection) -> tuple[Stream, Stream]:
    """A stream from `opener` to `other` on which a first byte was already exchanged."""
    near = await opener.open_stream()
    await near.write(b"!")
    far = await other.accept_stream()
    expect(await read_all(far, 1) == b"!", "the first byte of a stream got lost")
    return near, far


async def read_all(stream: Stream, size: int) -> bytes:
    """Read exactly `size` bytes by `read`."""
    parts: list[bytes] = []
    while size:
        part = await stream.read(size)
        expect(0 < len(part) <= size, f"read({size}) returned {len(part)} bytes")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes that repeat after a prime length, so that lost, doubled and swapped blocks show."""
    block = _block()
    block = block[seed:] + block[:seed]
    return (block * (size // len(block) + 1))[:size]


@functools.cache
def _block() -> bytes:
    return bytes((i * i + 31 * i) % 251 for i in range(65_521))
