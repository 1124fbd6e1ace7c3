"""The real network: the conformance suite, and what only the real one must stand."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import iroh
import pytest
from iroh import iroh_ffi

from minga.core.errors import ClosedError, ConfigurationError, UnreachableError
from minga.network.interface import Address, Connection, LinkFacts, PeerId
from minga.network.iroh import connection as connection_module
from minga.network.iroh import ffi_bytes
from minga.network.iroh import network as network_module
from minga.network.iroh.connection import ABORT, ANSWER, HEADER, OPEN, PATH_AGE_S, SAMPLES, IrohConnection, IrohStream
from minga.network.iroh.network import ALPN, IrohNetwork, NetworkSettings
from minga.testing.network_suite import NETWORK_CHECKS
from minga.testing.suite import Check, join, read_all, stream_pair

TOKEN = b"sixteen bytes it"


async def make(*, dialable: bool = True) -> IrohNetwork:
    return await IrohNetwork.open(os.urandom(32), NetworkSettings(dialable=dialable))


def run(main: Callable[[], Coroutine[Any, Any, None]], *, seconds: float = 50) -> None:
    """Run on a fresh loop in debug mode, and fail if a task is left or the loop heard of an error that nobody took."""
    problems: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        async with asyncio.timeout(seconds):
            await main()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(watched(), debug=True)
    gc.collect()
    assert not problems
    assert not ffi_bytes._waits


@contextlib.asynccontextmanager
async def networks(count: int) -> AsyncIterator[list[IrohNetwork]]:
    made = [await make() for _ in range(count)]
    try:
        yield made
    finally:
        for network in made:
            await network.close()


@pytest.mark.parametrize("check", NETWORK_CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    if check.__name__ == "check_dead_address":
        monkeypatch.setattr(network_module, "DIAL_TIMEOUT_S", 2.0)
    asyncio.run(check(make))


# ---- settings and addresses


@pytest.mark.parametrize(
    "fields",
    [
        {"relay": "some"},
        {"relay": ()},
        {"relay": ("ftp://relay.example",)},
        {"relay": ("https://",)},
        {"relay": ("https://[",)},
        {"relay": (7,)},
        {"host": "localhost"},
        {"host": ""},
        {"port": -1},
        {"port": 65536},
        {"port": "80"},
        {"port": True},
    ],
)
def test_bad_settings_are_named(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(fields))):
        NetworkSettings(**fields)


@pytest.mark.parametrize("key", [bytes(31), "a" * 32])
def test_bad_key(key: Any) -> None:
    async def main() -> None:
        with pytest.raises(ConfigurationError, match="32 bytes"):
            await IrohNetwork.open(key)

    run(main)


def test_a_port_in_use_is_a_configuration_error() -> None:
    async def main() -> None:
        async with networks(1) as (network,):
            port = int(network.address.direct[-1].rpartition(":")[2])
            with pytest.raises(ConfigurationError, match=f"with port {port} on"):
                await IrohNetwork.open(os.urandom(32), NetworkSettings(host="0.0.0.0", port=port))

    run(main)


def test_the_key_makes_the_id_and_the_address_is_complete() -> None:
    async def main() -> None:
        network = await IrohNetwork.open(bytes(range(32)), NetworkSettings())
        assert network.peer_id == "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
        address = network.address
        assert address.relay is None
        assert any(text.startswith("127.0.0.1:") for text in address.direct)
        assert all(network_module._is_socket_address(text) for text in address.direct)
        await network.close()
        assert not network.address.dialable

    run(main)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(
    ("host", "own", "aside"),
    [("127.0.0.1", "127.0.0.1", "[::1]"), ("::1", "[::1]", "127.0.0.1"), ("::", "[::]", "127.0.0.1")],
)
def test_a_host_is_bound_and_told_and_nothing_else(host: str, own: str, aside: str) -> None:
    """The other IP version, without which iroh does not go, stays on this machine. iroh may prefer it for two peers of
    one machine, so TCP is there, too.
    """

    async def main() -> None:
        settings = NetworkSettings(host=host)
        network, other = (
            await IrohNetwork.open(os.urandom(32), settings),
            await IrohNetwork.open(os.urandom(32), settings),
        )
        try:
            bound = dict(text.rsplit(":", 1) for text in network._endpoint.bound_sockets())
            assert bound.keys() == {own, aside}
            told = [text.rpartition(":") for text in network.address.direct]
            assert {port for _, _, port in told} == {bound[own]}
            assert all(ip.startswith("[") == (":" in host) for ip, _, _ in told)
            assert own in [ip for ip, _, _ in told] or (own == "[::]" and "[::1]" in [ip for ip, _, _ in told])
            for ip in bound:
                _, writer = await asyncio.open_connection(ip.strip("[]"), network._listener.port)  # type: ignore[union-attr]
                writer.close()
                await writer.wait_closed()
            await join(other, network)
        finally:
            await network.close()
            await other.close()

    run(main)


def test_announced_addresses_come_first_and_take_the_bound_port_where_they_name_none() -> None:
    announced = ("203.0.113.7", "203.0.113.8:4433", "2001:db8::7", "203.0.113.7")

    async def main() -> None:
        settings = NetworkSettings(host="127.0.0.1", announce=announced)
        network = await IrohNetwork.open(os.urandom(32), settings)
        try:
            direct = network.address.direct
            port = direct[-1].rpartition(":")[2]
            assert direct == (
                f"203.0.113.7:{port}",
                "203.0.113.8:4433",
                f"[2001:db8::7]:{port}",
                f"127.0.0.1:{port}",
            )
            other = await make()
            await join(other, network)  # addresses at which nobody answers do not keep others out
            await other.close()
        finally:
            await network.close()

    run(main)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("is_given", [True, False])
def test_a_port_holds_for_both_ip_versions_and_an_announced_address_takes_that_of_its_own(is_given: bool) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:  # of both versions
        probe.bind(("::", 0))
        free = probe.getsockname()[1]

    async def main() -> None:
        settings = NetworkSettings(port=free if is_given else 0, announce=("2001:db8::7", "203.0.113.7"))
        network = await IrohNetwork.open(os.urandom(32), settings)
        try:
            bound = dict(text.rsplit(":", 1) for text in network._endpoint.bound_sockets())
            if is_given:
                assert set(bound.values()) == {str(free)}
            assert network.address.direct[:2] == (f"[2001:db8::7]:{bound['[::]']}", f"203.0.113.7:{bound['0.0.0.0']}")
        finally:
            await network.close()

    run(main)


@pytest.mark.parametrize("text", ["", "example.org", "203.0.113.7:0", "203.0.113.7:99999", "0.0.0.0:1", "[::]:1"])
def test_an_announced_address_has_to_be_one(text: str) -> None:
    with pytest.raises(ConfigurationError, match="announce"):
        NetworkSettings(announce=(text,))


def test_a_relay_that_does_not_answer_only_delays_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_module, "RELAY_TIMEOUT_S", 0.2)

    async def main() -> None:
        relayed = await IrohNetwork.open(os.urandom(32), NetworkSettings(relay=("https://127.0.0.1:9/",)))
        other = await make()
        await join(other, relayed)
        await other.close()
        await relayed.close()

    run(main)


@pytest.mark.parametrize(
    "address",
    [
        Address(PeerId("ab" * 32), ("127.0.0.1:9",)),  # no point of the curve
        Address(PeerId("xyz"), ("127.0.0.1:9",)),
        Address(PeerId("\0" * 100_000), ("127.0.0.1:9",)),
        Address(PeerId("03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"), ("nonsense",) * 1000),
        Address(PeerId("03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"), (), "no url"),
    ],
)
def test_nonsense_cannot_be_dialled(address: Address) -> None:
    async def main() -> None:
        async with networks(1) as (network,):
            with pytest.raises(UnreachableError) as caught:
                await network.connect(address)
            assert len(str(caught.value)) < 500
            assert ".rs:" not in str(caught.value)

    run(main)


def test_oneself_cannot_be_dialled() -> None:
    async def main() -> None:
        async with networks(1) as (network,):
            with pytest.raises(UnreachableError):
                await network.connect(network.address)

    run(main)


# ---- paths


def a_path(at: str, *, selected: bool, rtt_ms: int = 3, relay: bool = False) -> iroh_ffi.PathSnapshot:
    stats = iroh_ffi.PathStatsRecord(
        rtt_ms=rtt_ms,
        udp_tx_datagrams=0,
        udp_tx_bytes=0,
        udp_rx_datagrams=0,
        udp_rx_bytes=0,
        cwnd=0,
        congestion_events=0,
        lost_packets=0,
        lost_bytes=0,
        current_mtu=1200,
    )
    return iroh_ffi.PathSnapshot(
        id=at, is_selected=selected, remote_addr=at, is_ip=not relay, is_relay=relay, rtt_ms=rtt_ms, stats=stats
    )


NEAR = a_path("192.0.2.2:7", selected=False, rtt_ms=2)
FAR = a_path("198.51.100.2:7", selected=False, rtt_ms=90)
CHOSEN = a_path("203.0.113.2:7", selected=True, rtt_ms=200)
RELAY = a_path("https://relay.example", selected=False, rtt_ms=1, relay=True)
CHOSEN_RELAY = a_path("https://relay.example", selected=True, rtt_ms=300, relay=True)


PATHS: list[tuple[list[Any], tuple[str | None, str, float | None]]] = [
    ([], (None, "unknown", None)),
    ([NEAR], ("192.0.2.2:7", "direct", 0.002)),  # another connection to this peer uses the selected address
    ([RELAY, FAR, NEAR], ("192.0.2.2:7", "direct", 0.002)),
    ([NEAR, CHOSEN, RELAY], ("203.0.113.2:7", "direct", 0.2)),
    ([NEAR, CHOSEN_RELAY], (None, "relayed", 0.3)),
    ([RELAY], (None, "relayed", 0.001)),
]


def test_the_path_in_use() -> None:
    async def main() -> None:
        async with networks(2) as (dialler, acceptor):
            connection: Any = (await join(dialler, acceptor)).outgoing
            lane = connection._outgoing
            for paths, expected in PATHS:
                connection._facts = LinkFacts(None, "unknown", 0, 0)
                connection._outgoing = SimpleNamespace(
                    paths=lambda paths=paths: paths, stats=lane.stats, send_datagram=lane.send_datagram
                )
                connection._path_time = float("-inf")
                facts = connection.facts()
                assert (connection.seen_at, facts.path, facts.round_trip_s) == expected, paths
            connection._outgoing = lane

    run(main)


def test_a_new_connection_asks_until_the_slow_handshake_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where messages go over TCP, nothing else would correct the round trip of a handshake with a busy peer."""
    asked: dict[IrohConnection, int] = {}
    ask = IrohConnection._ask

    def counted(connection: IrohConnection) -> None:
        asked[connection] = asked.get(connection, 0) + 1
        ask(connection)

    monkeypatch.setattr(IrohConnection, "_ask", counted)
    monkeypatch.setattr(connection_module, "SAMPLE_PAUSE_S", 0.01)

    async def main() -> None:
        async with networks(2) as (dialler, acceptor):
            joined = await join(dialler, acceptor)
            near, far = joined.outgoing, joined.incoming
            while len(asked) < 2 or min(asked.values()) < SAMPLES:
                await asyncio.sleep(0.01)
            assert (7 / 8) ** SAMPLES < 0.05
            assert near.round_trip_s is not None
            before = asked[near]
            near._path_time -= 1.1 * PATH_AGE_S
            near.facts()
            near.facts()
            assert asked[near] == before + 1, "the next who looks finds a fresh one"
            assert asked[far] <= SAMPLES + 1
        asked.clear()

    run(main)


