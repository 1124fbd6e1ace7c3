"""Network namespaces without names: each lives as long as somebody holds it open, and no longer.

A namespace is held by a file descriptor of the process that made it and by the processes that run in it. There is
nothing to clean up: when the maker ends, in whatever way, the kernel takes the namespace away with the devices, rules
and connections in it, as soon as the processes in it have ended too; and these die with the maker (`command`).
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

CLONE_NEWNET = 0x40000000


class LabError(RuntimeError):
    """The network could not be set up as asked."""


class Namespace:
    """One network namespace, with its loopback device up and without IPv6."""

    def __init__(self) -> None:
        def make() -> int:
            _call("unshare", CLONE_NEWNET)
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

        self._descriptor: int | None = _on_a_thread(make)
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        """A file by which other processes of root can enter it while its maker lives."""
        self.set("net/ipv6/conf/all/disable_ipv6", 1)
        self.set("net/ipv6/conf/default/disable_ipv6", 1)
        self.ip(["link set lo up"])

    def ip(self, lines: Sequence[str]) -> None:
        """Run commands of `ip`, one a line. Raises `LabError` at the first that fails."""
        self._run(["ip", "-batch", "-"], lines)

    def tc(self, lines: Sequence[str]) -> None:
        """Run commands of `tc`, as `ip` does."""
        self._run(["tc", "-batch", "-"], lines)

    def nft(self, lines: Sequence[str]) -> None:
        """Run commands of `nft`, all or none of them."""
        self._run(["nft", "-f", "-"], lines)

    def set(self, name: str, value: int | str) -> None:
        """Set a kernel parameter of this namespace, if the kernel has it."""
        file = Path("/proc/sys", name)
        self.call(lambda: file.write_text(str(value)) if file.exists() else 0)

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command line that runs `arguments` in here, until the thread that starts it ends."""
        return ["nsenter", f"--net={self.path}", "setpriv", "--pdeathsig", "KILL", *arguments]

    def close(self) -> None:
        """Let go of it; the processes in it have to be ended by whoever started them."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def call(self, function: Callable[[], T]) -> T:
        """Call it on a thread in here; sockets belong to where they were made."""

        def enter_and_call() -> T:
            enter(self.path)
            return function()

        return _on_a_thread(enter_and_call)

    def _run(self, tool: Sequence[str], lines: Sequence[str]) -> None:
        if not lines:
            return
        script = "\n".join(lines) + "\n"
        # The child is forked by the thread that is inside.
        done = self.call(lambda: subprocess.run(tool, input=script, capture_output=True, text=True, check=False))
        if done.returncode:
            raise LabError(f"{tool[0]}: {done.stderr.strip() or done.returncode}\n{script}")


def enter(path: str) -> None:
    """Move the calling thread, and those that it starts from now on, into the namespace with this `path`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", descriptor, CLONE_NEWNET)
    finally:
        os.close(descriptor)


def _call(function: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        number = ctypes.get_errno()
        raise LabError(f"{function}: {os.strerror(number)}")


def _on_a_thread(function: Callable[[], T]) -> T:
    """Call it on a thread of its own, which takes the namespace it ends up in along when it ends."""
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
