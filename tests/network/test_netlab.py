"""The lab gives what it promises: rates, NAT, cut cables, and that nothing of it is left behind."""

from __future__ import annotations

import array
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.netlab import Host, Lab, LabError, why_unavailable

ROOT = Path(__file__).resolve().parents[2]
PORT = 5000

needs_lab = pytest.mark.skipif(why_unavailable() is not None, reason=why_unavailable() or "")


def listener(lab: Lab, host: str) -> socket.socket:
    return lab.call(host, lambda: socket.create_server((lab.address(host), PORT)))


def connect(lab: Lab, host: str, address: str, within_s: float = 0.5) -> socket.socket | None:
    """A connection from `host`, or None if nothing answers in time."""

    def dial() -> socket.socket | None:
        try:
            return socket.create_connection((address, PORT), timeout=within_s)
        except OSError:
            return None

    return lab.call(host, dial)


def connected(lab: Lab, host: str, address: str) -> socket.socket:
    connection = connect(lab, host, address)
    assert connection is not None
    return connection


def tcp_rate(lab: Lab, source: str, target: str, seconds: float = 1.1) -> float:
    """Bits per second that TCP gets across, without its first 0.2 s."""
    with listener(lab, target) as server, connected(lab, source, lab.public_address(target)) as sender:
        stop = threading.Event()

        def send() -> None:
            data = bytes(1 << 16)
            while not stop.is_set():
                sender.sendall(data)
            sender.close()

        thread = threading.Thread(target=send)
        thread.start()
        with server.accept()[0] as receiver:
            start = time.monotonic()
            read, before, since = 0, 0, 0.0
            while (now := time.monotonic()) - start < seconds:
                if not since and now - start >= 0.2:
                    before, since = read + waiting(receiver), now
                read += len(receiver.recv(1 << 16))
            arrived = read + waiting(receiver) - before
            now = time.monotonic()
            stop.set()
            while receiver.recv(1 << 16):
                pass
        thread.join()
        return arrived * 8 / (now - since)


def waiting(receiver: socket.socket) -> int:
    """Bytes that have arrived and were not read: on a busy machine the reader falls behind the link."""
    import fcntl  # where there is no lab there may be neither
    import termios

    found = array.array("i", [0])
    fcntl.ioctl(receiver, termios.FIONREAD, found)
    return found[0]


@needs_lab
def test_rates_up_down_and_of_a_path_are_kept_within_five_percent() -> None:
    hosts = [Host("a", up=16e6, down=24e6), Host("b", up=8e6), Host("c"), Host("d", up=12e6, nat="home")]
    with Lab(hosts, {("a", "c"): 5e6}) as lab:
        wanted = {("a", "b"): 16e6, ("b", "a"): 8e6, ("c", "a"): 24e6, ("a", "c"): 5e6, ("d", "b"): 12e6}
        for (source, target), rate in wanted.items():
            for attempt in range(1, 5):  # a busy machine moves both ends of the time that is measured
                measured = tcp_rate(lab, source, target, 1.1 * attempt)
                if measured == pytest.approx(rate, rel=0.05):
                    break
            assert measured == pytest.approx(rate, rel=0.05), (source, target)


@needs_lab
def test_nat_lets_out_and_not_in() -> None:
    hosts = [Host("out"), Host("a", nat="home"), Host("b", nat="home"), Host("c", nat="other")]
    with Lab(hosts) as lab:
        with (
            listener(lab, "out") as server,
            connected(lab, "a", lab.address("out")) as client,
            server.accept()[0] as accepted,
        ):
            assert accepted.getpeername()[0] == lab.public_address("a") == lab.public_address("b")
            accepted.sendall(b"back")
            assert client.recv(4) == b"back"
        with listener(lab, "a"):
            assert connect(lab, "out", lab.public_address("a")) is None
            route = ["ip", "route", "add", f"{lab.address('a')}/32", "via", lab.public_address("a")]
            assert lab.start("out", route).wait() == 0  # and neither if somebody knows the way
            assert connect(lab, "out", lab.address("a")) is None
            assert connect(lab, "c", lab.public_address("a")) is None
            with connected(lab, "b", lab.address("a")) as neighbour:  # at home there is nothing in between
                assert neighbour.getpeername()[0] == lab.address("a")