# ---- ends of networks, loops, threads and processes


async def cancelled_dial(turns: int, dialler: IrohNetwork, acceptor: IrohNetwork) -> bool:
    """Cancel a dial after so many turns of the loop; False if it was through by then (and what it made is closed)."""
    dial = asyncio.ensure_future(dialler.connect(acceptor.address))
    for _ in range(turns):
        await asyncio.sleep(0)
    dial.cancel()
    await asyncio.wait({dial})
    if dial.cancelled():
        return True
    await dial.result().close()
    while dialler._connections:
        await asyncio.sleep(0.01)
    return False


def test_a_cancelled_dial_leaves_nothing() -> None:
    async def main() -> None:
        async with networks(2) as (dialler, acceptor):
            for turns in (0, 1, 2, 4, 8, 16, 32):
                while not await cancelled_dial(turns, dialler, acceptor):
                    pass  # on a busy machine it was through before
            assert not dialler._connections
            while acceptor._halves:
                await asyncio.sleep(0.01)
            await join(dialler, acceptor)

    run(main)


def test_closing_ends_a_dial_with_closed_error() -> None:
    async def main() -> None:
        async with networks(2) as (network, gone):
            dead = gone.address
            await gone.close()
            dial = asyncio.ensure_future(network.connect(dead))
            await asyncio.sleep(0.05)
            await network.close()
            with pytest.raises(ClosedError):
                await dial

    run(main)


