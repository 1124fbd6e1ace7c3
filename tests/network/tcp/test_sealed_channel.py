"""A sealed connection over a transport that the test has in hand."""

from __future__ import annotations

import asyncio
import random
from asyncio import protocols
from typing import Any

import pytest

from minga.network.interrupt import Interrupt
from minga.network.tcp.sealed_channel import IDLE_BUFFER_BYTES, READ_AHEAD_BYTES, SealedChannel
from minga.network.tcp.sealed_records import KEY_BYTES, RecordOpener, RecordSealer
from tests.network.tcp.test_sealed_records import opened, sealed


class KeepingTransport(asyncio.Transport):
    """Keeps what it cannot send as it was given, without a copy, as event loops from Python 3.12 on do."""

    def __init__(self, draws: random.Random) -> None:
        super().__init__()
        self.sent, self.paused = bytearray(), False
        self._draws, self._kept = draws, list[memoryview]()

    def write(self, data: Any) -> None:
        view = memoryview(data)
        takes = 0 if self._kept else self._draws.choice([0, view.nbytes // 3, view.nbytes])
        self.sent += view[:takes]
        if takes < view.nbytes:
            self._kept.append(view[takes:])

    def flush(self) -> None:
        for view in self._kept:
            self.sent += view
        self._kept.clear()

    def get_write_buffer_size(self) -> int:
        return sum(view.nbytes for view in self._kept)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def channel(transport: KeepingTransport, key: int) -> SealedChannel:
    own = bytes([key]) * KEY_BYTES
    return SealedChannel(transport, RecordSealer(own), RecordOpener(own, IDLE_BUFFER_BYTES))


@pytest.mark.parametrize("seed", range(2))
def test_connections_that_share_the_memory_for_sealing_do_not_disturb_each_other(seed: int) -> None:
    """What the transport of one still holds is not overwritten by what another sends meanwhile."""
    draws = random.Random(seed)

    async def main() -> None:
        transports = [KeepingTransport(draws) for _ in range(4)]
        channels = [channel(transport, key) for key, transport in enumerate(transports)]
        contents = [bytearray() for _ in transports]
        for _ in range(200):
            at = draws.randrange(len(channels))
            part = draws.randbytes(draws.choice([1, 68, 3000, 70_000]))
            contents[at] += part
            if len(part) < 100:
                channels[at].put(part)
            else:
                await channels[at].send(part[:40], memoryview(part)[40:], Interrupt())
            if draws.random() < 0.3:
                draws.choice(transports).flush()
        for key, transport in enumerate(transports):
            transport.flush()
            opener = RecordOpener(bytes([key]) * KEY_BYTES, 1 << 20)
            assert opened(opener, bytes(transport.sent), 1 << 20, 1 << 20) == contents[key]

    asyncio.run(main())


def test_what_a_loop_reads_ahead_after_it_was_asked_to_pause_is_kept() -> None:
    """The loop of Windows reads into memory of its own, and hands over all of it: an empty buffer would be an error."""

    async def main() -> None:
        transport = KeepingTransport(random.Random(1))
        made = channel(transport, 7)
        content = random.Random(2).randbytes(60_000)
        records = sealed(RecordSealer(bytes([7]) * KEY_BYTES), content)
        protocols._feed_data_to_buffered_proto(made, records)  # type: ignore[attr-defined]
        assert transport.paused
        assert made._opener.capacity <= IDLE_BUFFER_BYTES + READ_AHEAD_BYTES
        target = memoryview(bytearray(len(content)))
        assert await made.fill(target, Interrupt(), None) == len(content)
        assert target == content
        assert not transport.paused

    asyncio.run(main())
