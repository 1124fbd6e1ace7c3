"""Hosts on a switch, some of them behind routers with NAT.

Theory of operation. The switch is a bridge in a namespace of its own, so the machine's own network neither changes nor
is it reachable. Each host is a namespace with one device, `eth0`; the other end of the cable, its *port*, is in the
switch, or in its router. A router is a namespace with a port in the switch and a bridge for those behind it:

    a ── p0 ┐
    b ── p1 ┤ switch ── p2 ── router: wan0, NAT, lan0 ┬ p3 ── c
                                                      └ p4 ── d

All traffic of a host passes its port, so that is where cables are cut: by dropping frames, silently.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.netlab._namespace import LabError, Namespace
from tests.netlab._nat import RouterKind, router_rules
from tests.netlab._shaping import frames_in_a_piece, shaping

T = TypeVar("T")

MAX_HOSTS = 200
TOOLS = ("ip", "tc", "nft", "nsenter", "setpriv")


@dataclass(frozen=True)
class Host:
    """One host: its rates in bits per second (None: unlimited), and the router that it is behind, if any.

    Rates are those that plain TCP reaches.

    Hosts that name the same router are in one home network and share an address. `forwarded` is a UDP and TCP port of
    the router that leads to this host, 0 for every port that no other host has: then it has a public address to itself,
    as with the 1:1 NAT of clouds.
    """

    name: str
    up: float | None = None
    down: float | None = None
    nat: str | None = None
    forwarded: int | None = None

    def __post_init__(self) -> None:
        for rate in (self.up, self.down):
            if rate is not None:
                _check_rate(rate)
        if self.forwarded is not None and (self.nat is None or not 0 <= self.forwarded < 65536):
            raise LabError(f"{self.name}: a router forwards ports 0 to 65535 to hosts that are behind it")


@dataclass(frozen=True)
class _Place:
    """Where a host is: its namespace, its port and in which namespace that is, its address and the one seen outside."""

    inside: Namespace
    port: str
    outside: Namespace
    address: str
    public: str


class Lab:
    """A network of `hosts`. `paths[a, b]` limits what a sends to b, in bits per second. The routers in `kinds` are of
    that kind, all others of the first, see `RouterKind`.

    Use it as a context manager: processes started in it are ended and the network is gone when the block is left.
    The same happens if this process dies. Raises `LabError` if it cannot be set up.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        paths: Mapping[tuple[str, str], float] | None = None,
        kinds: Mapping[str, RouterKind] | None = None,
    ) -> None:
        names = [host.name for host in hosts]
        if len(set(names)) != len(names) or not 0 < len(names) <= MAX_HOSTS:
            raise LabError(f"there must be 1 to {MAX_HOSTS} hosts with different names")
        if unknown := {name for pair in paths or {} for name in pair} - set(names):
            raise LabError(f"paths name hosts that do not exist: {', '.join(sorted(unknown))}")
        for rate in (paths or {}).values():
            _check_rate(rate)
        if unknown := set(kinds or {}) - {host.nat for host in hosts}:
            raise LabError(f"kinds name routers that do not exist: {', '.join(sorted(unknown))}")
        self._hosts, self._paths, self._kinds = tuple(hosts), dict(paths or {}), dict(kinds or {})
        self._places: dict[str, _Place] = {}
        self._processes: list[subprocess.Popen[Any]] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Lab:
        with contextlib.ExitStack() as stack:
            switch = self._bridge(stack, "br0")
            routers = {name: self._router(stack, switch, number) for number, name in enumerate(self._routers())}
            for number, host in enumerate(self._hosts):
                self._places[host.name] = self._plug_in(stack, number, host, switch, routers)
            for host in self._hosts:
                self._shape(host)
            for name, router in routers.items():
                self._translate(name, router)
            stack.callback(self._end_processes)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # ---- using it

    def address(self, name: str) -> str:
        """The IPv4 address of a host's own device."""
        return self._places[name].address

    def public_address(self, name: str) -> str:
        """The address from which others hear a host: its router's if it is behind one."""
        return self._places[name].public

    def namespace(self, name: str) -> str:
        """A file by which a process can `enter` the host."""
        return self._places[name].inside.path

    def call(self, name: str, function: Callable[[], T]) -> T:
        """Call it on a thread that is on the host."""
        return self._places[name].inside.call(function)

    def start(self, name: str, arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process on a host; `options` as for `subprocess.Popen`. It is killed with the lab and this thread."""
        command = self._places[name].inside.command(arguments)
        process = subprocess.Popen(command, start_new_session=True, **options)
        self._processes.append(process)
        return process

    def cut(self, name: str, other: str | None = None, *, one_way: bool = False) -> None:
        """Drop everything between a host and `other` (None: everybody); with `one_way` only what the host sends."""
        for place, change in self._wires(name, other, one_way):
            place.outside.nft([f"add element bridge cut {change}"])

    def restore(self, name: str, other: str | None = None, *, one_way: bool = False) -> None:
        """Undo `cut` with the same arguments."""
        for place, change in self._wires(name, other, one_way):
            place.outside.nft([f"delete element bridge cut {change}"])

    # ---- setting it up

    def _routers(self) -> list[str]:
        return sorted({host.nat for host in self._hosts if host.nat is not None})

    def _bridge(self, stack: contextlib.ExitStack, name: str) -> Namespace:
        """A namespace with a bridge, and rules to cut the cables that are plugged into it."""
        made = _namespace(stack)
        made.ip([f"link add {name} type bridge", f"link set {name} up"])
        made.nft(
            [
                "table bridge cut {",
                "  set mute { type ifname; }",
                "  set deaf { type ifname; }",
                "  set pairs { type ifname . ipv4_addr; }",
                "  chain from { type filter hook prerouting priority 0;",
                "    iifname @mute drop",
                "    iifname . ip daddr @pairs drop",
                "  }",
                "  chain to { type filter hook postrouting priority 0;",
                "    oifname @deaf drop",
                "  }",
                "}",
            ]
        )
        return made

    def _router(self, stack: contextlib.ExitStack, switch: Namespace, number: int) -> Namespace:
        """A namespace between a home network and the switch; what it translates, `_translate` says."""
        router = self._bridge(stack, "lan0")
        router.set("net/ipv4/ip_forward", 1)
        router.set("net/bridge/bridge-nf-call-iptables", 0)
        _cable(router, "wan0", _router_address(number) + "/16", switch, f"r{number}", "br0")
        router.ip([f"addr add {_inner_address(number, 1)}/24 dev lan0"])
        return router

    def _plug_in(
        self,
        stack: contextlib.ExitStack,
        number: int,
        host: Host,
        switch: Namespace,
        routers: Mapping[str, Namespace],
    ) -> _Place:
        inside = _namespace(stack)
        # Whatever this machine prefers; every kernel has it, and as near as here it is what the usual cubic does too.
        inside.set("net/ipv4/tcp_congestion_control", "reno")
        port = f"p{number}"
        if host.nat is None:
            address = _host_address(number)
            _cable(inside, "eth0", f"{address}/16", switch, port, "br0")
            return _Place(inside, port, switch, address, address)
        router = self._routers().index(host.nat)
        address = _inner_address(router, 2 + number)
        _cable(inside, "eth0", f"{address}/24", routers[host.nat], port, "lan0")
        inside.ip([f"route add default via {_inner_address(router, 1)}"])
        return _Place(inside, port, routers[host.nat], address, _router_address(router))

    def _translate(self, name: str, router: Namespace) -> None:
        """Let those behind a router out under its address, and others in as its kind and its forwarded ports say."""
        behind = [host for host in self._hosts if host.nat == name]
        ports = {h.forwarded: self._places[h.name].address for h in behind if h.forwarded is not None}
        public = self._places[behind[0].name].public
        router.nft(router_rules(self._kinds.get(name, "port-restricted"), public, ports))

    def _shape(self, host: Host) -> None:
        place = self._places[host.name]
        paths = {self._places[b].public: rate for (a, b), rate in self._paths.items() if a == host.name}
        place.inside.ip([f"link set eth0 gso_max_segs {frames_in_a_piece([host.up, *paths.values()])}"])
        place.inside.tc(shaping("eth0", host.up, paths))
        place.outside.ip([f"link set {place.port} gso_max_segs {frames_in_a_piece([host.down])}"])
        place.outside.tc(shaping(place.port, host.down, {}))

    def _wires(self, name: str, other: str | None, one_way: bool) -> Iterable[tuple[_Place, str]]:
        """The elements of the sets of `_bridge` that stand for a cut, and where they belong."""
        place = self._places[name]
        if other is None:
            yield place, f'mute {{ "{place.port}" }}'
            if not one_way:
                yield place, f'deaf {{ "{place.port}" }}'
            return
        far = self._places[other]
        yield place, f'pairs {{ "{place.port}" . {far.public} }}'
        if not one_way:
            yield far, f'pairs {{ "{far.port}" . {place.public} }}'

    def _end_processes(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def _check_rate(rate: float) -> None:
    if not 1e4 <= rate <= 1e10:
        raise LabError(f"a rate must be 1e4 to 1e10 bits per second, not {rate}")


def _namespace(stack: contextlib.ExitStack) -> Namespace:
    made = Namespace()
    stack.callback(made.close)
    return made


def _cable(host: Namespace, device: str, address: str, switch: Namespace, port: str, bridge: str) -> None:
    """Connect a device in one namespace with a port of the bridge in another."""
    switch.ip(
        [
            f"link add {port} type veth peer name {device} netns {host.path}",
            f"link set {port} master {bridge} up",
        ]
    )
    host.ip([f"link set {device} up", f"addr add {address} dev {device}"])


def _host_address(number: int) -> str:
    return f"10.77.0.{number + 1}"


def _router_address(number: int) -> str:
    return f"10.77.1.{number + 1}"


def _inner_address(router: int, number: int) -> str:
    return f"192.168.{router}.{number}"


@functools.cache
def why_unavailable() -> str | None:
    """What keeps this machine from having a lab, or None: tried out, as containers differ in what root may do."""
    if sys.platform != "linux":
        return "network namespaces exist on Linux only"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)} (Debian: iproute2, nftables, util-linux)"
    try:
        with Lab([Host("a", up=1e6, down=1e6, nat="router"), Host("b")], {("a", "b"): 1e5}) as lab:
            lab.cut("a")
    except (LabError, OSError) as error:
        return "this machine cannot have it: " + re.sub(r"\s+", " ", str(error))[:200]
    return None
