"""Streams for bulk over TCP: the conformance suite, and what only this way must stand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from minga.core.errors import UnreachableError
from minga.network.interface import PeerId, Stream
from minga.network.iroh import network as network_module
from minga.network.iroh.connection import IrohConnection, IrohStream
from minga.network.iroh.network import IrohNetwork, NetworkSettings
from minga.network.tcp import bulk_lane
from minga.network.tcp import bulk_lane as dial_module
from minga.network.tcp import listener as listener_module
from minga.network.tcp.bulk_lane import (
    MAX_CHANNELS,
    MAX_CONTROL_BYTES,
    DialRequest,
    LaneOffer,
    TcpLane,
    TcpStream,
    encode,
)
from minga.network.tcp.listener import Certificate
from minga.network.tcp.sealed_channel import ReadBuffer
from minga.testing.network_suite import NETWORK_CHECKS
from minga.testing.suite import Check, Joined, join, pattern, read_all
from tests.network.iroh.test_iroh_network import make, networks, run

LOCAL, STRANGER = "127.0.0.1", PeerId("c" * 64)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stream goes over iroh only because this machine is busy."""
    monkeypatch.setattr(bulk_lane, "PATIENCE_S", 20.0)
    for module in (bulk_lane, dial_module, listener_module):
        monkeypatch.setattr(module, "HANDSHAKE_S", 20.0)


@pytest.mark.parametrize("check", NETWORK_CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_module, "DIAL_TIMEOUT_S", 2.0)
    opened: list[Stream] = []
    open_stream = IrohConnection.open_stream

    async def open_for_bulk(connection: IrohConnection, *, bulk: bool = True) -> Stream:
        opened.append(await open_stream(connection, bulk=True))
        return opened[-1]

    monkeypatch.setattr(IrohConnection, "open_stream", open_for_bulk)
    asyncio.run(check(make))
    over_tcp = [type(stream) is TcpStream for stream in opened]
    if check.__name__ == "check_many_streams":  # those that are too many for TCP go over iroh
        assert 2 * MAX_CHANNELS <= sum(over_tcp) <= len(over_tcp)
    else:
        assert all(over_tcp)


@contextlib.asynccontextmanager
async def joined() -> AsyncIterator[Joined]:
    async with networks(2) as (dialler, acceptor):
        yield await join(dialler, acceptor)


async def exchange(opener: Any, other: Any, *, over_tcp: bool = True) -> tuple[Stream, Stream]:
    """Open a stream for bulk and use it in both directions."""
    near = await opener.open_stream(bulk=True)
    assert type(near) is (TcpStream if over_tcp else IrohStream)
    await near.write(b"there")
    far = await other.accept_stream()
    assert await read_all(far, 5) == b"there"
    await far.write(b"back")
    assert await read_all(near, 4) == b"back"
    return near, far


async def end(near: Stream, far: Stream) -> None:
    for stream in (near, far):
        await stream.finish()
    for stream in (far, near):
        assert await stream.read(1) == b""


def lane(connection: Any) -> TcpLane:
    assert isinstance(connection, IrohConnection)
    assert connection._tcp is not None
    return connection._tcp


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


# ---- the pool


def test_a_connection_is_used_again_after_a_clean_end() -> None:
    async def main() -> None:
        async with joined() as pair:
            seen = set()
            for opener, other in 3 * ((pair.outgoing, pair.incoming), (pair.incoming, pair.outgoing)):
                near, far = await exchange(opener, other)
                seen.add(near._channel)  # type: ignore[attr-defined]
                await end(near, far)
                await near.reset()
                await far.reset()
            assert len(seen) == 2
            assert len(lane(pair.outgoing)._mine) == len(lane(pair.incoming)._mine) == 1

    run(main)


