"""The beginning of a connection, as a peer sees it that means no good, or a line that breaks."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from minga.network.interface import PeerId
from minga.network.interrupt import Interrupt
from minga.network.tcp import listener as listener_module
from minga.network.tcp.bulk_lane import WELCOME
from minga.network.tcp.greeting import TcpGreeting
from minga.network.tcp.listener import Certificate, TcpListener, check_owner
from minga.network.tcp.sealed_channel import SealedChannel
from minga.network.tcp.sealed_records import RecordSealer
from tests.network.iroh.test_iroh_network import run
from tests.network.tcp.test_sealed_records import sealed
from tests.network.tcp.test_tcp_network import exchange, joined, lane, misled
from tests.worlds.hostile_wire import LOCAL, WORD

HERE, THERE = PeerId("a" * 64), PeerId("b" * 64)


@contextlib.asynccontextmanager
async def invited() -> AsyncIterator[tuple[TcpGreeting, TcpListener, list[SealedChannel]]]:
    """A guest after the TLS handshake, its host, and the channels that the host took."""
    guest, host = Certificate(HERE), await TcpListener.make(THERE, [LOCAL], 0)
    assert host is not None
    taken: list[SealedChannel] = []

    def adopt(greeting: TcpGreeting, _: int) -> bool:
        taken.append(greeting.welcome(WELCOME))
        return True

    host.invite(WORD, guest.der, adopt)
    context = guest.client_context(host.certificate.der)
    greeting = TcpGreeting(lambda arrived, unsent: context.wrap_bio(arrived, unsent, server_hostname=WORD))
    await asyncio.get_running_loop().create_connection(lambda: greeting, LOCAL, host.port)
    await greeting.shake_hands()
    try:
        yield greeting, host, taken
    finally:
        await greeting.close()
        for channel in taken:
            channel.abort()
        await host.close()


async def is_hung_up_on(greeting: TcpGreeting) -> None:
    with contextlib.suppress(ConnectionError):
        await greeting._agree(greeting._exchange.hear)
        await greeting._gone


def test_a_guest_that_never_says_its_word_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "HANDSHAKE_S", 0.2)

    async def main() -> None:
        async with invited() as (greeting, host, taken):
            greeting._exchange.tls.write(b"\0" + bytes(31))  # a byte of the key is missing
            greeting._flush()
            await is_hung_up_on(greeting)
            assert not taken
            assert not host._welcoming

    run(main)


def test_a_guest_that_says_more_than_a_word_is_sent_away() -> None:
    async def main() -> None:
        async with invited() as (greeting, _, taken):
            greeting._exchange.tls.write(b"\0" + bytes(32) + b"and more")
            greeting._flush()
            await is_hung_up_on(greeting)
            assert not taken

    run(main)


def test_a_guest_that_floods_the_handshake_costs_a_few_records_and_no_more() -> None:
    async def main() -> None:
        async with invited() as (greeting, host, taken):
            for _ in range(200):
                greeting._exchange.tls.write(b"\0" + bytes(16_000))
            greeting._flush()
            (seen,) = host._welcoming.values()
            await is_hung_up_on(greeting)
            assert not taken
            assert seen._bytes_received < 100_000

    run(main)


def test_records_before_the_welcome_are_opened_after_it() -> None:
    """What comes in one packet with the word, and goes on in the next, loses no byte on the way from TLS to records."""

    async def main() -> None:
        async with invited() as (greeting, _, taken):
            draws = random.Random(1)
            content = draws.randbytes(20_000)
            greeting._exchange.say(b"\0")
            sealer = RecordSealer(greeting._exchange.key)
            data = greeting._exchange.unsent() + sealed(sealer, content)
            transport = greeting._transport
            assert transport is not None
            for start in range(0, len(data), 7_001):
                transport.write(data[start : start + 7_001])
                await asyncio.sleep(0.002)
            while not taken:
                await asyncio.sleep(0.002)
            target = memoryview(bytearray(len(content)))
            assert await taken[0].fill(target, Interrupt(), None) == len(content)
            assert target == content

    run(main)


# ---- a certificate names its peer


def test_a_peer_that_passes_a_connection_back_is_not_taken_for_another() -> None:
    """It tells the other side's own port, certificate and word as its own: without names, that side would dial itself
    and take itself for the peer, with TLS fulfilled at both ends.
    """

    async def main() -> None:
        async with joined() as pair:
            own = pair.dialler._listener  # type: ignore[attr-defined]
            with pytest.MonkeyPatch.context() as patch:
                forged = {"port": own.port, "certificate": own.certificate.der, "word": lane(pair.outgoing)._word}
                misled(patch, pair.acceptor, **forged)  # type: ignore[arg-type]
                await exchange(pair.outgoing, pair.incoming, over_tcp=False)
            assert not lane(pair.outgoing)._mine
            assert not lane(pair.outgoing)._theirs

    run(main)


def test_a_certificate_is_good_for_the_peer_that_it_names() -> None:
    certificate = Certificate(HERE).der
    check_owner(certificate, HERE)
    for other in (certificate, Certificate(PeerId("minga")).der, b""):
        with pytest.raises(ValueError, match="does not name it"):
            check_owner(other, THERE)
