"""A man in the middle of a TCP connection: TLS passes him, and with sealed records he does what he likes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from minga.network.interface import PeerId
from minga.network.tcp.bulk_lane import DIALLER_OPENS, WELCOME, LaneOffer, dial
from minga.network.tcp.greeting import TcpGreeting
from minga.network.tcp.listener import TcpListener
from minga.network.tcp.sealed_channel import SealedChannel
from minga.network.tcp.sealed_records import TAG_BYTES

LOCAL, WORD = "127.0.0.1", "0" * 32
THERE, BACK = 0, 1

Attack = Callable[[int, int, bytes], Sequence[bytes]]
"""What goes on in place of a record: called with its way (`THERE` from the dialler), its number and the record."""


def pass_on(_: int, __: int, record: bytes) -> Sequence[bytes]:
    return (record,)


class HostileWire:
    """Passes on what connects to `port`; `records` are the sealed ones that came, for each way."""

    def __init__(self, attack: Attack) -> None:
        self.attack, self.port = attack, 0
        self.reading = asyncio.Event()
        """Cleared as long as the wire takes nothing further."""
        self.reading.set()
        self.records: tuple[list[bytes], list[bytes]] = ([], [])
        self._writers: list[asyncio.StreamWriter | None] = [None, None]
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    async def listen(self, target_port: int) -> None:
        async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            other_reader, other_writer = await asyncio.open_connection(LOCAL, target_port)
            self._writers[:] = other_writer, writer
            for way, source in enumerate((reader, other_reader)):
                self._tasks.append(asyncio.ensure_future(self._carry(way, source)))

        self._server = await asyncio.start_server(begin, LOCAL, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def inject(self, way: int, data: bytes) -> None:
        writer = self._writers[way]
        assert writer is not None
        writer.write(data)

    def cut(self) -> None:
        """End the connection at both ends, in order as a process does that ends."""
        for writer in self._writers:
            if writer is not None:
                writer.close()

    async def close(self) -> None:
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _carry(self, way: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self.reading.wait():
                first = await reader.readexactly(1)
                if first != b"\0":  # a record of TLS has a type there, a sealed one the highest byte of its length
                    head = first + await reader.readexactly(4)
                    self.inject(way, head + await reader.readexactly(int.from_bytes(head[3:], "big")))
                    continue
                head = first + await reader.readexactly(3)
                record = head + await reader.readexactly(int.from_bytes(head, "big") + TAG_BYTES)
                self.records[way].append(record)
                for part in self.attack(way, len(self.records[way]) - 1, record):
                    self.inject(way, part)
        self.cut()


@contextlib.asynccontextmanager
async def attacked(attack: Attack = pass_on) -> AsyncIterator[tuple[SealedChannel, SealedChannel, HostileWire]]:
    """The side that dialled, the other one, and the wire between them."""
    here, there = PeerId("a" * 64), PeerId("b" * 64)
    dialler, listener = await TcpListener.make(here, [], 0), await TcpListener.make(there, [LOCAL], 0)
    assert dialler is not None
    assert listener is not None
    taken: asyncio.Future[SealedChannel] = asyncio.get_running_loop().create_future()

    def adopt(greeting: TcpGreeting, _: int) -> bool:
        taken.set_result(greeting.welcome(WELCOME))
        return True

    listener.invite(WORD, dialler.certificate.der, adopt)
    wire = HostileWire(attack)
    await wire.listen(listener.port)
    offer = LaneOffer(wire.port, listener.certificate.der, WORD)
    near = await dial(LOCAL, offer, dialler.certificate.client_context(offer.certificate), DIALLER_OPENS)
    far = await taken
    try:
        yield near, far, wire
    finally:
        near.abort()
        far.abort()
        await wire.close()
        await listener.close()