def test_small_answers_do_not_wait_for_acknowledgements_on_either_side() -> None:
    """The event loop sets TCP_NODELAY for sockets that dial alone; a request with an answer took 40 ms for that."""

    async def main() -> None:
        async with joined() as pair:
            for stream in (streams := await exchange(pair.outgoing, pair.incoming)):
                connection = stream._channel._transport.get_extra_info("socket")  # type: ignore[attr-defined]
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            await end(*streams)

    run(main)


def test_a_stream_that_was_never_used_costs_no_connection() -> None:
    async def main() -> None:
        async with joined() as pair:
            for _ in range(3):
                unused = await pair.outgoing.open_stream(bulk=True)
                await unused.reset()
            assert len(lane(pair.outgoing)._mine) == 1
            await end(*await exchange(pair.outgoing, pair.incoming))

    run(main)


def test_a_reset_stream_takes_its_connection_with_it() -> None:
    async def main() -> None:
        async with joined() as pair:
            near, far = await exchange(pair.outgoing, pair.incoming)
            await near.reset()
            with pytest.raises(UnreachableError):
                await far.read(1)
            assert not lane(pair.outgoing)._mine
            assert not lane(pair.incoming)._theirs
            await end(*await exchange(pair.outgoing, pair.incoming))

    run(main)


def test_one_that_drops_a_finished_stream_does_not_break_the_next() -> None:
    """The opener saw the end and takes the connection again, while the other side never looked for the opener's."""

    async def main() -> None:
        async with joined() as pair:
            near, far = await exchange(pair.outgoing, pair.incoming)
            await near.write(pattern(1000))
            await near.finish()
            await far.finish()
            assert await near.read(1) == b""
            await until(lambda: far._channel._opener.pending > 0)  # type: ignore[attr-defined]
            await far.reset()
            await exchange(pair.outgoing, pair.incoming)
            assert len(lane(pair.outgoing)._mine) == 1

    run(main)


async def cancel(operation: Any) -> None:
    task = asyncio.ensure_future(operation)
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait({task})


def test_a_cancelled_read_costs_no_connection_and_a_cancelled_write_its_own() -> None:
    async def main() -> None:
        async with joined() as pair:
            near, far = await exchange(pair.outgoing, pair.incoming)
            await far.write(bytes(10))
            await cancel(near.read_into(memoryview(bytearray(20))))
            await near.finish()
            await far.write(bytes(100))
            await far.finish()
            await until(lambda: near._channel._opener.pending > 100)  # type: ignore[attr-defined]
            await near.reset()
            await far.reset()
            assert len(lane(pair.outgoing)._mine) == 1
            near, far = await exchange(pair.outgoing, pair.incoming)
            assert len(lane(pair.outgoing)._mine) == 1
            await cancel(near.write(bytes(64 << 20)))
            await cancel(near.finish())
            await near.reset()
            assert not lane(pair.outgoing)._mine
            await end(*await exchange(pair.outgoing, pair.incoming))

    run(main)


def test_a_connection_is_not_used_again_after_a_cancelled_write_even_if_the_stream_ends() -> None:
    """The other side would take a part for all."""

    async def main() -> None:
        async with joined() as pair:
            near, far = await exchange(pair.outgoing, pair.incoming)
            writing = asyncio.ensure_future(near.write(bytes(64 << 20)))
            await until(lambda: near._channel._full)  # type: ignore[attr-defined]
            writing.cancel()
            await asyncio.wait({writing})
            scrap = asyncio.ensure_future(far.read_into(memoryview(bytearray(64 << 20))))
            with pytest.raises(UnreachableError):
                await near.finish()
            assert not lane(pair.outgoing)._mine
            with pytest.raises(UnreachableError):
                await scrap

    run(main)


def test_more_streams_than_connections_go_over_iroh() -> None:
    async def main() -> None:
        async with joined() as pair:
            held = [await exchange(pair.outgoing, pair.incoming) for _ in range(MAX_CHANNELS)]
            await exchange(pair.outgoing, pair.incoming, over_tcp=False)
            await exchange(pair.incoming, pair.outgoing)
            await end(*held[0])
            await exchange(pair.outgoing, pair.incoming)

    run(main)


