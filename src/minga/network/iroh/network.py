"""The real network: iroh, that is QUIC with TLS 1.3 over UDP, Ed25519 keys as ids, hole punching and relays.

Theory of operation. One endpoint serves all connections of one peer. A connection consists of two QUIC connections,
*lanes*; `connection.py` says why. The dialling side sends on each lane a preface with the lane's number and a random
token. The accepting side waits until both lanes with the same key and token are there. Keys are proven by TLS.

Threads and loops. iroh runs on one thread of its own, shared by all endpoints of the process, and calls back into the
event loop on which a call was made. Networks may live on several loops in several threads, one after the other or at
once, but each is to be used on the loop that opened it, and closed before that loop ends. The bindings have one
process-wide setting, `uniffi_set_event_loop`, that overrides the running loop, and with which all calls from other
loops would hang or fail. Nothing here needs it, and `open` clears it when it names another loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import re
import secrets
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from iroh import iroh_ffi

from minga.core.aio import Observers, end, spawn
from minga.core.errors import ClosedError, ConfigurationError, MingaError, UnreachableError, reason_of
from minga.core.urls import is_public, parse_announced
from minga.network.interface import MAX_ENDPOINTS, MAX_LEARNED, Address, Connection, Network, PeerId
from minga.network.interrupt import AcceptQueue, Interrupt
from minga.network.iroh import ffi_bytes
from minga.network.iroh.connection import BINDING_ERRORS, IrohConnection, describe, read_exactly
from minga.network.tcp.listener import TcpListener

# ---- Settings of the real network.


@dataclass(frozen=True)
class NetworkSettings:
    """How to reach others and be reached.

    `relay` is "none" (no server besides the peers is ever contacted), "public" (iroh's public relays and discovery)
    or the URLs of own relays. `announce` holds addresses at which others reach this peer though its machine does not
    know of them, see `parse_announced`; without a port the bound one is meant. `host` is the address to bind (None: all
    interfaces), `port` the UDP port (0: any). With `dialable` False the peer only dials out: it has no address, and
    connections from others are refused. With `tcp`, streams for bulk go over TCP where that works; a dialable peer
    listens on the TCP port of the same number if it is free.
    """

    relay: Literal["none", "public"] | tuple[str, ...] = "none"
    announce: tuple[str, ...] = ()
    host: str | None = None
    port: int = 0
    dialable: bool = True
    tcp: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.relay, str):
            if self.relay not in ("none", "public"):
                raise ConfigurationError(f"relay must be 'none', 'public' or URLs, not {self.relay!r}")
        elif not self.relay or not all(_is_relay_url(url) for url in self.relay):
            raise ConfigurationError(f"relay must name at least one URL, all with http or https, not {self.relay!r}")
        for text in self.announce:
            try:
                parse_announced(text)
            except ValueError as error:
                raise ConfigurationError(f"announce: {error}") from None
        if self.host is not None:
            try:
                ipaddress.ip_address(self.host)
            except ValueError:
                raise ConfigurationError(f"host must be an IP address, not {self.host!r}") from None
        if type(self.port) is not int or not 0 <= self.port <= 65535:
            raise ConfigurationError(f"port must be between 0 and 65535, not {self.port!r}")


def _is_relay_url(url: object) -> bool:
    if not isinstance(url, str):
        return False
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def relay_mode(settings: NetworkSettings) -> Any:
    """The settings' relays as iroh takes them. Raises `IrohError` for a URL that iroh does not like."""
    if settings.relay == "public":
        return iroh_ffi.RelayMode.default_mode()
    if settings.relay == "none":
        return iroh_ffi.RelayMode.disabled()
    return iroh_ffi.RelayMode.custom_from_urls(list(settings.relay))


def announced_addresses(settings: NetworkSettings, endpoint: Any) -> tuple[str, ...]:
    """The announced addresses as others dial them; those without a port get the one that is bound."""
    found = (parse_announced(text) for text in settings.announce)
    return tuple(
        f"{f'[{ip}]' if ':' in ip else ip}:{port or _bound_port(endpoint, settings.host or ip)}" for ip, port in found
    )


def bind_addresses(settings: NetworkSettings) -> tuple[str, ...]:
    """The socket addresses to bind as iroh takes them; none for any port on all interfaces.

    iroh opens a socket for IPv4 and one for IPv6, and the one that it is not told of on all interfaces, at any port. So
    a port is told for both, and beside a `host` the other one is told to be on this machine alone.
    """
    if settings.host is None:
        return (f"0.0.0.0:{settings.port}", f"[::]:{settings.port}") if settings.port else ()
    if ":" in settings.host:
        return f"[{settings.host}]:{settings.port}", "127.0.0.1:0"
    return f"{settings.host}:{settings.port}", "[::1]:0"


def check_bindable(settings: NetworkSettings) -> None:
    """Raise `ConfigurationError` if host and port of the settings cannot be bound now: for programs with much to do
    before `IrohNetwork.open` would say so.
    """
    for address in bind_addresses(settings)[:1]:  # without the second `open` goes on
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if _is_ipv6(address) else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            raise _cannot_open(settings, reason_of(error)) from None


def _cannot_open(settings: NetworkSettings, why: str) -> ConfigurationError:
    place = f"{f'port {settings.port}' if settings.port else 'any port'} on {settings.host or 'all interfaces'}"
    taken = "; if another program has this port, choose another --port" if settings.port else ""
    return ConfigurationError(f"cannot open the network with {place}: {why}{taken}")


ALPN = b"minga/1"
DIAL_TIMEOUT_S = 9.0
"""Seconds after which a dial fails, and within which both lanes of an accepted connection must be there."""
CLOSE_TIMEOUT_S = 0.7
"""Seconds to wait for goodbyes to be delivered."""
RELAY_TIMEOUT_S = 2.5
"""Seconds that `open` waits for a relay to answer, so that `address` names it; it goes on without."""
ADDRESS_PERIOD_S, ADDRESS_AGE_S = 2.0, 1.0
"""Seconds between two looks for news at the addresses that iroh knows of this peer, and for which an answer is good."""
STRANGER_TIMEOUT_S = 3.0
"""Seconds for the dial of `can_dial`. Without a relay a few round trips must do."""
MAX_HANDSHAKES = 128
"""How many lanes may be without their other half; when there are more, the oldest makes room."""
MAX_BACKLOG = 128

_PREFACE = struct.Struct(">B16s")
_FORTH, _BACK = 0, 1  # lanes: the dialler's data, the acceptor's data


class IrohNetwork(Network):
    """One peer on the real network; made by `open`."""

    def __init__(self, endpoint: Any, settings: NetworkSettings, listener: TcpListener | None) -> None:
        self._endpoint, self._settings, self._listener = endpoint, settings, listener
        self._peer_id = PeerId(str(endpoint.id()))
        self._announced = announced_addresses(settings, endpoint)
        self._learned: deque[str] = deque()
        self._address, self._address_s = Address(self._peer_id), -math.inf
        self._on_address = Observers[[]]()
        self._interrupt = Interrupt()
        self._connections: set[IrohConnection] = set()
        self._accepted: AcceptQueue[IrohConnection] = AcceptQueue()
        self._halves: dict[tuple[PeerId, bytes], tuple[int, Any, asyncio.Future[None]]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        spawn(self._accept_forever(), self._tasks)
        if settings.dialable:
            spawn(self._watch_address(), self._tasks)

    @classmethod
    async def open(cls, secret_key: bytes, settings: NetworkSettings | None = None) -> IrohNetwork:
        """Bind a socket and start to accept connections; `secret_key` is the 32-byte Ed25519 seed.

        Raises `ConfigurationError` if the key, the address to bind or a relay is not acceptable.
        """
        settings = settings or NetworkSettings()
        if not isinstance(secret_key, bytes) or len(secret_key) != 32:
            raise ConfigurationError("the secret key must be 32 bytes")
        if getattr(iroh_ffi, "_UNIFFI_GLOBAL_EVENT_LOOP", None) not in (None, asyncio.get_running_loop()):
            iroh_ffi.uniffi_set_event_loop(None)
        try:
            endpoint = await _bind(secret_key, settings)
        except BINDING_ERRORS as error:
            raise _cannot_open(settings, describe(error)) from None
        if settings.relay != "none":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELAY_TIMEOUT_S):
                    await endpoint.online()
        for announced in announced_addresses(settings, endpoint):
            await endpoint.add_external_addr(announced)  # so that hole punching offers it, too
        # TCP is dialled at the address that iroh found to answer, which may be any of those that it is bound to.
        bound = endpoint.bound_sockets() if settings.dialable else []
        hosts = [place.rpartition(":")[0].strip("[]") for place in bound]
        owner, port = PeerId(str(endpoint.id())), _bound_port(endpoint, settings.host or "0.0.0.0")  # noqa: S104
        return cls(endpoint, settings, await TcpListener.make(owner, hosts, port) if settings.tcp else None)

    @property
    def peer_id(self) -> PeerId:
        """This peer's own id."""
        return self._peer_id

    @property
    def address(self) -> Address:
        """The announced addresses, what iroh found out or peers told, those of all interfaces or of the one that the
        settings name, and the relay.

        Public ones come first, since others take only so many. It is asked for in each step, and iroh takes a while to
        answer: what it said stays good for `ADDRESS_AGE_S`.
        """
        if not self._settings.dialable or self._interrupt.fired:
            return Address(self._peer_id)
        if (now_s := time.monotonic()) - self._address_s >= ADDRESS_AGE_S:
            self._address, self._address_s = self._read_address(), now_s
        return self._address

    def _read_address(self) -> Address:
        known, host = self._endpoint.addr(), self._settings.host
        found = [text for text in known.direct_addresses() if host is None or _is_ipv6(text) == _is_ipv6(host)]
        direct = dict.fromkeys([*self._announced, *self._learned])
        direct |= dict.fromkeys(sorted(found, key=lambda text: not is_public(text)))
        for place in self._endpoint.bound_sockets():
            bound, _, port = place.rpartition(":")
            if bound == "0.0.0.0":  # noqa: S104  (compared, not bound)
                direct[f"127.0.0.1:{port}"] = None
            elif bound == "[::]" and host == "::":
                direct |= dict.fromkeys(f"[{ip}]:{port}" for ip in (*_own_ipv6(), "::1"))
        return Address(self._peer_id, tuple(direct)[:MAX_ENDPOINTS], known.relay_url())

    @property
    def on_address(self) -> Observers[[]]:
        """See the interface."""
        return self._on_address

    async def announce(self, endpoint: str) -> None:
        """See the interface; hole punching offers the endpoint, too."""
        if not self._settings.dialable or endpoint in self.address.direct or not _is_socket_address(endpoint):
            return
        self._interrupt.check()
        with contextlib.suppress(*BINDING_ERRORS):
            await self._endpoint.add_external_addr(endpoint)
            self._learned.append(endpoint)
            if len(self._learned) > MAX_LEARNED:
                await self._endpoint.remove_external_addr(self._learned.popleft())
            self._address_s = -math.inf
            self._on_address.tell()

    def wall_time(self) -> float:
        """Seconds since the Unix epoch by this machine's clock."""
        return time.time()

    def steady_time(self) -> float:
        """Seconds since this machine started; of Python's monotonic clock only that of Windows counts sleep."""
        if sys.platform == "linux":
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        elif sys.platform == "darwin":
            return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
        else:
            return time.monotonic()

    async def connect(self, address: Address) -> Connection:
        """Dial a peer; see the interface. Takes at most `DIAL_TIMEOUT_S` seconds."""
        self._interrupt.check()
        dial = spawn(self._dial(address), self._tasks)
        connection: IrohConnection | None = None
        try:
            await asyncio.wait({dial}, timeout=DIAL_TIMEOUT_S)
            self._interrupt.check()
            if not dial.done():
                raise UnreachableError(f"no answer within {DIAL_TIMEOUT_S:.0f} s", peer=address.peer_id)
            connection = dial.result()
            return connection
        finally:
            if connection is None:
                dial.cancel()
                await asyncio.wait({dial})
                if not dial.cancelled() and dial.exception() is None:
                    await dial.result().close()

    async def can_dial(self, address: Address) -> bool:
        """See the interface. A fresh socket and key are used, since a NAT lets known ones back in."""
        relay: Literal["none"] | tuple[str] = "none" if address.relay is None else (address.relay,)
        settings = NetworkSettings(relay, host=self._settings.host, dialable=False, tcp=False)
        stranger = await IrohNetwork.open(secrets.token_bytes(32), settings)
        try:
            async with asyncio.timeout(STRANGER_TIMEOUT_S if address.relay is None else DIAL_TIMEOUT_S):
                await stranger.connect(address)
            return True
        except (UnreachableError, TimeoutError):
            return False
        finally:
            spawn(stranger.close(), self._tasks)  # it takes its time, which the answer need not wait for

    async def accept(self) -> Connection:
        """Wait for the next peer that dials this one; see the interface."""
        return await self._accepted.take()

    async def close(self) -> None:
        """Say goodbye and free the sockets; see the interface. Takes at most about one second."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    # ---- inner workings

    def _explain(self, what: str, peer: PeerId) -> MingaError:
        return _closed() if self._interrupt.fired else UnreachableError(what, peer=peer)

    async def _close(self) -> None:
        self._interrupt.fire(_closed)
        await end(*self._tasks)
        await asyncio.gather(*(connection.close() for connection in list(self._connections)))
        self._accepted.fail(_closed)
        if self._listener is not None:
            await self._listener.close()
        with contextlib.suppress(TimeoutError, *BINDING_ERRORS):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._endpoint.close()
        del self._endpoint  # the socket is closed with the last reference only

    def _adopt(self, peer: PeerId, outgoing: Any, incoming: Any) -> IrohConnection:
        connection = IrohConnection(peer, outgoing, incoming, self._explain, self._connections.discard, self._listener)
        self._connections.add(connection)
        return connection

    async def _dial(self, address: Address) -> IrohConnection:
        peer, token = address.peer_id, secrets.token_bytes(16)
        lanes: list[Any] = []
        try:
            target = _target(address)
            for number in (_FORTH, _BACK):
                lanes.append(await self._endpoint.connect(target, ALPN))
                sender = await lanes[-1].open_uni()
                await ffi_bytes.write_all(sender, _PREFACE.pack(number, token), self._interrupt)
                await sender.finish()
            connection = self._adopt(peer, lanes[_FORTH], lanes[_BACK])
            lanes.clear()
            return connection
        except BINDING_ERRORS as error:
            raise UnreachableError(f"cannot connect: {describe(error)}", peer=peer) from None
        finally:
            _hang_up(lanes)

    async def _watch_address(self) -> None:
        """Tell of a relay or an address that iroh finds later; its own watchers need the process-wide loop."""
        known = self.address
        while True:
            await asyncio.sleep(ADDRESS_PERIOD_S)
            before, known = known, self.address
            if known != before:
                self._on_address.tell()

    async def _accept_forever(self) -> None:
        handshakes: dict[asyncio.Task[Any], None] = {}
        while (incoming := await self._endpoint.accept_next()) is not None:
            if not self._settings.dialable:
                with contextlib.suppress(*BINDING_ERRORS):
                    await incoming.refuse()
                continue
            if len(handshakes) >= MAX_HANDSHAKES:  # honest ones are over within a few round trips
                oldest = next(iter(handshakes))
                del handshakes[oldest]
                oldest.cancel()
            task = spawn(self._welcome(incoming), self._tasks)
            handshakes[task] = None
            task.add_done_callback(lambda task: handshakes.pop(task, None))

    async def _welcome(self, incoming: Any) -> None:
        """Complete the handshake of one lane and wait for its other half."""
        unused: list[Any] = []
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                lane = await (await incoming.accept()).connect()
                unused.append(lane)
                receiver = await lane.accept_uni()
                preface = await read_exactly(receiver, _PREFACE.size, self._interrupt)
                number, token = _PREFACE.unpack(preface)
                peer = PeerId(str(lane.remote_id()))
                if number in (_FORTH, _BACK) and await self._pair(peer, token, number, lane):
                    unused.clear()
        except (TimeoutError, MingaError, *BINDING_ERRORS):
            return  # the dialling side did not know the preface, or gave up
        finally:
            _hang_up(unused)

    async def _pair(self, peer: PeerId, token: bytes, number: int, lane: Any) -> bool:
        """Whether `lane` became a part of a connection; waits for the other part if this is the first."""
        other = self._halves.pop((peer, token), None)
        if other is None:
            paired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._halves[peer, token] = number, lane, paired
            lost = spawn(lane.closed(), self._tasks)
            try:
                await asyncio.wait({paired, lost}, return_when=asyncio.FIRST_COMPLETED)
                return paired.done() and not paired.cancelled()
            finally:
                lost.cancel()
                if not paired.done():
                    del self._halves[peer, token]
                    paired.cancel()
        other_number, other_lane, other_paired = other
        if other_number == number or len(self._accepted) >= MAX_BACKLOG:
            other_paired.cancel()
            return False
        lanes = {number: lane, other_number: other_lane}
        other_paired.set_result(None)
        self._accepted.put(self._adopt(peer, lanes[_BACK], lanes[_FORTH]))
        return True


async def _bind(secret_key: bytes, settings: NetworkSettings) -> Any:
    """An endpoint at the addresses of the settings; where the second cannot be bound, as on a machine without that IP
    version, at the first alone.
    """
    addresses = bind_addresses(settings)
    try:
        return await _builder(secret_key, settings, addresses).bind()
    except BINDING_ERRORS:
        if len(addresses) < 2:
            raise
    return await _builder(secret_key, settings, addresses[:1]).bind()


def _builder(secret_key: bytes, settings: NetworkSettings, addresses: Sequence[str]) -> Any:
    builder = iroh_ffi.EndpointBuilder()
    if settings.relay == "public":
        builder.apply_n0()
    else:
        builder.apply_minimal()
    builder.relay_mode(relay_mode(settings))
    builder.secret_key(secret_key)
    builder.alpns([ALPN])
    for address in addresses:
        builder.bind_addr(address)
    return builder


def _bound_port(endpoint: Any, ip: str) -> int:
    """The port that is bound for the IP version of this address; on a machine without it that of the other one."""
    sockets: list[str] = endpoint.bound_sockets()
    return int(min(sockets, key=lambda each: _is_ipv6(each) != _is_ipv6(ip)).rpartition(":")[2])


def _is_ipv6(text: str) -> bool:
    """Whether this is an IPv6 address, with or without a port, and not an IPv4 one."""
    return text.startswith("[") or text.count(":") > 1


def _own_ipv6() -> list[str]:
    """The address from which this machine would reach others by IPv6, which it finds out without a packet."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        probe.connect(("2001:db8::1", 9))  # of documentation: nobody's
        return [str(probe.getsockname()[0])]
    return []


def _closed() -> ClosedError:
    return ClosedError("the network was closed")


def _hang_up(lanes: list[Any]) -> None:
    for lane in lanes:
        with contextlib.suppress(*BINDING_ERRORS):
            lane.close(0, b"")


def _target(address: Address) -> Any:
    """An address as iroh takes it, without its parts that are none. Raises `UnreachableError` if nothing is left."""
    direct = [text for text in address.direct[:MAX_ENDPOINTS] if _is_socket_address(text)]
    if not direct and address.relay is None:
        raise UnreachableError("there is no valid address to dial", peer=address.peer_id)
    if not re.fullmatch("[0-9a-f]{64}", address.peer_id):
        raise UnreachableError(f"{address.peer_id[:70]!r} is no peer id")
    return iroh_ffi.EndpointAddr(iroh_ffi.EndpointId.from_string(address.peer_id), address.relay, direct)


def _is_socket_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    try:
        bracketed = host.startswith("[") and host.endswith("]")
        ip = ipaddress.ip_address(host[1:-1] if bracketed else host)
        return bracketed == (ip.version == 6) and port.isascii() and port.isdecimal() and 0 < int(port) < 65536
    except ValueError:
        return False
