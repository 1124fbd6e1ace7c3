"""The conformance suite of the network seam: what every `Network` must do.

Give `check_network` a function that makes networks able to reach each other, on a running event loop of any kind:

    async def make(*, dialable: bool = True) -> Network: ...
    await check_network(make)

or run the members of `NETWORK_CHECKS` one by one. A check fails by `AssertionError`, by `TimeoutError`, or by the
error that the network raised where none was due.
"""

from __future__ import annotations

import asyncio
import math
import string

from minga.core.errors import ClosedError, UnreachableError
from minga.network.interface import Address, Connection
from minga.testing.stream_suite import STREAM_CHECKS
from minga.testing.suite import (
    GONE,
    Check,
    MakeNetwork,
    check,
    expect,
    expect_error,
    expect_pending,
    join,
    joined,
    pattern,
    read_all,
    stream_pair,
)


@check
async def check_authenticated_ids(make: MakeNetwork) -> None:
    """Both ends of a connection know the id of the other."""
    pair = await joined(make)
    for network in (pair.dialler, pair.acceptor):
        identity = network.peer_id
        expect(len(identity) == 64 and set(identity) <= set(string.hexdigits.lower()), f"odd peer id {identity}")
        expect(network.address.peer_id == identity, "the address names another peer")
        expect(network.address.dialable, "a dialable network has no address to dial")
        expect(network.wall_time() > 1.6e9, "wall_time is not in Unix seconds")
        earlier_s = network.steady_time()
        expect(earlier_s <= network.steady_time(), "steady_time goes back")
    expect(pair.dialler.peer_id != pair.acceptor.peer_id, "two networks share a key")
    expect(pair.outgoing.peer_id == pair.acceptor.peer_id, "the dialler sees a wrong id")
    expect(pair.incoming.peer_id == pair.dialler.peer_id, "the acceptor sees a wrong id")


@check
async def check_wrong_key(make: MakeNetwork) -> None:
    """An address that leads to another peer's key is refused, and the peer that really is there stays usable."""
    dialler, impostor, victim = await make(), await make(), await make()
    forged = Address(victim.peer_id, impostor.address.direct, impostor.address.relay)
    await victim.close()
    await expect_error(UnreachableError, dialler.connect(forged), "dialling an address with another's key")
    await join(dialler, impostor)


@check
async def check_dead_address(make: MakeNetwork) -> None:
    """Nobody at the address, no address at all, and an address that is none are all errors, not hangs."""
    dialler, gone = await make(), await make()
    dead = gone.address
    await gone.close()
    await expect_error(UnreachableError, dialler.connect(dead), "dialling a peer that is gone")
    await expect_error(UnreachableError, dialler.connect(Address(dead.peer_id)), "dialling without an address")
    nonsense = Address(dead.peer_id, ("nowhere:99999999",))
    await expect_error(UnreachableError, dialler.connect(nonsense), "dialling an address that is none")


@check
async def check_many_peers(make: MakeNetwork) -> None:
    """One network serves several others at once and does not mix them."""
    hub = await make()
    others = [await make() for _ in range(4)]

    async def call(number: int) -> None:
        connection = await others[number].connect(hub.address)
        stream = await connection.open_stream()
        await stream.write(others[number].peer_id.encode())
        expect(await read_all(stream, 64) == others[number].peer_id.encode(), "the hub answered for another peer")

    async def serve() -> None:
        connections: list[Connection] = []
        for _ in others:
            connections.append(connection := await hub.accept())
            stream = await connection.accept_stream()
            said = await read_all(stream, 64)
            expect(said == connection.peer_id.encode(), "a connection carries another peer's bytes")
            await stream.write(said)

    await asyncio.gather(serve(), *(call(number) for number in range(len(others))))


@check
async def check_not_dialable(make: MakeNetwork) -> None:
    """A network that cannot be dialled says so; once it has dialled, it serves streams that the other side opens."""
    hidden, public = await make(dialable=False), await make()
    expect(not hidden.address.dialable, "a network that cannot be dialled gives an address to dial")
    await expect_error(UnreachableError, public.connect(hidden.address), "dialling a peer that cannot be dialled")
    pair = await join(hidden, public)
    expect(pair.incoming.peer_id == hidden.peer_id, "the acceptor sees a wrong id")
    near, far = await stream_pair(pair.incoming, pair.outgoing)
    await near.write(b"served?")
    expect(await read_all(far, 7) == b"served?", "a hidden peer reads wrong bytes")
    await far.write(b"served")
    expect(await read_all(near, 6) == b"served", "a hidden peer serves wrong bytes")