def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_lane, "IDLE_S", 0.02)

    async def main() -> None:
        async with joined() as pair:
            await end(*await exchange(pair.outgoing, pair.incoming))
            sent = pair.outgoing.facts().bytes_sent
            await until(lambda: not lane(pair.outgoing)._mine and not lane(pair.incoming)._theirs)
            assert pair.outgoing.facts().bytes_sent >= sent
            await end(*await exchange(pair.outgoing, pair.incoming))

    run(main)


# ---- who can dial whom


def test_a_hidden_peer_is_asked_to_dial() -> None:
    async def main() -> None:
        hidden, public = await make(dialable=False), await make()
        try:
            pair = await join(hidden, public)
            assert hidden._listener is not None
            assert hidden._listener.port == 0
            await exchange(pair.incoming, pair.outgoing)
            await exchange(pair.outgoing, pair.incoming)
        finally:
            await hidden.close()
            await public.close()

    run(main)


@pytest.mark.parametrize("dialler_tcp", [True, False])
def test_without_tcp_on_one_side_everything_goes_over_iroh(dialler_tcp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_lane, "PATIENCE_S", 0.05)

    async def main() -> None:
        dialler = await IrohNetwork.open(os.urandom(32), NetworkSettings(tcp=dialler_tcp))
        acceptor = await IrohNetwork.open(os.urandom(32), NetworkSettings(tcp=not dialler_tcp))
        try:
            pair = await join(dialler, acceptor)
            for opener, other in ((pair.outgoing, pair.incoming), (pair.incoming, pair.outgoing)):
                for _ in range(2):
                    await exchange(opener, other, over_tcp=False)
        finally:
            await dialler.close()
            await acceptor.close()

    run(main)


def test_the_port_is_the_same_as_for_udp_if_it_is_free() -> None:
    async def main() -> None:
        with socket.create_server((LOCAL, 0)) as taken:
            port = taken.getsockname()[1]
            network = await IrohNetwork.open(os.urandom(32), NetworkSettings(host=LOCAL, port=port))
            assert network._listener is not None
            assert network._listener.port not in (0, port)
            await network.close()
        network = await IrohNetwork.open(os.urandom(32), NetworkSettings(host=LOCAL, port=port))
        assert network._listener is not None
        assert network._listener.port == port
        await network.close()

    run(main)


# ---- peers that lie or stall


def misled(monkeypatch: pytest.MonkeyPatch, network: IrohNetwork, **changes: Any) -> None:
    """Let the offers of one network say something else."""
    genuine = bulk_lane.LaneOffer

    def forged(port: int, certificate: bytes, word: str) -> LaneOffer:
        fields = {"port": port, "certificate": certificate, "word": word}
        assert network._listener is not None
        return genuine(**(fields | changes if certificate == network._listener.certificate.der else fields))

    monkeypatch.setattr(bulk_lane, "LaneOffer", type("LaneOffer", (), {"__new__": lambda _, *fields: forged(*fields)}))
    monkeypatch.setattr(TcpLane, "_heard", _heard_with(genuine, TcpLane._heard))


def _heard_with(genuine: Any, heard: Any) -> Any:
    def _heard(self: TcpLane, message: Any) -> None:
        forged, bulk_lane.LaneOffer = bulk_lane.LaneOffer, genuine  # `isinstance` looks for the real one
        try:
            heard(self, message)
        finally:
            bulk_lane.LaneOffer = forged  # type: ignore[misc]

    return _heard


