"""What a man in the middle can do to sealed records: end the connection, and nothing else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from minga.core.errors import MingaError, UnreachableError
from minga.network.interface import PeerId
from minga.network.interrupt import Interrupt
from minga.network.tcp.bulk_lane import TcpStream
from minga.network.tcp.sealed_channel import SealedChannel
from tests.network.iroh.test_iroh_network import run
from tests.worlds.hostile_wire import BACK, THERE, Attack, attacked

CONTENTS = [random.Random(1).randbytes(size) for size in (900, 1, 5000, 900)]


class Owner:
    """Has the one connection of a stream."""

    peer_id = PeerId("b" * 64)
    clean: bool | None = None

    def explain(self, what: str) -> MingaError:
        return UnreachableError(what, peer=self.peer_id)

    def released(self, stream: TcpStream, channel: SealedChannel, *, clean: bool, stalled_s: float) -> None:
        self.clean = clean


async def send(channel: SealedChannel, contents: Sequence[bytes]) -> None:
    for content in contents:
        await channel.send(content, memoryview(b""), Interrupt())


async def read(channel: SealedChannel, size: int) -> bytes:
    """As many bytes, or what comes before the connection is lost."""
    target = memoryview(bytearray(size))
    return bytes(target[: await channel.fill(target, Interrupt(), None)])


def flipped(place: int) -> Attack:
    def attack(_: int, number: int, record: bytes) -> Sequence[bytes]:
        changed = bytearray(record)
        changed[place] ^= 1
        return (record if number != 1 else bytes(changed),)

    return attack


def held_back() -> Attack:
    held: list[bytes] = []

    def swap(_: int, number: int, record: bytes) -> Sequence[bytes]:
        if number == 1:
            held.append(record)
            return ()
        return (record, *held) if number == 2 else (record,)

    return swap


def longer(_: int, number: int, record: bytes) -> Sequence[bytes]:
    return (record if number != 1 else (len(record) + 4).to_bytes(4, "big") + record[4:],)


ATTACKS: dict[str, Attack] = {
    "length": flipped(3),
    "content": flipped(4),
    "tag": flipped(-1),
    "longer": longer,
    "dropped": lambda _, number, record: () if number == 1 else (record,),
    "repeated": lambda _, number, record: (record, record) if number == 1 else (record,),
    "reordered": held_back(),
    "split": lambda _, number, record: (record[:-1], b"\0" + record[-1:]) if number == 1 else (record,),
    "inserted": lambda _, number, record: (record, bytes(3) + b"\1" + bytes(17)) if number == 0 else (record,),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_what_is_read_is_the_beginning_of_what_was_sent_and_then_the_connection_is_lost(attack: Attack) -> None:
    async def main() -> None:
        async with attacked(attack) as (near, far, _):
            await send(near, CONTENTS)
            whole = b"".join(CONTENTS)
            got = await read(far, len(whole) + 1)
            assert got in (b"", CONTENTS[0], CONTENTS[0] + CONTENTS[1])
            assert far.lost is not None
            assert await read(far, 1) == b"", "nothing comes out any more"

    run(main)


def test_a_record_is_good_for_one_direction_of_one_connection() -> None:
    """Reflected, from an earlier connection of the same two peers, and from another one at the same time."""

    async def main() -> None:
        async with attacked() as (near, far, wire):
            await send(near, CONTENTS[:1])
            await send(far, CONTENTS[:1])
            assert await read(far, len(CONTENTS[0])) == await read(near, len(CONTENTS[0])) == CONTENTS[0]
            assert wire.records[THERE] != wire.records[BACK]
            past = [*wire.records[THERE], *wire.records[BACK]]
            async with attacked() as (_, later, other):
                other.inject(THERE, past[0])
                assert await read(later, 1) == b""
            async with attacked() as (_, later, other):
                other.inject(THERE, past[1])
                assert await read(later, 1) == b""
            wire.attack = lambda *_: ()
            await send(near, CONTENTS[:1])
            while len(wire.records[THERE]) < 2:
                await asyncio.sleep(0.001)
            wire.inject(BACK, wire.records[THERE][-1])
            assert await read(near, 1) == b""
            assert near.lost == "a record was not sealed by the other side"

    run(main)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_end_of_a_stream_is_no_cut_and_a_cut_no_end(keep: int) -> None:
    """A stream of three records, the last of which says the end: only with all three is it over."""

    async def main() -> None:
        async with attacked() as (near, far, wire):

            def attack(way: int, number: int, record: bytes) -> Sequence[bytes]:
                if number + 1 == keep:
                    asyncio.get_running_loop().call_soon(wire.cut)
                return (record,) if number < keep else ()

            wire.attack = attack
            owner = Owner()
            writing, reading = TcpStream(owner, near, opened_here=True), TcpStream(owner, far, opened_here=False)
            for content in (b"a" * 100, b"b" * 100):
                await writing.write(content)
            await writing.finish()
            got = bytearray()
            try:
                while part := await reading.read(1000):
                    got += part
                assert keep == 3
            except UnreachableError:
                assert keep < 3
            assert bytes(got) == (b"a" * 100 + b"b" * 100)[: 100 * keep]
            assert owner.clean is not True

    run(main)


def test_a_peer_that_ends_its_side_and_does_not_read_does_not_hold_up_a_writer() -> None:
    """What waits for it is given up at once, not when it takes the rest, which may be never."""

    async def main() -> None:
        async with attacked() as (near, _, wire):
            wire.reading.clear()
            writing = asyncio.ensure_future(near.send(b"", memoryview(bytes(64 << 20)), Interrupt()))
            stuck = 0
            while stuck < 20:  # until the kernels take no more
                sent = near.bytes_sent
                await asyncio.sleep(0.005)
                stuck = stuck + 1 if near._full and near.bytes_sent == sent else 0
            writer = wire._writers[BACK]
            assert writer is not None
            writer.write_eof()
            async with asyncio.timeout(20):
                await writing
            assert near.ended_there

    run(main)
