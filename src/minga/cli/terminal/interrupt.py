"""Ctrl-C that always works within a second.

Theory of operation. Python delivers a signal to the main thread between two byte codes, so a long call into C (a large
backward pass) delays it. Therefore the C-level handler also writes a byte to a socket, on which a watchdog thread
waits. The main thread gets its `KeyboardInterrupt` (or `Terminated`) and tidies up as usual; if it has not ended the
process after `PATIENCE_S`, the watchdog says goodbye to the run in its place, and at the end of the second it ends the
process. Where leaving at once costs something, a command may ask that the first Ctrl-C only says so (`defer`).
SIGTERM, and SIGHUP when the terminal is closed, end a command in the same way.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable
from types import FrameType

from minga.cli.terminal.exit_codes import INTERRUPTED, TERMINATED, interrupts

PATIENCE_S = 0.25
DEADLINE_S = 0.8
_ENDS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Terminated(BaseException):
    """This process was told to end (SIGTERM), or its terminal was closed (SIGHUP)."""


class Interruption:
    """Watches for Ctrl-C, SIGTERM and SIGHUP to the end of the process. One per process, on the main thread."""

    def __init__(self) -> None:
        self._goodbyes: list[Callable[[], None]] = []
        self._receiving, self._sending = socket.socketpair()  # open to the end: each further Ctrl-C writes, too
        self._sending.setblocking(False)
        self._code = INTERRUPTED
        self._instead: Callable[[], bool] | None = None
        self._deferrals = 0
        """Signals that the watchdog has to overlook."""
        self._defers_ends = False
        self._number = int(signal.SIGINT)
        """What `trigger` sends: the signal that was deferred."""
        signal.set_wakeup_fd(self._sending.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, self._interrupt)
        for number in _ENDS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._terminate)
        threading.Thread(target=self._watch, name="minga-interrupt", daemon=True).start()

    def on_interrupt(self, goodbye: Callable[[], None]) -> None:
        """Call `goodbye` on the watchdog's thread when the end comes."""
        self._goodbyes.append(goodbye)

    def defer(self, instead: Callable[[], bool], *, ends: bool = False) -> None:
        """The next Ctrl-C calls `instead`, on the main thread, and if that returns True does nothing else.

        With `ends` the same is true of SIGTERM and SIGHUP.
        """
        self._deferrals, self._instead, self._defers_ends = 1, instead, ends

    def trigger(self) -> None:
        """Interrupt the program from another thread, as Ctrl-C would, or as the signal that was deferred."""
        with contextlib.suppress(OSError):
            self._sending.send(bytes([self._number]))
        if hasattr(signal, "pthread_kill") and (main := threading.main_thread().ident) is not None:
            signal.pthread_kill(main, self._number)
        else:
            _thread.interrupt_main()

    def _watch(self) -> None:
        while True:
            received = self._receiving.recv(1)
            if not received:
                return
            is_end = received[0] in _ENDS
            if self._deferrals and (self._defers_ends if is_end else received[0] == signal.SIGINT):
                self._deferrals -= 1
            elif is_end or received[0] == signal.SIGINT:
                break
        if is_end:
            self._code = TERMINATED
        timer = threading.Timer(DEADLINE_S, self._end)
        timer.daemon = True
        timer.start()
        time.sleep(PATIENCE_S)
        for goodbye in self._goodbyes:
            with contextlib.suppress(Exception):  # the process ends in any case
                goodbye()

    def _interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        if self._is_deferred(signal_number):
            return
        interrupts.append(signal_number)
        signal.default_int_handler(signal_number, frame)

    def _terminate(self, signal_number: int, frame: FrameType | None) -> None:
        if signal_number != signal.SIGTERM:
            _let_go_of_terminal()
        if self._defers_ends and self._is_deferred(signal_number):
            return
        raise Terminated(signal_number, frame is None)

    def _is_deferred(self, signal_number: int) -> bool:
        if self._instead is None:
            return False
        instead, self._instead, self._number = self._instead, None, signal_number
        if instead():
            return True
        self._sending.send(bytes([signal_number]))  # the watchdog has overlooked the first one
        return False

    def _end(self) -> None:
        os._exit(self._code)  # without flushing: whoever reads the other end of a pipe may have stopped


def _let_go_of_terminal() -> None:
    """Write nothing more to a terminal that is gone, which is an error; what goes into files and pipes stays."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
