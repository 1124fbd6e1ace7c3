"""Ctrl-C that always works within a second.

Theory of operation. Python delivers a signal to the main thread between two byte codes, so a long call into C (a large
backward pass) delays it. Therefore the C-level handler also writes a byte to a socket, on which a watchdog thread
waits. The main thread gets its `KeyboardInterrupt` (or `Terminated`) and tidies up as usual; if it has not ended the
process after `PATIENCE_S`, the watchdog says goodbye to the run in its place, and at the end of the second it ends the
process. Where leaving at once costs something, a command may ask that the first Ctrl-C only says so (`defer`).
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType

from minga.cli.terminal.exit_codes import INTERRUPTED, TERMINATED, interrupts

PATIENCE_S = 0.25
DEADLINE_S = 0.8


class Terminated(BaseException):
    """This process was told to end (SIGTERM)."""


class Interruption:
    """Watches for Ctrl-C and SIGTERM from its making to the end of the process. One per process, on the main thread."""

    def __init__(self) -> None:
        self._goodbyes: list[Callable[[], None]] = []
        self._receiving, self._sending = socket.socketpair()  # open to the end: each further Ctrl-C writes, too
        self._sending.setblocking(False)
        self._code = INTERRUPTED
        self._instead: Callable[[], bool] | None = None
        self._deferrals = 0
        """Signals that the watchdog has to overlook."""
        signal.set_wakeup_fd(self._sending.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, self._interrupt)
        with contextlib.suppress(AttributeError, ValueError):
            signal.signal(signal.SIGTERM, _terminate)
        threading.Thread(target=self._watch, name="minga-interrupt", daemon=True).start()

    def on_interrupt(self, goodbye: Callable[[], None]) -> None:
        """Call `goodbye` on the watchdog's thread when the end comes."""
        self._goodbyes.append(goodbye)

    def defer(self, instead: Callable[[], bool]) -> None:
        """The next Ctrl-C calls `instead`, on the main thread, and if that returns True does nothing else."""
        self._deferrals, self._instead = 1, instead

    def trigger(self) -> None:
        """Interrupt the program from another thread, as Ctrl-C would."""
        with contextlib.suppress(OSError):
            self._sending.send(bytes([signal.SIGINT]))
        if hasattr(signal, "pthread_kill") and (main := threading.main_thread().ident) is not None:
            signal.pthread_kill(main, signal.SIGINT)
        else:
            _thread.interrupt_main()

    def _watch(self) -> None:
        ends = {int(signal.SIGINT), int(signal.SIGTERM)}
        while True:
            received = self._receiving.recv(1)
            if not received:
                return
            if received[0] == int(signal.SIGINT) and self._deferrals:
                self._deferrals -= 1
            elif received[0] in ends:
                break
        if received[0] == int(signal.SIGTERM):
            self._code = TERMINATED
        timer = threading.Timer(DEADLINE_S, self._end)
        timer.daemon = True
        timer.start()
        time.sleep(PATIENCE_S)
        for goodbye in self._goodbyes:
            with contextlib.suppress(Exception):  # the process ends in any case
                goodbye()

    def _interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        if self._instead is not None:
            instead, self._instead = self._instead, None
            if instead():
                return
            self._sending.send(bytes([signal_number]))  # the watchdog has overlooked the first one
        interrupts.append(signal_number)
        signal.default_int_handler(signal_number, frame)

    def _end(self) -> None:
        os._exit(self._code)  # without flushing: whoever reads the other end of a pipe may have stopped


def _terminate(signal_number: int, frame: FrameType | None) -> None:
    raise Terminated(signal_number, frame is None)