def test_a_closed_network_frees_its_port_though_others_still_hold_its_streams() -> None:
    """An error that is still looked at holds a stream and its connection. A peer comes back at its old port."""

    async def main() -> None:
        settings = NetworkSettings(host="127.0.0.1", relay="none", tcp=False)
        async with networks(1) as (other,):
            network = await IrohNetwork.open(os.urandom(32), settings)
            both = await join(other, network)
            held = [await stream_pair(both.incoming, both.outgoing), await stream_pair(both.outgoing, both.incoming)]
            for near, far in held:
                await near.write(b"forth")
                assert await read_all(far, 5) == b"forth"
            port = int(network.address.direct[0].rpartition(":")[2])
            waiting = [
                asyncio.ensure_future(held[0][0].read(1)),
                asyncio.ensure_future(held[0][0].write(bytes(40 << 20))),
            ]
            await asyncio.sleep(0.02)
            await network.close()
            errors = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(each, ClosedError) for each in errors), "and they hold all that they went through"
            again = await IrohNetwork.open(os.urandom(32), replace(settings, port=port))
            await again.close()
            for near, far in held:
                for use in (near.read(1), near.write(b"x"), near.write(b""), near.finish(), far.read(1)):
                    with pytest.raises((ClosedError, UnreachableError)):
                        await use
            assert both.incoming.facts().bytes_sent > 0

    run(main)