@check
async def check_facts(make: MakeNetwork) -> None:
    """Facts are plausible, and the bytes of a transfer show on both sides."""
    pair = await joined(make)
    near, far = await stream_pair(pair.outgoing, pair.incoming)
    sent_before, received_before = pair.outgoing.facts().bytes_sent, pair.incoming.facts().bytes_received
    size = 1 << 20
    await asyncio.gather(near.write(pattern(size)), far.read_into(memoryview(bytearray(size))))
    await far.write(b"done")
    await read_all(near, 4)
    sent, received = pair.outgoing.facts(), pair.incoming.facts()
    expect(sent.bytes_sent - sent_before >= size, "bytes_sent does not count a transfer")
    expect(received.bytes_received - received_before >= size, "bytes_received does not count a transfer")
    for facts in (sent, received):
        round_trip = facts.round_trip_s
        expect(round_trip is None or (math.isfinite(round_trip) and 0 <= round_trip < 10), "odd round-trip time")
        expect(facts.path in ("direct", "relayed", "unknown"), f"unknown kind of path {facts.path}")


@check
async def check_cancelled_accept(make: MakeNetwork) -> None:
    """A cancelled `accept` or `accept_stream` loses neither the next connection nor the next stream."""
    dialler, acceptor = await make(), await make()
    accepting = asyncio.ensure_future(acceptor.accept())
    await expect_pending(accepting, "accept with nobody dialling")
    accepting.cancel()
    await asyncio.wait({accepting})
    expect(accepting.cancelled(), "accept swallowed its cancellation")
    pair = await join(dialler, acceptor)
    for opener, other in ((pair.outgoing, pair.incoming), (pair.incoming, pair.outgoing)):
        waiting = asyncio.ensure_future(other.accept_stream())
        await expect_pending(waiting, "accept_stream with no stream opened")
        waiting.cancel()
        await asyncio.wait({waiting})
        expect(waiting.cancelled(), "accept_stream swallowed its cancellation")
        await stream_pair(opener, other)


@check
async def check_connection_close(make: MakeNetwork) -> None:
    """Closing a connection ends everything pending on both sides; a new one can be made."""
    pair = await joined(make)
    for closer, other in (("outgoing", "incoming"), ("incoming", "outgoing")):
        here: Connection = getattr(pair, closer)
        there: Connection = getattr(pair, other)
        near, far = await stream_pair(here, there)
        expect(not here.is_closed and not there.is_closed, "an open connection says it is closed")
        pending = [asyncio.ensure_future(operation) for operation in (near.read(1), here.accept_stream())]
        remote = [asyncio.ensure_future(operation) for operation in (far.read(1), there.accept_stream())]
        for task in (*pending, *remote):
            await expect_pending(task, "an operation with nothing to do", seconds=0.02)
        await here.close()
        await here.close()
        for task in (*pending, *remote):
            await expect_error(UnreachableError, task, "an operation on a connection that was closed")
        expect(here.is_closed and there.is_closed, "a closed connection says it is open")
        for connection in (here, there):
            await expect_error(UnreachableError, connection.open_stream(), "open_stream after close")
            await expect_error(UnreachableError, connection.accept_stream(), "accept_stream after close")
        for stream in (near, far):
            await expect_error(UnreachableError, stream.read(1), "read after close")
            await expect_error(UnreachableError, stream.write(b"x"), "write after close")
            await stream.reset()
        await there.close()
        pair = await join(pair.dialler, pair.acceptor)


@check
async def check_network_close(make: MakeNetwork) -> None:
    """Closing a network says goodbye to the others, ends everything here, and may be done twice."""
    pair = await joined(make)
    near, far = await stream_pair(pair.outgoing, pair.incoming)
    accepting = asyncio.ensure_future(pair.dialler.accept())
    reading = asyncio.ensure_future(near.read(1))
    remote = asyncio.ensure_future(far.read(1))
    await expect_pending(accepting, "accept with nobody dialling")
    await pair.dialler.close()
    await pair.dialler.close()
    await expect_error(ClosedError, accepting, "a pending accept on a closed network")
    await expect_error(GONE, reading, "a pending read on a closed network")
    await expect_error(UnreachableError, remote, "a read at the other side of a closed network")
    await expect_error(ClosedError, pair.dialler.accept(), "accept on a closed network")
    await expect_error(ClosedError, pair.dialler.connect(pair.acceptor.address), "connect on a closed network")
    await expect_error(GONE, pair.outgoing.open_stream(), "open_stream on a closed network")
    await expect_error(GONE, near.write(b"x"), "write on a closed network")
    expect(pair.outgoing.is_closed and pair.incoming.is_closed, "a closed network's connection says it is open")
    await join(await make(), pair.acceptor)


NETWORK_CHECKS: tuple[Check, ...] = (
    check_authenticated_ids,
    check_wrong_key,
    check_dead_address,
    check_many_peers,
    check_not_dialable,
    check_facts,
    check_cancelled_accept,
    check_connection_close,
    check_network_close,
    *STREAM_CHECKS,
)


async def check_network(make: MakeNetwork) -> None:
    """Run every check in turn, each on networks of its own. Raises the first failure, named in a note."""
    for one in NETWORK_CHECKS:
        try:
            await one(make)
        except Exception as error:
            error.add_note(f"while running {getattr(one, '__name__', one)}")
            raise