@needs_lab
def test_cables_are_cut_and_restored() -> None:
    with Lab([Host("a"), Host("b"), Host("c", nat="home")]) as lab, listener(lab, "b"):

        def heard() -> list[bool]:
            connections = [connect(lab, host, lab.address("b"), 0.2) for host in ("a", "c")]
            for connection in connections:
                if connection is not None:
                    connection.close()
            return [connection is not None for connection in connections]

        assert heard() == [True, True]
        for arguments, one_way, expected in [
            (("a",), False, [False, True]),
            (("a",), True, [False, True]),
            (("b",), True, [False, False]),
            (("b", "a"), False, [False, True]),
            (("b", "c"), True, [True, False]),
        ]:
            lab.cut(*arguments, one_way=one_way)
            assert heard() == expected, (arguments, one_way)
            lab.restore(*arguments, one_way=one_way)
        assert heard() == [True, True]


@needs_lab
def test_nothing_is_left_after_an_error() -> None:
    processes: list[subprocess.Popen[bytes]] = []
    namespaces: set[int] = set()

    def fail_in_a_lab() -> None:
        with Lab([Host("a", up=1e6), Host("b", nat="home")]) as lab:
            processes.append(lab.start("b", ["sleep", "1000"]))
            namespaces.update(os.stat(lab.namespace(name)).st_ino for name in "ab")
            raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        fail_in_a_lab()
    assert [process.returncode for process in processes] == [-signal.SIGKILL]
    assert not namespaces & namespaces_in_use()


@needs_lab
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_nothing_is_left_of_an_owner_that_was_killed(name: str) -> None:
    program = (
        "import os, time; from tests.netlab import Host, Lab\n"
        "with Lab([Host('a', up=1e6), Host('b', nat='home')]) as lab:\n"
        "    processes = [lab.start(name, ['sleep', '1000']) for name in 'ab']\n"
        "    for name, process in zip('ab', processes):\n"
        "        while b'sleep' not in open(f'/proc/{process.pid}/cmdline', 'rb').read()[:5]: time.sleep(0.01)\n"
        "        print(process.pid, os.stat(lab.namespace(name)).st_ino, flush=True)\n"
        "    time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        lines = [owner.stdout.readline().split() for _ in range(2)]
        children, namespaces = ([int(line[i]) for line in lines] for i in (0, 1))
        assert set(namespaces) <= namespaces_in_use()
        owner.send_signal(getattr(signal, name))
    while any(Path(f"/proc/{pid}/exe").exists() for pid in children):
        time.sleep(0.01)  # until the kernel has delivered it; the test's time limit is the bound
    while set(namespaces) & namespaces_in_use():
        time.sleep(0.01)  # a process that ends loses its files before its namespaces


def namespaces_in_use() -> set[int]:
    """Inodes of all network namespaces that a process is in or holds open."""
    found = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            for file in [directory / "ns/net", *(directory / "fd").iterdir()]:
                target = os.readlink(file)
                if target.startswith("net:["):
                    found.add(int(target[5:-1]))
        except OSError:
            continue
    return found


def test_a_description_that_makes_no_sense_is_refused() -> None:
    for hosts, paths in [([], {}), ([Host("a"), Host("a")], {}), ([Host("a")], {("a", "b"): 1e6})]:
        with pytest.raises(LabError):
            Lab(hosts, paths)
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(LabError):
            Host("a", up=rate)
    with pytest.raises(LabError):
        Lab([Host("a"), Host("b")], {("a", "b"): 0.0})


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is not tried at all")
def test_who_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "root" in (why_unavailable.__wrapped__() or "")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is not tried at all")
def test_who_lacks_a_tool_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "nft" else tool)
    assert "nft" in (why_unavailable.__wrapped__() or "")