CHILD = """
import asyncio, os, sys
from minga.network.iroh.network import IrohNetwork
async def main():
    network = await IrohNetwork.open(os.urandom(32))
    print(network.peer_id, *network.address.direct, flush=True)
    connection = await network.accept()
    stream = await connection.accept_stream()
    print("streaming", flush=True)
    if sys.argv[1] == "linger":
        await stream.read_into(memoryview(bytearray(1 << 30)))
    waiting = asyncio.ensure_future(stream.read_into(memoryview(bytearray(1 << 30))))
    await asyncio.sleep(0)
    if sys.argv[1] == "close":
        waiting.cancel()
        await network.close()
asyncio.run(main())
print("done", flush=True)
"""


@pytest.mark.parametrize("how", ["close", "forget"])
def test_a_process_that_ends(how: str) -> None:
    """By closing, and without closing anything: it ends at once, quietly, and so can those who talked to it."""
    with subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", CHILD, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        peer, *direct = child.stdout.readline().split()

        async def main() -> None:
            async with networks(1) as (network,):
                connection = await network.connect(Address(PeerId(peer), tuple(direct)))
                stream = await connection.open_stream()
                await stream.write(b"x")
                assert await asyncio.to_thread(child.stdout.readline) == "streaming\n"
                reading = asyncio.ensure_future(stream.read(1))
                if how == "close":
                    with pytest.raises(UnreachableError):
                        await reading
                    assert connection.is_closed
                assert await asyncio.to_thread(child.wait, 30) == 0
                await network.close()
                assert isinstance((await asyncio.gather(reading, return_exceptions=True))[0], Exception)

        run(main)
        assert child.stdout.read() == "done\n"
        complaints = child.stderr.read()
        assert "Traceback" not in complaints
        if how == "close":
            assert "Warning" not in complaints
            assert "never" not in complaints
            assert "destroyed" not in complaints


# ---- strangers and the wire


@contextlib.asynccontextmanager
async def stranger(network: IrohNetwork) -> AsyncIterator[Callable[..., Coroutine[Any, Any, Any]]]:
    """A peer that speaks QUIC but not necessarily minga; gives a function that dials one lane with any preface."""
    options = iroh.EndpointOptions(preset=iroh.preset_minimal(), relay_mode=iroh.RelayMode.disabled())
    endpoint = await iroh.Endpoint.bind(options)
    target = iroh.EndpointAddr(iroh.EndpointId.from_string(network.peer_id), None, list(network.address.direct))

    async def dial(preface: bytes, alpn: bytes = ALPN) -> Any:
        lane = await endpoint.connect(target, alpn)
        sender = await lane.open_uni()
        if preface:
            await sender.write_all(preface)
        await sender.finish()
        return lane

    try:
        yield dial
    finally:
        await endpoint.close()


async def lanes(dial: Callable[..., Coroutine[Any, Any, Any]], network: IrohNetwork) -> tuple[Any, Any, Connection]:
    forth, back = await dial(bytes([0]) + TOKEN), await dial(bytes([1]) + TOKEN)
    return forth, back, await network.accept()