@pytest.mark.parametrize(
    "changes",
    [
        {"certificate": Certificate(STRANGER).der},
        {"certificate": b"0" * 1024},
        {"word": "0" * 32},
        {"port": 1},
    ],
    ids=["another's", "junk", "word", "closed port"],
)
def test_what_does_not_match_is_refused_and_iroh_goes_on(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither side of the forged offer gets through: the other would ask it to dial, and does not know it either."""
    by_word = set(changes) <= {"word", "port"}  # then it proves to be itself when it dials, as it is asked to
    if not by_word:
        monkeypatch.setattr(bulk_lane, "HANDSHAKE_S", 0.3)

    async def main() -> None:
        async with joined() as pair:
            misled(monkeypatch, pair.acceptor, **changes)  # type: ignore[arg-type]
            near, far = await exchange(pair.outgoing, pair.incoming, over_tcp=by_word)
            await end(near, far)
            if not by_word:
                assert lane(pair.outgoing)._backoff.is_on
                bulk_lane.PATIENCE_S = 1e9
                await exchange(pair.outgoing, pair.incoming, over_tcp=False)

    run(main)


def test_one_that_accepts_and_stalls_in_the_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_lane, "PATIENCE_S", 0.05)

    async def main() -> None:
        with socket.create_server(("", 0)) as deaf:
            async with joined() as pair:
                misled(monkeypatch, pair.acceptor, port=deaf.getsockname()[1])  # type: ignore[arg-type]
                await exchange(pair.outgoing, pair.incoming, over_tcp=False)
                bulk_lane.PATIENCE_S = 1e9  # known to be late by now: nobody waits
                await exchange(pair.outgoing, pair.incoming, over_tcp=False)

    run(main)


def test_one_that_stalls_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gives up a stream that was silent goes on over iroh."""
    monkeypatch.setattr(bulk_lane, "STALL_S", 0.01)
    monkeypatch.setattr(IrohConnection, "round_trip_s", 0.0)

    async def main() -> None:
        async with joined() as pair:
            idle = await exchange(pair.outgoing, pair.incoming)
            near, far = await exchange(pair.outgoing, pair.incoming)
            await end(*idle)
            reading = asyncio.ensure_future(near.read(1))
            await until(lambda: near._channel.stalled_s > 0.05)  # type: ignore[attr-defined]
            await near.reset()
            with pytest.raises(UnreachableError):
                await reading
            with pytest.raises(UnreachableError):
                await far.read(1)
            assert near._channel not in lane(pair.outgoing)._mine  # type: ignore[attr-defined]
            await exchange(pair.outgoing, pair.incoming, over_tcp=False)

    run(main)


def test_bytes_changed_on_the_way_end_the_stream() -> None:
    async def main() -> None:
        async with joined() as pair:
            near, far = await exchange(pair.outgoing, pair.incoming)
            near._channel._transport.write(b"\x00\x00\x00\x10" + bytes(32))  # type: ignore[attr-defined]
            with pytest.raises(UnreachableError, match="not sealed"):
                await far.read(1)
            with pytest.raises(UnreachableError):
                await near.read(1)
            await exchange(pair.outgoing, pair.incoming)

    run(main)


NONSENSE = [
    b"",
    b"\xc1",
    b"\x80",
    random.Random(1).randbytes(100),
    encode(DialRequest()),
    encode(DialRequest()) + b"x",
    bytes(MAX_CONTROL_BYTES + 1),
]


def test_nonsense_about_tcp_is_dropped() -> None:
    async def main() -> None:
        async with joined() as pair:
            for body in NONSENSE * 20:
                await pair.outgoing.send_control(body)  # type: ignore[attr-defined]
            near = await pair.outgoing.open_stream()
            await near.write(b"fine")
            assert await read_all(await pair.incoming.accept_stream(), 4) == b"fine"
            assert not lane(pair.incoming)._theirs

    run(main)


# ---- strangers at the port


async def knock(port: int, context: ssl.SSLContext | None, name: str | None) -> bytes:
    """Connect as a stranger; what the port says until it hangs up."""
    reader, writer = await asyncio.open_connection(LOCAL, port, ssl=context, server_hostname=name)
    writer.write(b"\0hello")
    try:
        return await reader.read()
    finally:
        writer.close()


def test_strangers_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with joined() as pair:
            held = await exchange(pair.outgoing, pair.incoming)
            listener = pair.acceptor._listener  # type: ignore[attr-defined]
            word = lane(pair.incoming)._word
            own, known = Certificate(STRANGER), listener.certificate.der
            anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            anonymous.check_hostname, anonymous.verify_mode = False, ssl.CERT_NONE
            for context, name in (
                (None, None),
                (anonymous, ""),
                (anonymous, "example.org"),
                (anonymous, word),
                (own.client_context(known), "f" * 32),
                (own.client_context(known), word),
            ):
                with contextlib.suppress(OSError):
                    assert await knock(listener.port, context, name) == b""
            await until(lambda: not listener._tasks)
            assert len(lane(pair.incoming)._theirs) == 1
            await end(*held)

    run(main)


def test_half_open_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_HALF_OPEN", 4)

    async def main() -> None:
        async with joined() as pair:
            listener = pair.acceptor._listener  # type: ignore[attr-defined]
            crowd = [await asyncio.open_connection(LOCAL, listener.port) for _ in range(12)]
            for reader, _ in crowd[:8]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            assert len(listener._welcoming) == 4
            await exchange(pair.outgoing, pair.incoming)
            for _, writer in crowd:
                writer.close()

    run(main)


def test_what_came_of_a_record_is_told_before_it_can_be_decrypted() -> None:
    told: list[int] = []
    placed: list[int] = []
    filling = ReadBuffer(memoryview(bytearray(20_000)), told.append, placed.append)
    for size, came in ((0, 10_000), (16_384, 7_000), (0, 3_500), (3_616, 200)):
        filling.filled(size, came=came)
    assert told == [10_000, 7_000, 3_000]
    assert placed == [16_384, 3_616]
    assert filling.rest.nbytes == 0


def test_the_head_of_a_frame_can_be_read_before_its_body_is_there() -> None:
    class Channel:
        def __init__(self) -> None:
            self.sent, self.lost = list[tuple[int, int]](), None

        def use(self, *, busy: bool) -> None:
            pass

        async def send(self, first: bytes, rest: memoryview, _: object, *, is_last: bool) -> None:
            self.sent.append((len(first), rest.nbytes))

    async def main() -> None:
        channel: Any = Channel()
        stream = TcpStream(channel, channel, opened_here=True)
        await stream.write(b"head!")
        await stream.write(bytes(16_384))
        assert [first + rest for first, rest in channel.sent] == [5 + 16_384]
        assert channel.sent[0][0] < 1_400, "a record that fits into one packet"

    asyncio.run(main())


def test_a_connection_that_nobody_uses_is_read_from() -> None:
    """Else its loss would be noticed by the next who uses it."""

    async def main() -> None:
        async with joined() as pair:
            near, far = await exchange(pair.outgoing, pair.incoming)
            assert isinstance(far, TcpStream)
            channel = far._channel
            await near.write(bytes(1 << 20))
            await until(lambda: channel._paused)
            scrap = memoryview(bytearray(1 << 20))
            channel.use(busy=False)
            assert not channel._paused
            await far.read_into(scrap)
            await end(near, far)

    run(main)


def test_a_connection_that_breaks_in_a_large_write_ends_the_stream_without_noise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The event loop tells of the loss in its next turn only, and until then would complain about every piece."""

    async def main() -> None:
        async with joined() as pair:
            near, _ = await exchange(pair.outgoing, pair.incoming)
            assert isinstance(near, TcpStream)
            near._channel._transport.get_extra_info("socket").shutdown(socket.SHUT_WR)  # type: ignore[union-attr]
            with pytest.raises(UnreachableError):
                await near.write(bytes(8 << 20))

    run(main)
    assert not [record for record in caplog.records if record.name == "asyncio"]