def test_bad_prefaces_and_the_same_lane_twice_make_no_connection() -> None:
    async def main() -> None:
        async with networks(1) as (network,), stranger(network) as dial:
            for preface in (b"", b"\0", bytes([2]) + TOKEN, bytes([0]) + TOKEN[:-1]):
                await (await dial(preface)).closed()
            for lane in (await dial(bytes([0]) + TOKEN), await dial(bytes([0]) + TOKEN)):
                await lane.closed()
            assert not network._halves
            assert not network._accepted

    run(main)


def test_a_lane_without_its_other_half_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_module, "DIAL_TIMEOUT_S", 0.3)

    async def main() -> None:
        async with networks(1) as (network,), stranger(network) as dial:
            lane = await dial(bytes([1]) + TOKEN)
            await lane.closed()
            assert not network._halves

    run(main)


def test_lanes_of_different_peers_do_not_pair() -> None:
    async def main() -> None:
        async with networks(1) as (network,), stranger(network) as one, stranger(network) as other:
            held = await one(bytes([0]) + TOKEN), await other(bytes([1]) + TOKEN)
            while len(network._halves) < 2:
                await asyncio.sleep(0.01)
            assert not network._accepted
            del held

    run(main)


def test_another_protocol_is_refused() -> None:
    async def main() -> None:
        async with networks(1) as (network,), stranger(network) as dial:
            with pytest.raises(iroh.IrohError):
                await dial(b"", b"other/1")

    run(main)


def test_too_many_waiting_connections_are_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_module, "MAX_BACKLOG", 1)

    async def main() -> None:
        async with networks(2) as (dialler, acceptor):
            first = await dialler.connect(acceptor.address)
            second = await dialler.connect(acceptor.address)
            with pytest.raises(UnreachableError):
                await second.accept_stream()
            assert (await acceptor.accept()).peer_id == dialler.peer_id
            assert not first.is_closed

    run(main)


def test_halves_that_wait_for_ever_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_module, "MAX_HANDSHAKES", 2)
    monkeypatch.setattr(network_module, "DIAL_TIMEOUT_S", 1000.0)

    async def main() -> None:
        async with networks(2) as (dialler, acceptor), stranger(acceptor) as dial:
            halves = [await dial(bytes([0, number]) + TOKEN[1:]) for number in range(4)]
            for half in halves[:2]:
                await half.closed()
            assert len(acceptor._halves) <= 2
            await join(dialler, acceptor)
            for half in halves:
                await half.closed()
            assert not acceptor._halves

    run(main)


async def send(lane: Any, body: bytes) -> None:
    sender = await lane.open_uni()
    await sender.write_all(body)
    await sender.finish()


def test_one_way_streams_that_make_no_sense_do_no_harm() -> None:
    async def main() -> None:
        async with networks(1) as (network,), stranger(network) as dial:
            forth, _, connection = await lanes(dial, network)
            for body in (
                b"\0",
                HEADER.pack(OPEN, 1)[:-1],
                HEADER.pack(ANSWER, 77) + b"no such stream",
                HEADER.pack(ABORT, 77),
                HEADER.pack(3, 1) + b"no such kind",
                HEADER.pack(255, (1 << 64) - 1),
            ):
                await send(forth, body)
            await send(forth, HEADER.pack(OPEN, 5) + b"good")
            stream = await connection.accept_stream()
            assert await read_all(stream, 4) == b"good"
            assert await stream.read(1) == b""
            assert not connection.is_closed

    run(main)


def test_a_number_used_twice_is_refused_and_a_second_answer_too() -> None:
    async def main() -> None:
        async with networks(1) as (network,), stranger(network) as dial:
            forth, back, connection = await lanes(dial, network)
            await send(forth, HEADER.pack(OPEN, 5) + b"first")
            stream = await connection.accept_stream()
            again = await forth.open_uni()
            await again.write_all(HEADER.pack(OPEN, 5) + b"second")
            assert await again.stopped() == 0
            assert await read_all(stream, 5) == b"first"

            mine = await connection.open_stream()
            await mine.write(b"?")
            receiver = await back.accept_uni()
            kind, number = HEADER.unpack(await receiver.read_exact(HEADER.size))
            assert kind == OPEN
            await send(forth, HEADER.pack(ANSWER, number) + b"yes")
            assert await read_all(mine, 3) == b"yes"
            again = await forth.open_uni()
            await again.write_all(HEADER.pack(ANSWER, number) + b"no")
            assert await again.stopped() == 0

    run(main)


def test_an_opener_learns_that_its_answer_was_aborted() -> None:
    async def main() -> None:
        async with networks(2) as pair:
            both = await join(*pair)
            for opener, other in ((both.outgoing, both.incoming), (both.incoming, both.outgoing)):
                for answered in (False, True):
                    near, far = await stream_pair(opener, other)
                    if answered:
                        await far.write(b"partial")
                        assert await read_all(near, 7) == b"partial"
                    reading = asyncio.ensure_future(near.read(1))
                    await asyncio.sleep(0)
                    await far.reset()
                    with pytest.raises(UnreachableError) as caught:
                        await reading
                    assert caught.value.peer == opener.peer_id
                    with pytest.raises(UnreachableError):
                        await near.write(b"x")

    run(main)


def test_what_was_reset_cannot_be_written_to_either() -> None:
    """The reset and the word that nobody reads any more travel on two lanes: one may come long before the other."""

    async def main() -> None:
        async with networks(2) as pair:
            both = await join(*pair)
            for opener, other in ((both.outgoing, both.incoming), (both.incoming, both.outgoing)):
                for turned in (False, True):
                    near, far = await stream_pair(opener, other)
                    await far.write(b"partial")
                    assert await read_all(near, 7) == b"partial"
                    here, there = (far, near) if turned else (near, far)
                    await there._sender.reset(0)  # type: ignore[attr-defined]
                    for use in (here.read(1), here.write(b"x"), here.finish(), here.read(1)):
                        with pytest.raises(UnreachableError):
                            await use

    run(main)


def test_streams_are_forgotten_when_nobody_uses_them() -> None:
    async def main() -> None:
        async with networks(2) as pair:
            both = await join(*pair)
            for _ in range(20):
                near, far = await stream_pair(both.outgoing, both.incoming)
                await near.finish()
                await far.finish()
                assert await near.read(1) == await far.read(1) == b""
                await near.reset()
                await far.reset()
            assert isinstance(near, IrohStream)
            del near, far
            gc.collect()
            assert not both.outgoing._streams  # type: ignore[attr-defined]
            assert not both.incoming._streams  # type: ignore[attr-defined]

    run(main)


def test_more_streams_than_the_transport_allows_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_STREAMS", 100)  # a connection begins with so many

    async def main() -> None:
        async with networks(2) as pair:
            both = await join(*pair)
            streams = [await both.outgoing.open_stream() for _ in range(130)]

            async def ask(number: int) -> None:
                await streams[number].write(number.to_bytes(4, "big"))
                await streams[number].finish()
                assert await read_all(streams[number], 4) == number.to_bytes(4, "big")
                assert await streams[number].read(1) == b""

            async def answer() -> None:
                stream = await both.incoming.accept_stream()
                await stream.write(await read_all(stream, 4))
                await stream.finish()
                assert await stream.read(1) == b""

            await asyncio.gather(*(ask(number) for number in range(130)), *(answer() for _ in range(130)))

    run(main)


def test_finish_alone_opens_the_stream() -> None:
    async def main() -> None:
        async with networks(2) as pair:
            both = await join(*pair)
            near = await both.outgoing.open_stream()
            await near.finish()
            await near.finish()
            far = await both.incoming.accept_stream()
            assert await far.read(1) == b""
            await far.finish()
            assert await near.read(1) == b""

    run(main)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("127.0.0.1:1", True),
        ("[::1]:65535", True),
        ("::1:5", False),
        ("[127.0.0.1]:5", False),
        ("127.0.0.1", False),
        ("127.0.0.1:0", False),
        ("127.0.0.1:65536", False),
        ("127.0.0.1:-1", False),
        ("127.0.0.1:\u0661", False),
        ("localhost:5", False),
        ("", False),
        (":", False),
    ],
)
def test_socket_addresses(text: str, valid: bool) -> None:
    assert network_module._is_socket_address(text) is valid


def test_what_is_no_socket_address_keeps_nobody_from_dialling_the_others() -> None:
    async def main() -> None:
        async with networks(2) as (one, other):
            known = other.address
            address = Address(known.peer_id, ("localhost:5", "127.0.0.1:65536", *known.direct), known.relay)
            await asyncio.gather(one.connect(address), other.accept())

    run(main)
